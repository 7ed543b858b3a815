//! What must be true of every run on oversubscribed cards.

use super::Ended;
use crate::scenario::{Invariant, Outcome};

/// Whoever is told that there is room finds it, unless somebody took it who did not ask.
pub const PROMISED: &str = "no room is promised twice";
/// A process leaves a card for others only when its stay was long enough.
pub const WORTH: &str = "a stay is worth its swaps";
/// A card that is said to fail in time takes nobody with it.
pub const EVACUATED: &str = "nobody is left on a card that fails";
/// Where nothing goes wrong every program comes to its end.
const COMPLETE: &str = "oversubscribed programs come to their ends";

/// All of them.
pub static ALL: [Invariant<Ended>; 4] = [
    Invariant::seen(PROMISED),
    Invariant::seen(WORTH),
    Invariant::seen(EVACUATED),
    Invariant::checked(COMPLETE, incomplete),
];

/// Why a program has no process: that is no failure.
pub const FAILING: &str = "its card is about to fail";

fn incomplete(outcome: &Outcome<Ended>) -> Option<String> {
    let mut failed = outcome.end.failed.iter();
    let why = failed.find(|why| **why != FAILING)?;
    (outcome.faults == 0).then(|| format!("a program gave up: {why}"))
}
