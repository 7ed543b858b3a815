//! Directories and files that are either whole or not there, for snapshots of every kind.
//!
//! ```text
//! begin --> DIR.tmp   written, synced, sealed by a manifest --publish--> DIR, by rename; its parent is synced
//!              |
//!              '--(dropped, or its writer died)--> removed; DIR, if there was one, is as it was
//! ```
//!
//! | module | what it is |
//! |---|---|
//! | [`directory`] | a directory that is made beside its place, by one writer or several, and published by rename |
//! | [`file`](mod@file) | a file that is made beside its place, and takes its name when all of it is on the disk |
//! | [`sealed`] | the text of a file with a version and a checksum |
//! | [`manifest`] | the sealed file that says what is in a directory |
//!
//! What must stay true: whatever fails, at whatever moment, an earlier directory or file under the same name survives;
//! what a dead writer left is told from what a living one makes, and goes when the next one begins; nothing that is not
//! whole ever has its final name.

pub mod directory;
mod error;
pub mod file;
pub mod manifest;
pub mod sealed;

pub use self::{
    directory::{Draft, Existing},
    error::CommitError,
    file::NewFile,
    manifest::ManifestError,
};
