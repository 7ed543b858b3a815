//! What must be true of every run of plugins. The run itself sees all of it.

use crate::scenario::{Invariant, invariant::MESSAGES};

/// What was sent before a checkpoint has been received in it, and nothing else.
pub const DRAINED: &str = "what is saved is drained";
/// A checkpoint has all that plugins were to finish while their programs ran on.
pub const FINISHED: &str = "a checkpoint is whole";
/// No plugin is in a phase before all of all trees have passed the one before.
pub const TOGETHER: &str = "all pass a phase together";
/// No program of a restart runs before the last plugin of the last tree has refilled.
pub const BEFORE_GO: &str = "nothing runs before all have rebuilt";
/// Whoever was told to quiesce runs on, whatever became of the checkpoint.
pub const RESUMED: &str = "all run on after a checkpoint";

/// Who has ended in a checkpoint is not waited for, but until those who would wait have heard of it.
pub const PROMPT: &str = "nobody waits for who has ended";
/// A checkpoint that was given up because somebody ended is made of the rest.
pub const MADE: &str = "who has ended spoils no checkpoint";

/// All of them.
pub static ALL: [Invariant<()>; 8] = [
    Invariant::seen(DRAINED),
    Invariant::seen(FINISHED),
    Invariant::seen(TOGETHER),
    Invariant::seen(BEFORE_GO),
    Invariant::seen(RESUMED),
    Invariant::seen(PROMPT),
    Invariant::seen(MADE),
    Invariant::seen(MESSAGES),
];
