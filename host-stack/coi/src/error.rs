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
        /// A Linux error number, or 0.
        errno: i32,
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
    /// The host has no memory for it (COI_OUT_OF_MEMORY).
    #[error("no memory for {0}")]
    NoMemory(&'static str),
    /// It may work later (COI_RETRY).
    #[error("{0}")]
    Retry(&'static str),
    /// There is no such thing, or no more (COI_INVALID_HANDLE).
    #[error("{0}")]
    InvalidHandle(String),
    /// What is copied overlaps with where it is copied to (COI_MEMORY_OVERLAP).
    #[error("source and destination overlap")]
    Overlap,
    /// A user event was unregistered (COI_EVENT_CANCELED).
    #[error("the event was unregistered")]
    Canceled,
    /// Arguments do not fit each other (COI_ARGUMENT_MISMATCH).
    #[error("{0}")]
    Mismatch(String),
    /// This cannot be done with that (COI_NOT_SUPPORTED).
    #[error("{0}")]
    NotSupported(&'static str),
    /// Something that has to be there is not (COI_MISSING_DEPENDENCY).
    #[error("{0}")]
    Missing(String),
    /// There is no more of it (COI_RESOURCE_EXHAUSTED).
    #[error("{0}")]
    Exhausted(String),
    /// It is not in that state yet (COI_NOT_INITIALIZED).
    #[error("{0}")]
    NotInitialized(String),
    /// No such name or file (COI_DOES_NOT_EXIST).
    #[error("{0}")]
    DoesNotExist(String),
    /// No file of that kind (COI_INVALID_FILE).
    #[error("{0}")]
    InvalidFile(String),
    /// Made for another machine (COI_BINARY_AND_HARDWARE_MISMATCH).
    #[error("{0} is not for x86-64 Linux, which is what the cards run")]
    WrongMachine(String),
    /// It is loaded already, under this number (COI_ALREADY_EXISTS).
    #[error("the library is loaded already")]
    LibraryLoaded(u64),
}

impl CoiError {
    /// The number that COIRESULT_common.h has for it.
    pub fn code(&self) -> u32 {
        match self {
            Self::Scif(error) => match error.errno {
                libc::ENOMEM => 13,
                libc::ECONNRESET | libc::ENODEV | libc::ENOTCONN => 23,
                libc::ETIMEDOUT => 9,
                libc::ENXIO => 2,
                _ => 1,
            },
            Self::CardLost { .. } | Self::ProcessDied { .. } => 23,
            Self::Refused { errno, .. } => match *errno {
                libc::ENOMEM | libc::ENOSPC => 16,
                libc::ETIMEDOUT => 9,
                libc::ELIBACC => 19,
                libc::ENOSYS => 20,
                libc::ELIBBAD => 24,
                libc::ENOEXEC => 22,
                _ => 1,
            },
            Self::TimedOut => 9,
            Self::Protocol { .. } => 1,
            Self::OutOfRange(_) => 7,
            Self::NoMemory(_) => 13,
            Self::Retry(_) => 15,
            Self::InvalidHandle(_) => 14,
            Self::Overlap => 10,
            Self::Canceled => 25,
            Self::Mismatch(_) => 11,
            Self::NotSupported(_) => 8,
            Self::Missing(_) => 19,
            Self::Exhausted(_) => 16,
            Self::NotInitialized(_) => 2,
            Self::DoesNotExist(_) => 5,
            Self::InvalidFile(_) => 24,
            Self::WrongMachine(_) => 22,
            Self::LibraryLoaded(_) => 4,
        }
    }
}

fn describe(exit: &Exit) -> String {
    match exit {
        Exit::Code(code) => format!("exit status {code}"),
        Exit::Signal(signal) => format!("signal {signal}"),
    }
}
