//! What the machine knows of one plugin.

use std::{ops::Range, time::Duration};

use snaprig_ckpt_plugin::{
    message::{Descriptor, Registered},
    phase::{Part, Phase, Phases},
};

use crate::Ns;

/// Who refuses, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The process.
    pub pid: i32,
    /// Which plugin, and its reason.
    pub what: String,
    /// It has ended: the others may do without it the next time.
    pub has_ended: bool,
}

/// What belongs to a plugin, and not into an image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owned {
    /// Its name.
    pub name: String,
    /// Its end of the connection.
    pub channel: Option<Descriptor>,
    /// Descriptors.
    pub descriptors: Vec<Descriptor>,
    /// Memory.
    pub regions: Vec<Range<u64>>,
}

/// Where a plugin is: see the diagram of [`super`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It has not said what it is.
    New { due_ns: Ns },
    /// It is in no round.
    Idle,
    /// It is at work in a phase.
    Busy {
        phase: Phase,
        serial: u64,
        due_ns: Ns,
    },
    /// It has done its work in a phase, and what it has published with that is on its way to the board.
    Leaving { phase: Phase, due_ns: Ns },
    /// It has taken too long, and is still at work.
    Late { phase: Phase, serial: u64 },
    /// It has passed a phase, and waits for what follows.
    Passed(Phase),
}

impl State {
    /// When a phase is done.
    pub fn after(phase: Phase) -> Self {
        match phase {
            Phase::Resume | Phase::Go => Self::Idle,
            passed => Self::Passed(passed),
        }
    }
}

/// A plugin.
#[derive(Debug)]
pub struct Participant {
    pub pid: i32,
    pub registered: Option<Registered>,
    pub channel: Option<Descriptor>,
    pub state: State,
    /// Its process has been restarted, and it has not said anything since.
    pub is_restarted: bool,
    /// What it has saved is whole only when it has resumed.
    pub finishes_later: bool,
    pub descriptors: Vec<Descriptor>,
    pub regions: Vec<Range<u64>>,
}

/// What decides whose turn it is: phases one after another, then order values, the lowest first.
pub type Group = (Phase, i64);

impl Participant {
    pub fn new(pid: i32, due_ns: Ns) -> Self {
        Self {
            pid,
            registered: None,
            channel: None,
            state: State::New { due_ns },
            is_restarted: false,
            finishes_later: false,
            descriptors: Vec::new(),
            regions: Vec::new(),
        }
    }

    pub fn is_busy(&self) -> bool {
        matches!(self.state, State::Busy { .. } | State::Leaving { .. })
    }

    /// When it must have answered.
    pub fn due_ns(&self) -> Option<Ns> {
        match self.state {
            State::New { due_ns } | State::Busy { due_ns, .. } | State::Leaving { due_ns, .. } => {
                Some(due_ns)
            }
            _ => None,
        }
    }

    pub fn has_passed(&self, phase: Phase) -> bool {
        matches!(self.state, State::Passed(passed) if passed >= phase)
    }

    /// Whether others may wait for something of it: it has quiesced.
    pub fn is_relied_on(&self) -> bool {
        match self.state {
            State::New { .. } | State::Idle => false,
            State::Busy { phase, .. } | State::Late { phase, .. } => phase > Phase::Quiesce,
            State::Leaving { .. } | State::Passed(_) => true,
        }
    }

    /// Whether it has been told to do something, and others may count on it that it comes to what they meet at.
    pub fn is_awaited(&self, by: &Self) -> bool {
        self.is_busy() && self.name() == by.name()
    }

    /// Whether it is at work in this phase, in time or not.
    pub fn is_at(&self, wanted: Phase) -> bool {
        matches!(self.state, State::Busy { phase, .. } | State::Late { phase, .. } if phase == wanted)
    }

    fn phases(&self) -> Phases {
        let registered = self.registered.as_ref();
        registered.map_or(Phases::NONE, |registered| registered.phases)
    }

    /// Whether it has nothing to do in a phase.
    pub fn passes_over(&self, phase: Phase, part: Part) -> bool {
        let is_other = part == Part::Stays && Phase::RESTART.contains(&phase) && !self.follows();
        is_other || !self.phases().has(phase)
    }

    fn follows(&self) -> bool {
        let registered = self.registered.as_ref();
        registered.is_some_and(|registered| registered.follows_moves)
    }

    /// The phase after the one that it has passed, on the way to `target`.
    pub fn next_towards(&self, target: Phase) -> Option<Phase> {
        let phases = Phase::CHECKPOINT.into_iter().chain(Phase::RESTART);
        let next = |passed: Option<Phase>| {
            let mut left = phases.clone();
            left.find(|phase| passed.is_none_or(|passed| *phase > passed) && *phase <= target)
        };
        match self.state {
            State::Idle => next(None),
            State::Passed(passed) => next(Some(passed)),
            _ => None,
        }
    }

    /// What it is told when a round is over.
    pub fn next_released(&self, phase: Phase, part: Part) -> Option<Phase> {
        let State::Passed(passed) = self.state else {
            return None;
        };
        // Who has not made anew what it had has it still.
        let is_as_before = part == Part::Stays && (passed < Phase::Refill || !self.follows());
        Some(if is_as_before { Phase::Resume } else { phase })
    }

    /// Where it is if it refuses in this phase: it has undone what it did in it, and what it did before is undone when it
    /// is told to resume.
    pub fn before(&self, phase: Phase) -> State {
        let mut earlier = Phase::CHECKPOINT.into_iter().filter(|one| *one < phase);
        let done = earlier.rfind(|one| !self.passes_over(*one, Part::All));
        done.map_or(State::Idle, State::Passed)
    }

    /// The group that it works in now.
    pub fn group(&self) -> Option<Group> {
        match self.state {
            State::Busy { phase, .. } | State::Leaving { phase, .. } => Some(self.group_in(phase)),
            _ => None,
        }
    }

    /// The same when a round is over: the group that it is in when it is done with what it works at.
    pub fn group_released(&self) -> Option<Group> {
        match self.state {
            State::Busy { phase, .. } | State::Leaving { phase, .. } if phase.may_fail() => {
                Some(self.group_in(Phase::Resume))
            }
            _ => self.group(),
        }
    }

    pub fn group_in(&self, phase: Phase) -> Group {
        let order = self.registered.as_ref().map_or(0, |one| one.order);
        match phase.is_ascending() {
            true => (phase, order.into()),
            false => (phase, -i64::from(order)),
        }
    }

    pub fn owned(&self) -> Owned {
        Owned {
            name: self.name().into(),
            channel: self.channel,
            descriptors: self.descriptors.clone(),
            regions: self.regions.clone(),
        }
    }

    fn name(&self) -> &str {
        let registered = self.registered.as_ref();
        registered.map_or("(unknown)", |registered| &registered.name)
    }

    pub fn refusal(&self, reason: &str) -> Refusal {
        Refusal {
            pid: self.pid,
            what: format!("plugin {}: {reason}", self.name()),
            has_ended: false,
        }
    }

    pub fn end(&self) -> Refusal {
        Refusal {
            has_ended: true,
            ..self.refusal("its process has ended, or has closed its connection")
        }
    }

    pub fn lateness(&self) -> Refusal {
        match (self.state, &self.registered) {
            (State::Busy { phase, .. }, Some(registered)) => {
                let patience = Duration::from_millis(registered.patience_ms);
                let phase = phase.name();
                self.refusal(&format!(
                    "it has not answered within {patience:?} (phase {phase})"
                ))
            }
            (State::Leaving { .. }, _) => {
                self.refusal("what it has published does not reach the board")
            }
            _ => self.refusal("it has not said in time what it is"),
        }
    }
}
