//! What must be true of every run with SCIF.

use super::{Ended, check};
use crate::scenario::{
    Invariant,
    invariant::{CONTRADICTION, ERRORS, MESSAGES, RDMA},
};

/// The memory of a window is given back once, and by the end of its connection.
pub const BACKINGS: &str = "memory is given back once";

/// All of them.
pub static ALL: [Invariant<Ended>; 7] = [
    Invariant::seen(CONTRADICTION),
    Invariant::seen(RDMA),
    Invariant::seen(BACKINGS),
    Invariant::checked(MESSAGES, check::messages),
    Invariant::progress(),
    Invariant::checked(ERRORS, check::errors),
    Invariant::leaks(),
];
