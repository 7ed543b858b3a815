//! Cards that carry more offload processes than their memory holds (paper section 5, process swapping): some are resident,
//! the others are out, and they take turns. Programs know nothing of it: where a card has no room for a process or a buffer
//! their library asks for some ([`snaprig_coi::gate`]), and what they ask of a process that is out waits until it is back.
//!
//! | module | what it is |
//! |---|---|
//! | [`policy`] | who leaves, who comes, who gets room: without I/O |
//! | [`Oversubscriber`] | its driver, for all programs of a rig |
//! | [`Report`] | how processes were treated |
//! | [`faults`] | where something can go wrong |

mod driver;
pub mod faults;
pub mod policy;
mod report;
mod service;
mod view;

use std::{io, path::PathBuf};

use snaprig_wire::scif::NodeId;

pub use self::{
    driver::{Options, Oversubscriber, tell_failing},
    report::{Report, Row},
};

/// Processes cannot take turns.
#[derive(Debug, thiserror::Error)]
pub enum OversubscribeError {
    /// Somebody has them do so already.
    #[error("another arbiter is at work in {rig}; there is one a rig")]
    Another {
        /// The rig's directory.
        rig: PathBuf,
    },
    /// Nobody has.
    #[error("nobody has processes take turns in {rig} (snaprig snapify oversubscribe): {source}")]
    Absent {
        /// The rig's directory.
        rig: PathBuf,
        /// What the host said.
        source: io::Error,
    },
    /// There is no such card.
    #[error("the rig has no card {node}, or it is not up (snaprig card list)")]
    NoCard {
        /// The card.
        node: NodeId,
    },
    /// The socket, or the directory of snapshots.
    #[error("{path}: {source}")]
    Io {
        /// Which.
        path: PathBuf,
        /// What the host said.
        source: io::Error,
    },
}
