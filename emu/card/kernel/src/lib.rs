//! The card kernel: what Linux is to programs, inside the VMM.
//!
//! Each guest thread is run by a host thread of its own (`run`): it executes ring-3 code on its
//! CPU until something needs the kernel, takes the one kernel lock, handles it, and goes on. A call
//! that must wait says for what and is tried again later ([`snaprig_card_driver::wait`]).
//!
//! Every subject is a file, or a folder whose `mod.rs` has what the kernel's tables keep of it, and whose `calls.rs`
//! has its calls: those know the tables, the tables know no call. `dispatch` knows all of them.
//!
//! | file or folder | what it is |
//! |---|---|
//! | `kernel`, `host` | the one lock; what the host does with a kernel |
//! | `state` | the tables: processes, threads, who waits for what |
//! | `start`, `run`, `park`, `cores`, `exit` | a thread's life; how many run at once |
//! | [`syscalls`], `dispatch`, `call` | system calls: what there is; from a number to a function; who calls |
//! | `mm` | address spaces and the calls that change them |
//! | [`elf`], `exec`, `clone` | programs and processes |
//! | [`checkpoint`] | processes to a stream and back |
//! | `signal`, `jobs`, `timers`, `signalfd` | signals, and what sends or stops at them |
//! | `futex`, `rseq`, `sched`, `time`, `limits`, `settings`, `credentials`, `pidfd`, `info` | the calls of those names |
//!
//! Files are a crate of their own (`snaprig_card_fs`), and so is what drivers plug in with (`snaprig_card_driver`).

mod call;
pub mod checkpoint;
mod clone;
mod cores;
mod credentials;
mod dispatch;
#[doc(hidden)]
pub mod elf;
mod exec;
mod exit;
mod futex;
mod guarded;
mod host;
mod info;
mod jobs;
mod kernel;
mod limits;
mod mm;
mod park;
mod pidfd;
mod rseq;
mod run;
mod sched;
mod settings;
mod signal;
mod signalfd;
mod start;
mod state;
pub mod syscalls;
mod time;
mod timers;

pub use self::{
    host::Spawn,
    kernel::{Config, Kernel},
    state::ExitStatus,
};
