//! What can go wrong, for programs and for people.

use snaprig_scif::client::ScifError;
use snaprig_wire::{coi::Exit, scif::NodeId};

/// A call failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CoiError {
    /// SCIF said no.
    #[error(transparent)]
    Scif(#[from] ScifError),
    /// The card is gone (COI_PROCESS_DIED).
    #[error("card {node} is gone; restore a snapshot on another one")]
    CardLost {
        /// Its node.
        node: NodeId,
    },
    /// The offload process ended (COI_PROCESS_DIED).
    #[error("the offload process {pid} on card {node} died: {}", describe(.exit))]
    ProcessDied {
        /// The process.
        pid: i32,
        /// Its card.
        node: NodeId,
        /// How it ended.
        exit: Exit,
    },
    /// The card could not do it.
    #[error("card {node}: {why}")]
    Refused {
        /// Its node.
        node: NodeId,
        /// What it said.
        why: String,
    },
    /// It did not happen in time (COI_TIME_OUT_REACHED).
    #[error("timed out")]
    TimedOut,
    /// The card said something that makes no sense.
    #[error("card {node} broke the protocol in answer to {what}")]
    Protocol {
        /// Its node.
        node: NodeId,
        /// What was asked.
        what: &'static str,
    },
    /// An argument is out of range (COI_OUT_OF_RANGE).
    #[error("{0}")]
    OutOfRange(String),
    /// The host has no memory for it.
    #[error("no memory for {0}")]
    NoMemory(&'static str),
}

fn describe(exit: &Exit) -> String {
    match exit {
        Exit::Code(code) => format!("exit status {code}"),
        Exit::Signal(signal) => format!("signal {signal}"),
    }
}
