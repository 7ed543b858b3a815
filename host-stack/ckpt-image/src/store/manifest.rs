//! What a checkpoint is of: what its `manifest.json` ([`snaprig_store::manifest`]) says.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use snaprig_store::manifest;
pub use snaprig_store::manifest::NAME;

use super::StoreError;
use crate::image::{ImageId, Summary};

/// Version of the manifest; others are refused.
pub const VERSION: u32 = 1;

/// What a checkpoint is of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Which checkpoint of the store it is.
    pub round: u64,
    /// The earlier round whose images its increments build on.
    pub parent: Option<u64>,
    /// The command line of what was checkpointed.
    pub command: Vec<String>,
    /// When: milliseconds since 1970 (UTC).
    pub time_unix_ms: u64,
    /// What was checkpointed: a process, or a tree of them, of each agent.
    pub members: Vec<Member>,
    /// Migrations by which a tree has come to this directory, if those that it came from may still ask whether it has.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub arrivals: Vec<Arrival>,
}

/// A migration by which a tree has come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Arrival {
    /// Which one: random bytes.
    pub migration: [u8; 16],
    /// The address at which it is asked about.
    pub address: String,
    /// The file with the token that both sides know, if the address needs one.
    pub token: Option<PathBuf>,
}

/// An image of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Member {
    /// Whose it is.
    pub name: String,
    /// The file's name.
    pub image: String,
    /// Its length.
    pub bytes: u64,
    /// Its id: the hash of all that is in it.
    pub id: ImageId,
}

impl Member {
    /// The member of this name, whose image has been written.
    pub fn new(name: &str, summary: &Summary) -> Self {
        Self {
            name: name.to_owned(),
            image: image_name(name),
            bytes: summary.totals.file_bytes,
            id: summary.id,
        }
    }
}

/// The file of a member's image.
pub fn image_name(member: &str) -> String {
    format!("{member}.img")
}

/// Whether a member may be called that.
pub fn check_name(name: &str) -> Result<(), StoreError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    match (1..=100).contains(&name.len()) && name.chars().all(plain) && !name.starts_with('.') {
        true => Ok(()),
        false => Err(StoreError::Name {
            name: name.to_owned(),
        }),
    }
}

impl Manifest {
    /// Writes it into the directory of its checkpoint.
    pub(super) fn write(&self, dir: &Path) -> Result<(), StoreError> {
        self.check(&dir.join(NAME))?;
        Ok(manifest::write(dir, VERSION, self)?)
    }

    /// Reads that of the checkpoint in this directory.
    pub(super) fn read(dir: &Path) -> Result<Self, StoreError> {
        let read: Self = manifest::read(dir, VERSION)?;
        read.check(&dir.join(NAME))?;
        Ok(read)
    }

    fn check(&self, path: &Path) -> Result<(), StoreError> {
        if self.parent.is_some_and(|parent| parent >= self.round) {
            return Err(wrong(path, "a checkpoint that builds on a later one"));
        }
        let mut names = BTreeSet::new();
        for member in &self.members {
            check_name(&member.name)?;
            if member.image != image_name(&member.name) || !names.insert(&member.name) {
                return Err(wrong(path, "members that share a name"));
            }
        }
        Ok(())
    }
}

fn wrong(path: &Path, why: &str) -> StoreError {
    StoreError::Manifest {
        path: PathBuf::from(path),
        why: why.to_owned(),
    }
}
