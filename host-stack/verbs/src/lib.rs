//! `libibverbs.so.1` for machines without InfiniBand, and the control daemon of its fabric.
//!
//! ```text
//!   program --C ABI--> ffi --> client --Request--> daemon: Control, timers, faults
//!                               |  \                  |
//!                               |   +-- pool, peers --+-- memory of registered pages (memfd)
//!                               +------- device memory (memfd), shared by all ------+
//! ```
//!
//! | module | what it is |
//! |---|---|
//! | `ffi` | the C functions of libibverbs |
//! | `interpose` | functions of libc by which programs find the files of `snaprig_verbs_files` |
//! | [`client`] | a process's share of a fabric: device memory, its pool, its peers' |
//! | [`daemon`] | the process that owns the control plane of one fabric |
//!
//! Where a fabric is, how it starts, and what is said to its daemon: `snaprig_fabric`.
//!
//! What must stay true: no data passes the daemon on a clean path; the daemon starts with the first
//! user and ends with the last; whatever a process had is gone when the process is.

pub mod client;
pub mod daemon;
mod ffi;
mod interpose;

use snaprig_fabric::{place, protocol, socket, start};
