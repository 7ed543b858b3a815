//! No operation and no call of COI's waits once all has ended or died.

use crate::scenarios::offload::Outcome;

/// Its name.
pub const NAME: &str = "nothing is left waiting";

/// How a run breaks it.
pub fn check(outcome: &Outcome) -> Option<String> {
    outcome.apps.iter().find_map(|app| app.waiting.clone())
}
