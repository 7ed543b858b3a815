//! Shared receive queues.

use crate::{cell::U32, lock::Lock, queue::Queue};

/// A shared receive queue. `queue.taken` moves under its lock: many queue pairs take from it.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Srq {
    /// 1 if it is in use.
    pub used: U32,
    /// Owner's slot in the table of processes.
    pub process: U32,
    /// HCA.
    pub hca: U32,
    /// Protection domain.
    pub pd: U32,
    /// Receives, in the order they were posted.
    pub queue: Queue,
    /// Held while receives are posted.
    pub post_lock: Lock,
    /// Held while one is taken.
    pub take_lock: Lock,
    /// Fewer receives than this raise an event, once; 0: never (ibv_modify_srq(3)).
    pub limit: U32,
    /// Of an XRC queue: its domain + 1; else 0.
    pub xrc_domain: U32,
    /// Of an XRC queue: its completion queue.
    pub cq: U32,
}
