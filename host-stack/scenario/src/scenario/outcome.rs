//! What comes of a run: what is the same whatever ran, and what only its scenario knows.

use std::{any::Any, collections::BTreeSet};

use snaprig_sim::Trace;

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Everybody came to an end.
    Finished,
    /// Somebody was told that it cannot go on.
    Failed(String),
    /// Somebody waits for something that never comes.
    Stuck(String),
    /// It never came to rest.
    Endless,
    /// The code under test panicked.
    Crashed(String),
}

impl Ending {
    /// The worse, the more.
    pub fn weight(&self) -> u8 {
        match self {
            Self::Finished => 0,
            Self::Failed(_) => 1,
            Self::Stuck(_) => 2,
            Self::Endless => 3,
            Self::Crashed(_) => 4,
        }
    }

    /// Who waits for ever, if anybody does.
    pub fn waits(&self) -> Option<String> {
        match self {
            Self::Stuck(why) => Some(why.clone()),
            Self::Endless => Some("it never came to rest".into()),
            Self::Finished | Self::Failed(_) | Self::Crashed(_) => None,
        }
    }
}

/// What a scenario alone knows of a run, where the scenario is not known.
pub type AnyEnd = Box<dyn Any + Send>;

/// What there is to know of a run; `T` is what only its scenario knows.
#[derive(Debug)]
pub struct Outcome<T = AnyEnd> {
    /// How it ended.
    pub ending: Ending,
    /// What must never happen, and did: the invariant, and how.
    pub violations: Vec<(&'static str, String)>,
    /// What is left of what should be gone.
    pub leftovers: Vec<String>,
    /// Faults that happened.
    pub faults: u64,
    /// Those of them of which somebody must have been told.
    pub loud_faults: u64,
    /// The states that the system was in, if they were counted.
    pub states: BTreeSet<u64>,
    /// Fault points: how often each was reached, and how often something happened there.
    pub reached: Vec<(&'static str, u64, u64)>,
    /// Virtual time at the end.
    pub now_ns: u64,
    /// What happened.
    pub trace: Trace,
    /// Names of the processes, for traces.
    pub processes: Vec<String>,
    /// Everybody as they were where the run was stopped to be looked at.
    pub description: Option<String>,
    /// What else came of it.
    pub end: T,
}

impl<T> Outcome<T> {
    /// The same, with another end.
    pub fn map<U>(self, with: impl FnOnce(T) -> U) -> Outcome<U> {
        Outcome {
            ending: self.ending,
            violations: self.violations,
            leftovers: self.leftovers,
            faults: self.faults,
            loud_faults: self.loud_faults,
            states: self.states,
            reached: self.reached,
            now_ns: self.now_ns,
            trace: self.trace,
            processes: self.processes,
            description: self.description,
            end: with(self.end),
        }
    }
}

impl Outcome {
    /// What the scenario knows of the end, if it is a scenario with this one.
    pub fn end_as<T: 'static>(&self) -> Option<&T> {
        self.end.downcast_ref()
    }
}
