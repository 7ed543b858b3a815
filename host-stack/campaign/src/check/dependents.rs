//! Who depends on an operation that has failed fails alike, and never starts
//! (`model::app::history`).

use crate::scenarios::offload::Outcome;

/// Its name.
pub const NAME: &str = "dependents fail alike";

/// How a run breaks it.
pub fn check(outcome: &Outcome) -> Option<String> {
    super::seen(outcome, NAME)
}
