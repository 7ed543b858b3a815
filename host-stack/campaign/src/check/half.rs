//! A checkpoint that is offered is whole: every member's image, as it was written, of all members.

use crate::scenarios::offload::Outcome;

/// Its name.
pub const NAME: &str = "no half checkpoint is offered";

/// How a run breaks it.
pub fn check(outcome: &Outcome) -> Option<String> {
    super::seen(outcome, NAME)
}
