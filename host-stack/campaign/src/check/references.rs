//! No ordered operation on a buffer starts while a process holds references to it that it was given by
//! run functions that are done, or that those have taken (`model::app::perform`).

use crate::scenarios::offload::Outcome;

/// Its name.
pub const NAME: &str = "references hold operations up";

/// How a run breaks it.
pub fn check(outcome: &Outcome) -> Option<String> {
    super::seen(outcome, NAME)
}
