//! The DMA path: an asynchronous copy engine over shared-memory regions.
//!
//! | module | what it is |
//! |---|---|
//! | [`region`] | a sealed memfd, mapped, or a file: what may be copied from and to |
//! | [`engine`] | queues, the thread that works them off, completions |
//! | `schedule` | which chunk runs next: a state machine with no I/O |
//! | [`restrict`] | io_urings that do what they were made for and nothing else |
//! | `mover` | what moves a chunk: io_uring, or threads with pread(2) where there is none |
//!
//! ```text
//! submit(queue, copies, done) --> queue --> copy by copy:  up to 1 MiB: a mapped store
//!                                                          longer: chunks of 1 MiB, on movers and here
//!                                                          files that may shrink: pread, pwrite here
//!                         done(Ok | index, errno) <-- after the last copy, or the first that fails
//! ```
//!
//! What must stay true: within a queue, a copy starts after every earlier one is complete, so that
//! a flag written last is seen last; nothing outside a region is ever read or written; a region
//! stays mapped while any copy uses it; every `done` is called exactly once.

pub mod engine;
mod mover;
pub mod region;
pub mod restrict;
mod schedule;

pub use engine::{Backend, Copy, CopyError, Done, Engine, EngineError, RegionId};
pub use region::{RegionError, Shared};
