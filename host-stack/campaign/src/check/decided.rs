//! Whether a round is a checkpoint is decided once, by the name of its manifest: nobody is told
//! otherwise, before or after.

use crate::scenarios::offload::Outcome;

/// Its name.
pub const NAME: &str = "a round is decided once";

/// How a run breaks it.
pub fn check(outcome: &Outcome) -> Option<String> {
    super::seen(outcome, NAME)
}
