//! Errors are reported: who fails says why, nobody fails without a fault, and a fault of a disk or a
//! service does not pass in silence.

use crate::model::{Ending, Outcome};

/// Its name.
pub const NAME: &str = "errors are reported";

/// How a run breaks it.
pub fn check(outcome: &Outcome) -> Option<String> {
    let mut told = false;
    for app in &outcome.apps {
        if app.errors.iter().any(String::is_empty) {
            return Some("an error says nothing".into());
        }
        if let Ending::Failed(why) = &app.ending {
            if outcome.faults == 0 {
                return Some(format!("nothing went wrong, but it failed: {why}"));
            }
            told = true;
        }
        told |= !app.errors.is_empty();
    }
    let silent = outcome.loud_faults > 0 && !told;
    silent.then(|| "a disk or a service failed, and no call was told of an error".into())
}
