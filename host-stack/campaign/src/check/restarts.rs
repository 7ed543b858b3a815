//! The last complete checkpoint of a job restarts, with all of its members.

use crate::scenarios::offload::Outcome;

/// Its name.
pub const NAME: &str = "the last complete checkpoint restarts";

/// How a run breaks it.
pub fn check(outcome: &Outcome) -> Option<String> {
    super::seen(outcome, NAME)
}
