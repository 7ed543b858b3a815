//! What can be wrong with a store.

use std::{
    io,
    path::{Path, PathBuf},
};

use snaprig_store::{CommitError, ManifestError};

use super::manifest::VERSION;
use crate::{
    chain::ChainError,
    image::{ImageError, WriteError},
};

/// Why a checkpoint cannot be made or used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The system said no.
    #[error("{path}: {source}{}", hint(.source))]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
    /// There is less room than the checkpoint will take.
    #[error(
        "{path}: a checkpoint takes {needed} bytes, and {available} are free; make room or choose \
         another directory (--dir)"
    )]
    Full {
        /// The directory.
        path: PathBuf,
        /// Bytes that are needed.
        needed: u64,
        /// Bytes that are free.
        available: u64,
    },
    /// Somebody is making the same round.
    #[error(
        "{path} is being written by another process; wait for it, or choose another directory (--dir)"
    )]
    Busy {
        /// The directory.
        path: PathBuf,
    },
    /// The round is there already.
    #[error("{path} is there already; take the next round, or choose another directory (--dir)")]
    Exists {
        /// The directory.
        path: PathBuf,
    },
    /// The manifest is damaged.
    #[error("{path} is damaged: {why}; use an earlier checkpoint")]
    Manifest {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// The manifest was written by another version.
    #[error(
        "{path} is of version {found}, this snaprig reads version {VERSION}; restart it with the snaprig \
         that wrote it"
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// The version it names.
        found: u32,
    },
    /// A file is whole, but not the one that was written there.
    #[error("{path} belongs to another checkpoint; use an earlier one")]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// A name that would be outside of the checkpoint, or that of another of its files.
    #[error(
        "{name:?} cannot be a member's name: letters, digits, '-', '_' and '.', 100 at most, not '.' first"
    )]
    Name {
        /// The name.
        name: String,
    },
    /// The checkpoint has no such member.
    #[error("{path} has no member {member:?}; `snaprig ckpt inspect` lists them")]
    NoMember {
        /// The checkpoint.
        path: PathBuf,
        /// The name.
        member: String,
    },
    /// An increment builds on what is not there.
    #[error(
        "{path} is an increment, and what it builds on is missing or too far back; use an earlier checkpoint"
    )]
    Orphan {
        /// The image.
        path: PathBuf,
    },
    /// An image is damaged.
    #[error(transparent)]
    Image(ImageError),
    /// A chain is damaged, or cannot be collapsed.
    #[error(transparent)]
    Chain(#[from] ChainError),
    /// An image cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
}

impl From<ImageError> for StoreError {
    fn from(error: ImageError) -> Self {
        Self::Image(error)
    }
}

impl From<CommitError> for StoreError {
    fn from(error: CommitError) -> Self {
        match error {
            CommitError::Io { path, source } => Self::Io { path, source },
            CommitError::Busy { path } => Self::Busy { path },
            CommitError::Exists { path } => Self::Exists { path },
        }
    }
}

impl From<ManifestError> for StoreError {
    fn from(error: ManifestError) -> Self {
        match error {
            ManifestError::Io { path, source } => Self::Io { path, source },
            ManifestError::Version { path, found, .. } => Self::Version { path, found },
            ManifestError::Damaged { path, offset, why } => Self::Manifest {
                path,
                why: format!("at offset {offset}: {why}"),
            },
        }
    }
}

fn hint(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "; make room or choose another directory (--dir)"
        }
        io::ErrorKind::PermissionDenied => "; choose a directory that you may write to (--dir)",
        _ => "",
    }
}

pub(super) fn io_error(path: &Path) -> impl Fn(io::Error) -> StoreError {
    move |source| StoreError::Io {
        path: path.to_owned(),
        source,
    }
}
