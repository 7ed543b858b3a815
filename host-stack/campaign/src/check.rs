//! What must be true of a run, whatever went wrong in it.

use crate::model::{Ending, Outcome};

/// An invariant that does not hold.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Broken {
    /// Which.
    pub invariant: &'static str,
    /// How.
    pub how: String,
}

/// The invariant whose breach is a hang.
pub const NOBODY_WAITS: &str = "nobody waits for ever";

/// All invariants by name.
pub const INVARIANTS: [&str; 7] = [
    "equals the undisturbed run",
    "every result once and in order",
    NOBODY_WAITS,
    "nothing leaks",
    "errors are reported",
    "no contradiction",
    "a snapshot is whole or not there",
];

/// The first invariant that does not hold.
pub fn check(outcome: &Outcome) -> Option<Broken> {
    let broken = |index: usize, how: String| {
        let invariant = INVARIANTS[index];
        Some(Broken { invariant, how })
    };
    if let Some(how) = outcome.violations.first() {
        return broken(5, how.clone());
    }
    if let Some(how) = &outcome.snapshot {
        return broken(6, how.clone());
    }
    // Run functions count, so what they return says which ran, how often, and in which order.
    let results: Vec<_> = outcome.results.iter().flatten().copied().collect();
    let expected: Vec<_> = (1..=results.len() as u64).collect();
    if results != expected {
        return broken(1, format!("results are {:?}", outcome.results));
    }
    match &outcome.ending {
        Ending::Stuck(why) => return broken(2, why.clone()),
        Ending::Endless => return broken(2, "it never came to rest".into()),
        Ending::Finished if outcome.results.iter().any(Option::is_none) => {
            return broken(0, format!("results are {:?}", outcome.results));
        }
        Ending::Failed(why) if outcome.faults == 0 => {
            return broken(4, format!("nothing went wrong, but it failed: {why}"));
        }
        Ending::Finished | Ending::Failed(_) => {}
    }
    match outcome.leftovers.first() {
        Some(left) => broken(3, format!("{left} is left")),
        None => None,
    }
}
