//! Transparent checkpoint and restart of trees of processes: the part that BLCR and MTCP play in the papers.
//!
//! ```text
//! launch:      supervisor --fork, exec--> program            the supervisor waits, and answers commands
//! checkpoint:  supervisor: freeze (ptrace) --> describe --> write pages --> let go
//! restart:     supervisor in namespaces of its own --> files --> processes with the numbers that they had
//!              --> memory, threads (ptrace) --> let go
//! ```
//! All of it is done from outside: nothing is preloaded, so what is static, or makes its system calls itself, is
//! no exception, and nothing is slower while no checkpoint is taken. Programs keep their numbers because they are
//! restarted in a PID namespace (clone(2), `set_tid`), which takes no privilege where user namespaces may be made.
//!
//! | module | what it is |
//! |---|---|
//! | `trace`, `remote`, `memory` | a held thread, the calls that it makes for us, its memory |
//! | `freeze` | stops a tree of processes, and lets it go |
//! | `state` | what an image says |
//! | `huge` | huge pages of this machine, and files of them |
//! | `userfault` | userfaultfds of processes |
//! | `track`, `ranges`, `spaces` | which pages are written to; what a chain of images has of them |
//! | `socket`, `flow`, `queue` | calls on sockets; what is on its way through a TCP connection; what its sender still has |
//! | `apart` | work that goes on if this process is killed |
//! | `job`, `carry` | trees that are checkpointed together; bytes that their supervisors hand each other |
//! | `sysv` | System V objects of an IPC namespace |
//! | `terminal` | settings and contents of pseudoterminals |
//! | `dump` | from processes to an image |
//! | `restart` | from an image to processes |
//! | `plugins` | what programs take down themselves before a checkpoint |
//! | `supervisor` | launch, commands, exit |
//! | `steps` | where a supervisor can be killed on purpose |
//! | `show` | what an image says, for people |
//!
//! What must stay true: a process that is let go is what it was; an image is complete or it is none; nothing of a
//! restarted tree runs before all of it has been read and checked.

mod apart;
mod carry;
mod dump;
mod error;
mod flow;
mod freeze;
mod huge;
mod job;
mod memory;
mod parallel;
mod plugins;
mod queue;
mod ranges;
mod remote;
mod restart;
mod show;
mod socket;
mod spaces;
mod state;
mod steps;
mod supervisor;
mod sysv;
mod terminal;
mod trace;
mod track;
mod userfault;

pub use snaprig_ckpt_image::interval::Policy;

pub use self::{
    error::{Error, Result},
    job::{
        Job, JobDump, JobDumped, JobMember, JobStatus, Settings, coordinate, dump_job, forget,
        job_status,
    },
    show::inspect,
    steps::STEPS,
    supervisor::{
        Address, Copied, Dumped, Migrated, Mode, Options, Pause, Reply, Request, Running, Schedule,
        Status, ask, launch, launch_in, receive, restart, restart_job,
    },
};
