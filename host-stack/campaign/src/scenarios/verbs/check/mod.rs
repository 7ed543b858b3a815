//! What is checked of queue pairs when a run has ended: one invariant a file.

pub mod atomics;
pub mod completions;
pub mod errors;
pub mod messages;
pub mod patience;
pub mod progress;
pub mod rdma;
pub mod unreliable;

use super::{Ended, GRH_BYTES, Side};
use crate::scenario::Outcome;
