//! What must be true of every run of checkpoints with queue pairs. The run sees all of it.

use crate::scenario::{
    Invariant,
    invariant::{MESSAGES, PROGRESS, RDMA},
};

/// One for each signaled request and for each receive that a message took; flushed ones too.
pub const COMPLETIONS: &str = "every completion comes once, none is lost or invented";
/// A connection on which nothing goes wrong does not fail of a checkpoint.
pub const CONNECTED: &str = "a checkpoint breaks no connection";
/// What is saved has no message under way.
pub const CUT: &str = "the cut is consistent";
/// What is unreliable loses what the fabric loses, and no more.
pub const UNRELIABLE: &str = "a checkpoint loses no datagram";

/// All of them.
pub static ALL: [Invariant<()>; 7] = [
    Invariant::seen(COMPLETIONS),
    Invariant::seen(CONNECTED),
    Invariant::seen(CUT),
    Invariant::seen(UNRELIABLE),
    Invariant::seen(RDMA),
    Invariant::seen(MESSAGES),
    Invariant::seen(PROGRESS),
];
