//! Checkpoints of trees of processes: from processes that stand still to an image, and from an image to processes. What
//! stops processes and asks them is `snaprig-tracee`; what launches trees and takes checkpoints of them over time is
//! `snaprig-supervisor`.
//!
//! ```text
//! checkpoint:  frozen tree --> describe --> write pages --> let go
//! restart:     namespaces of its own --> files --> processes with the numbers that they had
//!              --> memory, threads (ptrace) --> let go
//! ```
//! All of it is done from outside: nothing is preloaded, so what is static, or makes its system calls itself, is
//! no exception, and nothing is slower while no checkpoint is taken. Programs keep their numbers because they are
//! restarted in a PID namespace (clone(2), `set_tid`), which takes no privilege where user namespaces may be made.
//!
//! | module | what it is |
//! |---|---|
//! | `dump` | from processes to an image |
//! | `restart` | from an image to processes |
//! | `show` | what an image says, for people |
//!
//! What an image says is in `snaprig-resources`, and so is all state that is not registers and memory of one process, by
//! kind.
//!
//! What must stay true: a process that is let go is what it was; an image is complete or it is none; nothing of a
//! restarted tree runs before all of it has been read and checked.

pub mod dump;
pub mod faults;
mod locks;
pub mod restart;
mod show;

pub use snaprig_resources::error::{Error, Result};

pub use self::show::inspect;
