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
//! | `state` | what an image says |
//! | `dump` | from processes to an image |
//! | `restart` | from an image to processes |
//! | `huge` | huge pages of this machine, and files of them |
//! | `spaces` | what a chain of images has of pages |
//! | `socket`, `flow`, `queue` | calls on sockets; what is on its way through a TCP connection; what its sender still has |
//! | `apart` | work that goes on if this process is killed |
//! | `board`, `carry` | what supervisors of trees that are checkpointed together tell each other; bytes that they hand each other |
//! | `owned` | what belongs to plugins, and not into an image |
//! | `sysv` | System V objects of an IPC namespace |
//! | `terminal` | settings and contents of pseudoterminals |
//! | `show` | what an image says, for people |
//!
//! What must stay true: a process that is let go is what it was; an image is complete or it is none; nothing of a
//! restarted tree runs before all of it has been read and checked.

pub mod board;
mod calls;
mod copy;
mod detached;
pub mod dump;
pub mod error;
mod resources;
pub mod restart;
mod show;
pub mod spaces;
pub mod state;

pub use self::{
    error::{Error, Result},
    resources::plugins::owned,
    show::inspect,
};
