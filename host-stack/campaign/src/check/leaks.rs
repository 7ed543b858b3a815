//! Nothing leaks: no offload process stays on a living card once its host process is gone, and
//! nothing of a process in its HCA.

use crate::scenarios::offload::Outcome;

/// Its name.
pub const NAME: &str = "nothing leaks";

/// How a run breaks it.
pub fn check(outcome: &Outcome) -> Option<String> {
    outcome
        .leftovers
        .first()
        .map(|left| format!("{left} is left"))
}
