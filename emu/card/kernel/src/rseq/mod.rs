//! Restartable sequences (the kernel's Documentation/userspace-api/rseq.rst): a thread learns from
//! memory which core it is on, and a critical section in which it lost its core, or had a signal,
//! starts again at its abort handler.
//!
//! What must stay true: while a thread is in ring 3 nobody else is there on the core that its `cpu_id`
//! names. So a section is aborted whenever the thread leaves ring 3 within it: its core may have
//! been another's before it comes back.

mod calls;
pub mod section;

use serde::{Deserialize, Serialize};

const UNREGISTER: i32 = 1;
/// `struct rseq` when it was new, and what it must be aligned to then.
const ORIGINAL_BYTES: u32 = 32;
/// Offset of the end of what is known of it.
pub const FEATURE_BYTES: u32 = 28;
/// What `struct rseq` is aligned to.
pub const ALIGN: u64 = 32;
/// `cpu_id` of a thread that is not registered.
const UNINITIALIZED: u32 = u32::MAX;
const CRITICAL_SECTION_AT: u64 = 8;
const NODE_AT: u64 = 20;

/// A thread's registration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rseq {
    /// Where its `struct rseq` is; 0: it has none.
    address: u64,
    bytes: u32,
    signature: u32,
    /// The core that is told there.
    core: Option<u32>,
}

impl Rseq {
    /// Whether another core than `core` is told.
    pub fn is_elsewhere(&self, core: u32) -> bool {
        self.address != 0 && self.core != Some(core)
    }

    /// In a restored process, which tells its core before it runs.
    pub fn moved(self) -> Self {
        Self { core: None, ..self }
    }
}
