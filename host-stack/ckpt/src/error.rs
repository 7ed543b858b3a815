//! What can go wrong, and what to do about it.

use std::{io, path::PathBuf};

use libc::pid_t;

/// Result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a checkpoint or a restart has failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A thread ended while it was looked at.
    #[error("thread {tid} has ended")]
    Gone {
        /// Its number.
        tid: pid_t,
    },
    /// A process ended while its memory was read.
    #[error("process {pid} was killed during the checkpoint: none was taken; try again")]
    Killed {
        /// Its number.
        pid: pid_t,
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
    /// What a process has cannot be saved.
    #[error("process {pid} ({name}) cannot be checkpointed: {what}")]
    Refused {
        /// The process.
        pid: pid_t,
        /// Its name.
        name: String,
        /// What it has.
        what: String,
    },
    /// What a process has cannot be saved now, but most likely soon.
    #[error("{0}")]
    NotNow(Box<Error>),
    /// What an image needs is not there, or not what it was.
    #[error("cannot restart: {what}")]
    Missing {
        /// What.
        what: String,
    },
    /// A file is not what it should be.
    #[error("{}: {what}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
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
    /// An image cannot be read.
    #[error(transparent)]
    Image(#[from] snaprig_ckpt_image::image::ImageError),
    /// A directory of checkpoints.
    #[error(transparent)]
    Store(#[from] snaprig_ckpt_image::store::StoreError),
    /// A chain of images cannot be read.
    #[error(transparent)]
    Chain(#[from] snaprig_ckpt_image::chain::ChainError),
    /// A checkpoint turned out to be damaged when it was restarted.
    #[error("{what}")]
    Damaged {
        /// What is wrong.
        what: String,
    },
    /// The other side, or another process of this one, has said no.
    #[error("{what}")]
    Refusal {
        /// What it has said.
        what: String,
    },
    /// An image cannot be written.
    #[error(transparent)]
    Write(#[from] snaprig_ckpt_image::image::WriteError),
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

    /// It is worth another try.
    pub(crate) fn for_now(self) -> Self {
        Self::NotNow(Box::new(self))
    }

    /// An older checkpoint may be whole.
    pub(crate) fn is_damage(&self) -> bool {
        matches!(
            self,
            Self::Image(_) | Self::Chain(_) | Self::Store(_) | Self::Damaged { .. }
        )
    }

    pub(crate) fn refused(pid: pid_t, what: impl Into<String>) -> Self {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        Self::Refused {
            pid,
            name: name.trim_end().into(),
            what: what.into(),
        }
    }
}
