//! The code under test does not panic, whatever comes.

use crate::scenarios::offload::{Ending, Outcome};

/// Its name.
pub const NAME: &str = "the code under test does not panic";

/// How a run breaks it.
pub fn check(outcome: &Outcome) -> Option<String> {
    match &outcome.ending {
        Ending::Crashed(message) => Some(message.clone()),
        _ => None,
    }
}
