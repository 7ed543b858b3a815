//! Liveness: once everything is healed, every call ends, well or badly.

use crate::model::{Ending, Outcome};

/// Its name.
pub const NAME: &str = "nobody waits for ever";

/// How a run breaks it.
pub fn check(outcome: &Outcome) -> Option<String> {
    outcome.apps.iter().find_map(|app| match &app.ending {
        Ending::Stuck(why) => Some(why.clone()),
        Ending::Endless => Some("it never came to rest".into()),
        Ending::Finished | Ending::Failed(_) | Ending::Crashed(_) => None,
    })
}
