//! What must be true of every migration.

use super::Ended;
use crate::scenario::{Invariant, Outcome, invariant::PROGRESS};

/// At no time does the tree run in two places, or run when it has ended already.
pub const NEVER_TWO: &str = "never two of it";
/// Once nothing goes wrong any more, the tree runs somewhere, and comes to its end.
const NEVER_NONE: &str = "never none of it";
/// Wherever the tree ran, it has ended with what it computes when nothing goes wrong.
pub const UNDISTURBED: &str = "equals the undisturbed run";

/// All of them.
pub static ALL: [Invariant<Ended>; 4] = [
    Invariant::seen(NEVER_TWO),
    Invariant::seen(UNDISTURBED),
    Invariant::checked(NEVER_NONE, none),
    Invariant::of_progress(PROGRESS, |outcome| outcome.ending.waits()),
];

fn none(outcome: &Outcome<Ended>) -> Option<String> {
    let is_over = outcome.ending == crate::scenario::Ending::Finished;
    (is_over && outcome.end.results.is_empty()).then(|| "the tree runs nowhere any more".into())
}
