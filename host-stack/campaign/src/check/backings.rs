//! The memory of a window is given back once, and by the end of its connection.

use crate::scenarios::offload::Outcome;

/// Its name.
pub const NAME: &str = "memory is given back once";

/// How a run breaks it.
pub fn check(outcome: &Outcome) -> Option<String> {
    super::seen(outcome, NAME)
}
