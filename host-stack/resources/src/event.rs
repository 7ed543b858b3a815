//! What happens that is no error of whoever asked, and that people want to know: it is told to an observer, who prints it,
//! counts it, or does nothing.

use std::{
    fmt::{self, Display},
    io,
    path::PathBuf,
    sync::Arc,
};

use crate::error::{Error, chain};

/// Something that has happened.
#[derive(Debug)]
pub enum Event {
    /// Writes to memory cannot be tracked on this machine: every checkpoint is a full one.
    WritesUntracked {
        /// Why.
        source: io::Error,
    },
    /// A limit of the kernel (sysctl(8)) is not what it was at the checkpoint, and cannot be set.
    LimitDiffers {
        /// Its file.
        path: String,
        /// What it was.
        was: String,
        /// What it is.
        is: String,
        /// Why it cannot be set.
        source: io::Error,
    },
    /// A restart waits until earlier connections of a port are gone.
    PortWaits {
        /// The port.
        port: u16,
    },
    /// A terminal has another number than it had.
    TerminalRenumbered {
        /// N of /dev/pts/N, at the checkpoint.
        was: u32,
        /// The same, now.
        is: u32,
    },
    /// A file has changed since the checkpoint, and is what it was then.
    FileSetBack {
        /// The file.
        path: PathBuf,
        /// Where what it was before the restart is.
        kept: PathBuf,
    },
    /// A tree that moves has ordinary pages from now on, where it had huge ones.
    OrdinaryPages {
        /// Why.
        why: String,
    },
    /// The tree was launched with a descriptor that whoever restarts it does not have.
    DescriptorMissing {
        /// Its number.
        number: i32,
    },
    /// A process of a restart, or of a job, cannot go on.
    Failed {
        /// Why.
        why: String,
    },
    /// A checkpoint that was due, and that nobody waits for, was not taken.
    NotTaken {
        /// Why.
        why: String,
    },
    /// Checkpoints that are too many cannot be removed.
    OlderStay {
        /// Why.
        why: String,
    },
    /// A checkpoint is damaged: an older one is restarted.
    PassedOver {
        /// Its round.
        round: u64,
        /// What is wrong with it.
        why: String,
    },
    /// Somebody has connected to a receiver of migrations, and has not proven who it is.
    ConnectionRefused {
        /// Why.
        source: io::Error,
    },
    /// It is not known whether a tree that migrates is at its target, which does not answer.
    MigrationInDoubt {
        /// The target.
        to: String,
    },
    /// Those from whom a tree has come cannot ask whether it has.
    SourcesUnanswered {
        /// Why.
        why: String,
    },
    /// A member of a job could not undo its part of a round.
    NotUndone {
        /// The round.
        round: u64,
        /// Why it is undone.
        reason: String,
        /// What went wrong.
        why: String,
    },
    /// The coordinator of a job does not want a member.
    MemberRefused {
        /// Why.
        why: String,
    },
}

impl Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WritesUntracked { source } => write!(
                f,
                "writes cannot be tracked here, so that every checkpoint is a full one: userfaultfd: {source}"
            ),
            Self::LimitDiffers {
                path,
                was,
                is,
                source,
            } => write!(f, "{path} was {was} and is {is}: {source}"),
            Self::PortWaits { port } => write!(
                f,
                "port {port} was bound without SO_REUSEADDR: it is waited for what is left of its connections \
                 (TIME_WAIT, a minute at most)"
            ),
            Self::TerminalRenumbered { was, is } => {
                write!(f, "the terminal /dev/pts/{was} is /dev/pts/{is} now")
            }
            Self::FileSetBack { path, kept } => write!(
                f,
                "{} has changed since the checkpoint and is set back; what it was is {}",
                path.display(),
                kept.display()
            ),
            Self::DescriptorMissing { number } => write!(
                f,
                "nothing is at descriptor {number}, which the program was launched with"
            ),
            Self::Failed { why } => f.write_str(why),
            Self::NotTaken { why } => write!(f, "no checkpoint was taken: {why}"),
            Self::OlderStay { why } => write!(f, "older checkpoints stay: {why}"),
            Self::OrdinaryPages { why } => {
                write!(f, "ordinary pages in place of huge ones: {why}")
            }
            Self::PassedOver { round, why } => {
                write!(f, "checkpoint {round} is passed over: {why}")
            }
            Self::ConnectionRefused { source } => write!(f, "a connection was refused: {source}"),
            Self::MigrationInDoubt { to } => write!(
                f,
                "{to} does not say whether the program goes on there: it is asked until it does, and the program does \
                 not run here meanwhile"
            ),
            Self::SourcesUnanswered { why } => write!(
                f,
                "whoever this program came from cannot ask whether it is here: {why}"
            ),
            Self::NotUndone { round, reason, why } => {
                write!(f, "checkpoint {round} is undone ({reason}), but: {why}")
            }
            Self::MemberRefused { why } => write!(f, "there will be no checkpoints: {why}"),
        }
    }
}

/// Somebody who is told what happens: also by other threads, and by forks of the process.
pub trait Observer: Send + Sync {
    /// Something has happened.
    fn observe(&self, event: &Event);
}

impl<F: Fn(&Event) + Send + Sync> Observer for F {
    fn observe(&self, event: &Event) {
        self(event);
    }
}

/// Who is told; by default, nobody.
#[derive(Clone, Default)]
pub struct Reporter(Option<Arc<dyn Observer>>);

impl Reporter {
    /// An observer is told.
    pub fn to(observer: impl Observer + 'static) -> Self {
        Self(Some(Arc::new(observer)))
    }

    /// A process cannot go on.
    pub fn failed(&self, error: &Error) {
        self.tell(Event::Failed { why: chain(error) });
    }

    /// Something has happened.
    pub fn tell(&self, event: Event) {
        match &self.0 {
            Some(observer) => observer.observe(&event),
            None => tracing::info!(%event, "nobody observes"),
        }
    }
}

impl fmt::Debug for Reporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let observed = if self.0.is_some() {
            "observed"
        } else {
            "nobody"
        };
        write!(f, "Reporter({observed})")
    }
}
