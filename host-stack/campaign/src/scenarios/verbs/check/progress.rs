//! Liveness: once everything is healed, every request is completed, well or badly.

use super::{Ended, Outcome, Side};
use crate::scenario::invariant::waits;

/// How a run breaks it.
pub fn check(outcome: &Outcome<Ended>) -> Option<String> {
    waits(outcome).or_else(|| outcome.end.each(nothing_waits))
}

fn nothing_waits(_: &Ended, side: &Side, _: &Side) -> Result<(), String> {
    match side.waiting {
        0 => Ok(()),
        waiting => Err(format!("{waiting} sends wait")),
    }
}
