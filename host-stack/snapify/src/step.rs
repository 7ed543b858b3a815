//! The steps of Snapify's calls: places where time is measured and where things can fail.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A step, named as in the paper's sections 4.1 to 4.3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// An image goes through Snapify-IO while the process works.
    Copy,
    /// The card that it will come back on reads such an image.
    Preload,
    /// Pause: host, daemon and offload process agree (steps 1 to 3 of figure 3).
    Agree,
    /// Pause: the host's locks and the Shutdown marker.
    Lock,
    /// Pause: the offload process drains its channels and saves its local store (step 4).
    Drain,
    /// Capture: the process image goes through Snapify-IO.
    Capture,
    /// Capture: the snapshot takes its name.
    Commit,
    /// Restore: every byte of the snapshot is verified.
    Verify,
    /// Restore: local store, binaries and image go to the card, and the process starts.
    Restore,
    /// Restore: channels are connected and windows registered anew.
    Reconnect,
    /// Resume: the offload process releases its locks.
    Resume,
}

impl Step {
    /// All of them, in order.
    pub const ALL: [Self; 11] = [
        Self::Copy,
        Self::Preload,
        Self::Agree,
        Self::Lock,
        Self::Drain,
        Self::Capture,
        Self::Commit,
        Self::Verify,
        Self::Restore,
        Self::Reconnect,
        Self::Resume,
    ];
}

/// A step that begins (`elapsed` is `None`) or has ended well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepReport {
    /// Which.
    pub step: Step,
    /// How long it took.
    pub elapsed: Option<Duration>,
    /// Bytes that it moved.
    pub bytes: u64,
}
