//! What can go wrong, for programs and for people.

use snaprig_offload_wire::{coi::Exit, coi_result::code};
use snaprig_scif::client::ScifError;
use snaprig_wire::scif::NodeId;

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
                libc::ENOMEM => code::OUT_OF_MEMORY,
                libc::ECONNRESET | libc::ENODEV | libc::ENOTCONN => code::PROCESS_DIED,
                libc::ETIMEDOUT => code::TIME_OUT_REACHED,
                libc::ENXIO => code::NOT_INITIALIZED,
                _ => code::ERROR,
            },
            Self::CardLost { .. } | Self::ProcessDied { .. } => code::PROCESS_DIED,
            Self::Refused { errno, .. } => match *errno {
                libc::ENOMEM | libc::ENOSPC => code::RESOURCE_EXHAUSTED,
                libc::ETIMEDOUT => code::TIME_OUT_REACHED,
                libc::ELIBACC => code::MISSING_DEPENDENCY,
                libc::ENOSYS => code::UNDEFINED_SYMBOL,
                libc::ELIBBAD => code::INVALID_FILE,
                libc::ENOEXEC => code::BINARY_AND_HARDWARE_MISMATCH,
                _ => code::ERROR,
            },
            Self::TimedOut => code::TIME_OUT_REACHED,
            Self::Protocol { .. } => code::ERROR,
            Self::OutOfRange(_) => code::OUT_OF_RANGE,
            Self::NoMemory(_) => code::OUT_OF_MEMORY,
            Self::Retry(_) => code::RETRY,
            Self::InvalidHandle(_) => code::INVALID_HANDLE,
            Self::Overlap => code::MEMORY_OVERLAP,
            Self::Canceled => code::EVENT_CANCELED,
            Self::Mismatch(_) => code::ARGUMENT_MISMATCH,
            Self::NotSupported(_) => code::NOT_SUPPORTED,
            Self::Missing(_) => code::MISSING_DEPENDENCY,
            Self::Exhausted(_) => code::RESOURCE_EXHAUSTED,
            Self::NotInitialized(_) => code::NOT_INITIALIZED,
            Self::DoesNotExist(_) => code::DOES_NOT_EXIST,
            Self::InvalidFile(_) => code::INVALID_FILE,
            Self::WrongMachine(_) => code::BINARY_AND_HARDWARE_MISMATCH,
            Self::LibraryLoaded(_) => code::ALREADY_EXISTS,
        }
    }
}

impl CoiError {
    /// Whether there is no memory for it, on the host or on a card.
    pub(crate) fn is_out_of_memory(&self) -> bool {
        match self {
            Self::NoMemory(_) => true,
            Self::Refused { errno, .. } => matches!(*errno, libc::ENOMEM | libc::ENOSPC),
            Self::Scif(error) => matches!(error.errno, libc::ENOMEM | libc::ENOSPC),
            _ => false,
        }
    }
}

fn describe(exit: &Exit) -> String {
    match exit {
        Exit::Code(code) => format!("exit status {code}"),
        Exit::Signal(signal) => format!("signal {signal}"),
    }
}
