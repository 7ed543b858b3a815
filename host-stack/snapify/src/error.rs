//! What can go wrong.

use snaprig_coi::CoiError;
use snaprig_scif::client::ScifError;
use snaprig_snapify_io::sums::StoreError;

use crate::Step;

/// Why a call of Snapify failed.
#[derive(Debug, thiserror::Error)]
pub enum SnapifyError {
    /// The offload stack.
    #[error(transparent)]
    Coi(#[from] CoiError),
    /// The snapshot's files.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The connection to the daemon.
    #[error("card {node} is gone in the middle of {step:?}: {source}")]
    CardLost {
        /// The card.
        node: u16,
        /// What was being done.
        step: Step,
        /// What SCIF said.
        source: ScifError,
    },
    /// The card could not do it.
    #[error("{step:?} failed on card {node}: {why}")]
    Failed {
        /// The card.
        node: u16,
        /// What was being done.
        step: Step,
        /// What it said.
        why: String,
    },
    /// It cannot be restored there.
    #[error("the rig has no card {node}, or it is not up (snaprig card list)")]
    NoCard {
        /// The card.
        node: u16,
    },
    /// The calls are out of order.
    #[error("{0}")]
    Order(&'static str),
    /// Host, daemon and offload process did not get to the end of it.
    #[error("{0:?} did not end in time")]
    Stuck(Step),
    /// It did not happen in time.
    #[error("the capture is not finished yet")]
    TimedOut,
}
