//! Nobody is told twice how a call has ended.

use crate::scenarios::offload::Outcome;

/// Its name.
pub const NAME: &str = "nobody is told twice";

/// How a run breaks it.
pub fn check(outcome: &Outcome) -> Option<String> {
    super::seen(outcome, NAME)
}
