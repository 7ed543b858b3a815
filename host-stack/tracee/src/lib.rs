//! Threads of other processes: how they are stopped, asked, and let go as they were.
//!
//! ```text
//! freeze:  a tree of processes --> seize, stop, hold --> registers, masks
//! ask:     map a stub --> tables of system calls, made by the threads themselves --> unmap it
//! let go:  every thread is where it was
//! ```
//! Everything is done from outside with ptrace(2) and /proc. Nothing here knows what a checkpoint is.
//!
//! | module | what it is |
//! |---|---|
//! | `trace`, `remote`, `memory` | a held thread, the calls that it makes for us, its memory |
//! | `tree`, `freeze` | which processes a supervisor's are; stops them, and lets them go |
//! | `code`, `stub` | where a process has code, and the calls of its tracer beside it |
//! | `descriptors` | descriptors of processes, compared and copied |
//! | `pagemap`, `ranges` | which pages there are, and sets of them |
//! | `userfault`, `track` | userfaultfds of processes, and which pages are written to |
//! | `parallel` | work on all processors |
//! | `faults` | where a tracer can be killed on purpose |
//!
//! What must stay true: a process that is let go is what it was, and so it is if its tracer is killed at any step.

pub mod code;
pub mod descriptors;
pub mod error;
pub mod faults;
pub mod freeze;
pub mod memory;
pub mod pagemap;
pub mod parallel;
pub mod ranges;
pub mod remote;
pub mod stub;
pub mod trace;
pub mod track;
pub mod tree;
pub mod userfault;
