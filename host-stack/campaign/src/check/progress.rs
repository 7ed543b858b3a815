//! Liveness: once everything is healed, every call ends, well or badly.

use crate::{
    model::{Ending, Outcome},
    verbs::{Ended, Side},
};

/// Its name.
pub const NAME: &str = "nobody waits for ever";

/// How a run breaks it.
pub fn check(outcome: &Outcome) -> Option<String> {
    let apps = outcome.apps.iter().map(|app| &app.ending);
    let waits = apps
        .chain([&outcome.ending])
        .find_map(|ending| match ending {
            Ending::Stuck(why) => Some(why.clone()),
            Ending::Endless => Some("it never came to rest".into()),
            Ending::Finished | Ending::Failed(_) | Ending::Crashed(_) => None,
        });
    waits.or_else(|| outcome.verbs.each(nothing_waits))
}

fn nothing_waits(_: &Ended, side: &Side, _: &Side) -> Result<(), String> {
    match side.waiting {
        0 => Ok(()),
        waiting => Err(format!("{waiting} sends wait")),
    }
}
