//! What must be true of a run, whatever went wrong in it.
//!
//! An invariant is broken in one of two ways. The run itself sees it and says so the moment it happens
//! ([`Outcome::violations`]); or a check looks at all that came of the run. An invariant can have both.

use serde::{Deserialize, Serialize};

use super::outcome::{Ending, Outcome};

/// What kind of failure a broken invariant is: the exit code of a campaign.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// An invariant does not hold.
    Wrong,
    /// Somebody waits for ever.
    Hang,
    /// The code under test panicked.
    Crash,
}

impl Class {
    /// The exit code.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Wrong => 1,
            Self::Hang => 3,
            Self::Crash => 4,
        }
    }
}

/// An invariant that does not hold.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Broken {
    /// Which.
    pub invariant: &'static str,
    /// How.
    pub how: String,
    /// What kind of failure that is.
    pub class: Class,
}

/// How a run breaks an invariant, if it does.
type Check<T> = fn(&Outcome<T>) -> Option<String>;

/// What must be true of every run of a scenario.
#[derive(Debug)]
pub struct Invariant<T: 'static> {
    /// What it is called.
    pub name: &'static str,
    class: Class,
    check: Option<Check<T>>,
}

/// No code under test panics. This holds of every scenario, and comes first.
pub const PANIC: &str = "the code under test does not panic";
/// Once everything is healed, every call ends, well or badly. This holds of every scenario, and comes
/// last unless a scenario lists it earlier.
pub const PROGRESS: &str = "nobody waits for ever";
/// Every message comes once and in order.
pub const MESSAGES: &str = "every message once and in order";
/// What RMA reads is what RMA wrote.
pub const RDMA: &str = "RDMA bytes are exact";
/// Nobody is told twice how a call has ended.
pub const CONTRADICTION: &str = "nobody is told twice";
/// Who fails says why, and nobody fails without a fault.
pub const ERRORS: &str = "errors are reported";
/// Nothing is left of what has ended.
pub const LEAKS: &str = "nothing leaks";

impl<T> Invariant<T> {
    /// One that the run itself sees to be broken.
    pub const fn seen(name: &'static str) -> Self {
        Self {
            name,
            class: Class::Wrong,
            check: None,
        }
    }

    /// One that is checked when the run has ended, too.
    pub const fn checked(name: &'static str, check: Check<T>) -> Self {
        Self {
            name,
            class: Class::Wrong,
            check: Some(check),
        }
    }

    /// One that says that somebody waits for ever.
    pub const fn of_progress(name: &'static str, check: Check<T>) -> Self {
        Self {
            name,
            class: Class::Hang,
            check: Some(check),
        }
    }

    /// [`PROGRESS`], of the run as a whole.
    pub const fn progress() -> Self {
        Self::of_progress(PROGRESS, waits)
    }

    /// [`LEAKS`]: the first of what is left ([`Outcome::leftovers`]).
    pub const fn leaks() -> Self {
        Self::checked(LEAKS, |outcome| {
            let left = outcome.leftovers.first();
            left.map(|left| format!("{left} is left"))
        })
    }

    /// How a run breaks it.
    fn broken(&self, outcome: &Outcome<T>) -> Option<Broken> {
        let mut seen = outcome.violations.iter();
        let seen = seen.find(|(name, _)| *name == self.name);
        let seen = seen.map(|(_, how)| how.clone());
        let how = seen.or_else(|| self.check.and_then(|check| check(outcome)))?;
        Some(Broken {
            invariant: self.name,
            how,
            class: self.class,
        })
    }
}

fn panicked<T>(outcome: &Outcome<T>) -> Option<String> {
    match &outcome.ending {
        Ending::Crashed(message) => Some(message.clone()),
        _ => None,
    }
}

/// Who waits for ever, if anybody does.
pub fn waits<T>(outcome: &Outcome<T>) -> Option<String> {
    outcome.ending.waits()
}

/// The first invariant that does not hold. Safety comes first: what a hang hides is worse than the hang.
pub fn check<T>(invariants: &[Invariant<T>], outcome: &Outcome<T>) -> Option<Broken> {
    let panic = Invariant {
        class: Class::Crash,
        ..Invariant::checked(PANIC, panicked)
    };
    let listed = || invariants.iter().find_map(|one| one.broken(outcome));
    // What a run sees and nobody lists is broken all the same.
    let unlisted = || {
        let (invariant, how) = outcome.violations.first()?;
        Some(Broken {
            invariant,
            how: how.clone(),
            class: Class::Wrong,
        })
    };
    panic
        .broken(outcome)
        .or_else(listed)
        .or_else(unlisted)
        .or_else(|| Invariant::progress().broken(outcome))
}
