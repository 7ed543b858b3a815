//! What can go wrong, and what to do about it.

use std::{io, path::PathBuf};

use libc::pid_t;
use snaprig_tracee::error::name_of;

/// Result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a checkpoint or a restart has failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A thread could not be held, or asked.
    #[error(transparent)]
    Tracee(#[from] snaprig_tracee::error::Error),
    /// A process ended while its memory was read.
    #[error("process {pid} was killed during the checkpoint: none was taken; try again")]
    Killed {
        /// Its number.
        pid: pid_t,
    },
    /// A process ended while others waited for what its plugins had promised.
    #[error(
        "process {pid} ended during the checkpoint, when others could wait for it ({what}): none was taken; try again"
    )]
    Ended {
        /// Its number.
        pid: pid_t,
        /// Which plugin.
        what: String,
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
    /// What has to do with the job.
    #[error("{what}")]
    Job {
        /// What is wrong.
        what: String,
    },
    /// A call to the coordinator failed.
    #[error(transparent)]
    Call(#[from] snaprig_coord::message::CallError),
    /// The coordinator is not to be had.
    #[error(transparent)]
    Connect(#[from] snaprig_coord::driver::ConnectError),
    /// A job's directory.
    #[error(transparent)]
    Directory(#[from] snaprig_coord::job::JobError),
    /// What both sides of a connection are to know.
    #[error(transparent)]
    Token(#[from] snaprig_peers::TokenError),
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
    /// A call of this process that failed.
    pub fn io(what: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::Io {
            what: what.into(),
            source: source.into(),
        }
    }

    /// It is worth another try.
    pub fn for_now(self) -> Self {
        Self::NotNow(Box::new(self))
    }

    /// It is because somebody has ended, without whom another try is made.
    pub fn is_end(&self) -> bool {
        matches!(self, Self::NotNow(error) if matches!(**error, Self::Ended { .. }))
    }

    /// An older checkpoint may be whole.
    pub fn is_damage(&self) -> bool {
        matches!(
            self,
            Self::Image(_) | Self::Chain(_) | Self::Store(_) | Self::Damaged { .. }
        )
    }

    /// What a process has that cannot be saved.
    pub fn refused(pid: pid_t, what: impl Into<String>) -> Self {
        Self::Refused {
            pid,
            name: name_of(pid),
            what: what.into(),
        }
    }
}

/// An error with its sources, on one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let sources = std::iter::successors(error.source(), |error| error.source());
    sources.fold(error.to_string(), |text, source| {
        format!("{text}: {source}")
    })
}
