//! What an offload process is doing, as those see it who look from outside.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::machine::Call;

/// What an offload process is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// It runs.
    #[default]
    Running,
    /// It runs, and is being copied.
    Copying,
    /// It is being paused.
    Pausing,
    /// It is paused, and has no snapshot yet.
    Paused,
    /// A snapshot of it is being taken.
    Capturing,
    /// It is paused, and its snapshot is complete.
    Captured,
    /// It is on no card.
    SwappedOut,
    /// It is coming back.
    Restoring,
    /// It is about to run.
    Resuming,
    /// It has ended.
    Ended,
}

impl Phase {
    /// While a call is at work.
    pub(crate) fn during(call: &Call) -> Self {
        match call {
            Call::Copy(_) => Self::Copying,
            Call::Pause | Call::PauseToMove => Self::Pausing,
            Call::Capture(_) => Self::Capturing,
            Call::Resume => Self::Resuming,
            Call::Restore(_) => Self::Restoring,
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Running => "running",
            Self::Copying => "copying",
            Self::Pausing => "pausing",
            Self::Paused => "paused",
            Self::Capturing => "capturing",
            Self::Captured => "captured",
            Self::SwappedOut => "swapped-out",
            Self::Restoring => "restoring",
            Self::Resuming => "resuming",
            Self::Ended => "ended",
        })
    }
}
