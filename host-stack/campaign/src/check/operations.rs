//! An operation of COI's starts once, after all that it depends on and all that it conflicts with, and
//! is completed once (`model::app::history`).

use crate::scenarios::offload::Outcome;

/// Its name.
pub const NAME: &str = "operations start once, after what they depend on";

/// How a run breaks it.
pub fn check(outcome: &Outcome) -> Option<String> {
    super::seen(outcome, NAME)
}
