//! What must be true of a run, whatever went wrong in it: one invariant a file. Each says what it
//! is called, and how a run breaks it.

pub mod atomics;
pub mod backings;
pub mod completions;
pub mod contradiction;
pub mod cut;
pub mod decided;
pub mod dependents;
pub mod errors;
pub mod half;
pub mod leaks;
pub mod messages;
pub mod operations;
pub mod panic;
pub mod patience;
pub mod progress;
pub mod rdma;
pub mod references;
pub mod restarts;
pub mod restored;
pub mod resumed;
pub mod snapshot;
pub mod undisturbed;
pub mod unreliable;
pub mod visible;
pub mod waiting;

use crate::scenarios::offload::Outcome;

/// An invariant that does not hold.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Broken {
    /// Which.
    pub invariant: &'static str,
    /// How.
    pub how: String,
}

/// How a run breaks an invariant, if it does.
type Check = fn(&Outcome) -> Option<String>;

/// All invariants. Safety comes first: what a hang hides is worse than the hang.
pub const INVARIANTS: [(&str, Check); 25] = [
    (panic::NAME, panic::check),
    (contradiction::NAME, contradiction::check),
    (cut::NAME, cut::check),
    (half::NAME, half::check),
    (decided::NAME, decided::check),
    (resumed::NAME, resumed::check),
    (restarts::NAME, restarts::check),
    (restored::NAME, restored::check),
    (operations::NAME, operations::check),
    (references::NAME, references::check),
    (dependents::NAME, dependents::check),
    (visible::NAME, visible::check),
    (rdma::NAME, rdma::check),
    (backings::NAME, backings::check),
    (messages::NAME, messages::check),
    (atomics::NAME, atomics::check),
    (unreliable::NAME, unreliable::check),
    (completions::NAME, completions::check),
    (snapshot::NAME, snapshot::check),
    (undisturbed::NAME, undisturbed::check),
    (waiting::NAME, waiting::check),
    (progress::NAME, progress::check),
    (patience::NAME, patience::check),
    (errors::NAME, errors::check),
    (leaks::NAME, leaks::check),
];

/// The first invariant that does not hold.
pub fn check(outcome: &Outcome) -> Option<Broken> {
    INVARIANTS.iter().find_map(|(invariant, check)| {
        let how = check(outcome)?;
        Some(Broken { invariant, how })
    })
}

/// How the run itself says that it broke the invariant with this name.
fn seen(outcome: &Outcome, name: &str) -> Option<String> {
    let mut violations = outcome.violations.iter();
    violations
        .find(|(invariant, _)| *invariant == name)
        .map(|(_, how)| how.clone())
}
