//! What can go wrong with threads of other processes.

use std::io;

use libc::pid_t;

/// Result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a thread could not be held, or asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A thread ended while it was looked at.
    #[error("thread {tid} has ended")]
    Gone {
        /// Its number.
        tid: pid_t,
    },
    /// A thread does not stop.
    #[error(
        "thread {tid} does not stop: it waits for a child of vfork(2), or for a device; try again"
    )]
    Stuck {
        /// Its number.
        tid: pid_t,
    },
    /// A thread cannot be traced.
    #[error("thread {tid}: {call}")]
    Trace {
        /// The call that failed.
        call: &'static str,
        /// The thread.
        tid: pid_t,
        /// Why.
        source: io::Error,
    },
    /// A call on behalf of a process failed.
    #[error("process {pid}: {what}")]
    Process {
        /// The process, as it sees itself.
        pid: pid_t,
        /// What was tried.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
    /// A process has what keeps it from being asked.
    #[error("process {pid} ({name}) cannot be checkpointed: {what}")]
    Refused {
        /// The process.
        pid: pid_t,
        /// Its name.
        name: String,
        /// What it has.
        what: String,
    },
    /// A call of this process failed.
    #[error("{what}")]
    Io {
        /// What was tried.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
    /// /proc says something that cannot be understood.
    #[error("/proc")]
    Proc(#[from] procfs::ProcError),
}

impl Error {
    pub(crate) fn trace(call: &'static str, tid: pid_t, source: io::Error) -> Self {
        Self::Trace { call, tid, source }
    }

    pub(crate) fn io(what: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::Io {
            what: what.into(),
            source: source.into(),
        }
    }

    pub(crate) fn refused(pid: pid_t, what: impl Into<String>) -> Self {
        Self::Refused {
            pid,
            name: name_of(pid),
            what: what.into(),
        }
    }
}

/// The name of a process; empty if it has ended.
pub fn name_of(pid: pid_t) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim_end().into()
}
