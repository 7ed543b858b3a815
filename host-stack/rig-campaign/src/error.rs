//! What can go wrong with the processes of a run.

use std::{io, process::ExitStatus};

use snaprig_rig::RigError;
use snaprig_sim::plan::PlanError;
use snaprig_snapify::control::ControlError;

/// Why a run cannot be made, or not go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It took longer than it may.
    #[error("{what} did not end in time")]
    TimedOut {
        /// What.
        what: String,
    },
    /// The host process did not do what it was told.
    #[error("{step}: {source}")]
    Command {
        /// The step that the command is of.
        step: String,
        /// Why.
        source: ControlError,
    },
    /// It cannot be controlled.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The host process ended before it was ready.
    #[error("the host process did not start: {0}")]
    HostStart(ExitStatus),
    /// A restart ended before the program went on.
    #[error("the checkpoint was not restarted")]
    Restart,
    /// The process that is to hold a rig says no place of one.
    #[error("the rig did not start")]
    RigStart,
    /// The rig itself did not start.
    #[error(transparent)]
    Rig(#[from] RigError),
    /// An order to the process of a rig that is none.
    #[error("{0:?} is no order; orders are: daemon N, reset N")]
    Order(String),
    /// The plan's parameters are not those of its scenario.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The host.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Any of these, beside what the processes of the run have said.
    #[error("{source}\n{said}")]
    Said {
        /// Why.
        source: Box<Error>,
        /// What they said.
        said: String,
    },
}

impl Error {
    /// The same, beside what was said.
    pub(crate) fn said(self, said: String) -> Self {
        let source = Box::new(self);
        Self::Said { source, said }
    }
}

impl From<rustix::io::Errno> for Error {
    fn from(errno: rustix::io::Errno) -> Self {
        Self::Io(errno.into())
    }
}
