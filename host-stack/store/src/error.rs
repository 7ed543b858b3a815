//! What can go wrong with the commit of a directory or a file.

use std::{
    io,
    path::{Path, PathBuf},
};

/// Why a directory or a file was not made.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// The system said no.
    #[error("{path}: {source}")]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
    /// Somebody else is making it.
    #[error("{path} is being written by another process; wait for it, or choose another place")]
    Busy {
        /// Where it is being made.
        path: PathBuf,
    },
    /// It is there already.
    #[error("{path} is there already; choose another place")]
    Exists {
        /// The place.
        path: PathBuf,
    },
}

/// An error of the system on `path`.
pub(crate) fn io_error(path: &Path) -> impl Fn(io::Error) -> CommitError {
    move |source| CommitError::Io {
        path: path.to_owned(),
        source,
    }
}
