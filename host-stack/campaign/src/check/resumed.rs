//! Whoever was stopped for a checkpoint runs on, whatever became of that: unless it was to end.

use crate::scenarios::offload::Outcome;

/// Its name.
pub const NAME: &str = "all run on after a checkpoint";

/// How a run breaks it.
pub fn check(outcome: &Outcome) -> Option<String> {
    super::seen(outcome, NAME)
}
