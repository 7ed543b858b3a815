//! What must be true of every migration through pipelines.

use super::Ended;
use crate::scenario::{Ending, Invariant, Outcome, invariant::PROGRESS};

/// At no time does a tree run in two places, or run when it has ended already.
pub const NEVER_TWO: &str = "never two of a process";
/// A stream that is whole has the bytes that were written, in order.
pub const BYTES: &str = "bytes read are bytes written";
/// No memory is somebody else's while a peer may reach it.
pub const RECYCLED: &str = "no chunk is recycled too early";
/// No manager has more chunks than its pool.
pub const BOUNDED: &str = "memory is bounded";
/// Nobody who is honest is told that what it says makes no sense, or that its bytes are wrong.
pub const HONEST: &str = "the honest are believed";
/// Wherever a tree ran, it has ended with what it computes when nothing goes wrong.
pub const UNDISTURBED: &str = "equals the undisturbed run";
/// Once nothing goes wrong any more, every tree runs somewhere, and comes to its end.
const NEVER_NONE: &str = "never none of a process";
/// When nothing goes wrong, every move succeeds that has memory at the target, though a reader is slow.
pub const UNHINDERED: &str = "nobody is hindered by others";

/// All of them.
pub static ALL: [Invariant<Ended>; 9] = [
    Invariant::seen(NEVER_TWO),
    Invariant::seen(BYTES),
    Invariant::seen(RECYCLED),
    Invariant::seen(BOUNDED),
    Invariant::seen(HONEST),
    Invariant::seen(UNDISTURBED),
    Invariant::checked(NEVER_NONE, none),
    Invariant::checked(UNHINDERED, hindered),
    Invariant::of_progress(PROGRESS, |outcome| outcome.ending.waits()),
];

fn none(outcome: &Outcome<Ended>) -> Option<String> {
    let is_over = outcome.ending == Ending::Finished;
    let lost = outcome.end.results.iter().position(Vec::is_empty)?;
    is_over.then(|| format!("tree {} runs nowhere any more", lost + 1))
}

fn hindered(outcome: &Outcome<Ended>) -> Option<String> {
    let first = outcome.end.failed.first().filter(|_| outcome.faults == 0);
    first.map(|why| format!("a move has failed, and nothing went wrong: {why}"))
}
