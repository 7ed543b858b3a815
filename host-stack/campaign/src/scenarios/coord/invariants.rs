//! What must be true of every run of a job. The run itself sees all of it.

use crate::scenario::{Invariant, invariant::MESSAGES};

/// A checkpoint that is offered is whole: every member's image, as it was written, of all members.
pub const HALF: &str = "no half checkpoint is offered";
/// Whether a round is a checkpoint is decided once, by the name of its manifest: nobody is told
/// otherwise, before or after.
pub const DECIDED: &str = "a round is decided once";
/// Whoever was stopped for a checkpoint runs on, whatever became of that: unless it was to end.
pub const RESUMED: &str = "all run on after a checkpoint";
/// The last complete checkpoint of a job restarts, with all of its members.
pub const RESTARTS: &str = "the last complete checkpoint restarts";

/// All of them.
pub static ALL: [Invariant<()>; 5] = [
    Invariant::seen(HALF),
    Invariant::seen(DECIDED),
    Invariant::seen(RESUMED),
    Invariant::seen(RESTARTS),
    Invariant::seen(MESSAGES),
];
