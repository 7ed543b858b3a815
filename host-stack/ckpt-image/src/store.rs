//! A directory of checkpoints, each of which is whole or not there.
//!
//! ```text
//! DIR/0007.tmp/            a round that is being made
//!     NAME.img             a member's image
//!     manifest.json        whose images they are; written when all are on the disk: the round is prepared
//! DIR/0007/                by rename: the round is published
//! DIR/0005.old/            a round that is being removed
//! ```
//! One leader begins, prepares and publishes a round; other agents may join and write images of their
//! members. Those of a job join first ([`Store::join`]), and when all have written, its coordinator leads
//! ([`Store::lead`]): the rename is the commit of the job's checkpoint.
//!
//! What must stay true: only a published round is ever offered, and its manifest is believed no more
//! than its images are. Removing a round takes its name away first.

mod error;
mod manifest;
mod prune;
mod round;

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{FlockOperation, flock},
    io::retry_on_intr,
};
pub use snaprig_store::sealed;
use snaprig_store::{Existing, directory};

pub use self::{
    error::StoreError,
    manifest::{Arrival, Manifest, Member},
    round::{Joined, Prepared, Round},
};
use crate::{
    chain::CHAIN_MAX,
    image::{Reader, Scanner},
};
use error::io_error;

const TMP: &str = "tmp";
const OLD: &str = "old";

/// A directory of checkpoints.
#[derive(Clone, Debug)]
pub struct Store {
    dir: PathBuf,
}

/// A published checkpoint.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    store: Store,
    path: PathBuf,
    manifest: Manifest,
}

/// The newest checkpoint that can be used, and newer ones that cannot.
#[derive(Debug)]
pub struct Latest {
    /// The newest sound one, if there is any.
    pub checkpoint: Option<Checkpoint>,
    /// Newer ones, and what is wrong with them.
    pub damaged: Vec<StoreError>,
}

impl Store {
    /// The store in this directory, which is made if it is not there.
    pub fn open(dir: impl Into<PathBuf>) -> Result<Self, StoreError> {
        let dir = dir.into();
        fs::create_dir_all(&dir).map_err(io_error(&dir))?;
        Ok(Self { dir })
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Rounds that have been published, ascending.
    pub fn rounds(&self) -> Result<Vec<u64>, StoreError> {
        self.named(None)
    }

    /// Rounds that are whole but have not been published, ascending. To [`Store::publish`] or to be removed by
    /// the next [`Store::begin`].
    pub fn prepared(&self) -> Result<Vec<u64>, StoreError> {
        let mut rounds = self.named(Some(TMP))?;
        rounds.retain(|round| {
            // After a collapse that was interrupted, it is the one that was replaced.
            let published = self.path(*round, None).exists();
            !published && self.check(&self.path(*round, Some(TMP)), *round).is_ok()
        });
        Ok(rounds)
    }

    /// Publishes a round that was prepared.
    pub fn publish(&self, round: u64) -> Result<Checkpoint, StoreError> {
        let (from, path) = (self.path(round, Some(TMP)), self.path(round, None));
        let manifest = self.check(&from, round)?;
        directory::publish(&from, &path, Existing::Refuse)?;
        Ok(self.at(path, manifest))
    }

    /// The newest checkpoint that is sound, as far as that is known without reading all pages, and
    /// so are those that it builds on.
    pub fn latest(&self) -> Result<Latest, StoreError> {
        let mut latest = Latest {
            checkpoint: None,
            damaged: Vec::new(),
        };
        for round in self.rounds()?.into_iter().rev() {
            let found = self.checkpoint(round).and_then(|checkpoint| {
                for member in &checkpoint.manifest.members {
                    checkpoint.chain(&member.name)?;
                }
                Ok(checkpoint)
            });
            match found {
                Ok(checkpoint) => {
                    latest.checkpoint = Some(checkpoint);
                    break;
                }
                Err(error) => latest.damaged.push(error),
            }
        }
        Ok(latest)
    }

    /// A published round: its manifest is sound, and the images are those that it names.
    pub fn checkpoint(&self, round: u64) -> Result<Checkpoint, StoreError> {
        let path = self.path(round, None);
        let manifest = self.check(&path, round)?;
        Ok(self.at(path, manifest))
    }

    /// What a published round says of itself, whatever has become of its images.
    pub fn manifest(&self, round: u64) -> Result<Manifest, StoreError> {
        Manifest::read(&self.path(round, None))
    }

    fn at(&self, path: PathBuf, manifest: Manifest) -> Checkpoint {
        Checkpoint {
            store: self.clone(),
            path,
            manifest,
        }
    }

    /// The manifest of the round in this directory, whose images are there.
    fn check(&self, path: &Path, round: u64) -> Result<Manifest, StoreError> {
        let manifest = Manifest::read(path)?;
        if manifest.round != round {
            let path = path.join(manifest::NAME);
            return Err(StoreError::Foreign { path });
        }
        for member in &manifest.members {
            member.check(path)?;
        }
        Ok(manifest)
    }

    /// Rounds whose directory has this extension, ascending.
    fn named(&self, extension: Option<&str>) -> Result<Vec<u64>, StoreError> {
        let mut rounds = Vec::new();
        for entry in fs::read_dir(&self.dir).map_err(io_error(&self.dir))? {
            let name = entry.map_err(io_error(&self.dir))?.file_name();
            let stem = Path::new(&name).file_stem().and_then(|stem| stem.to_str());
            let round = stem.and_then(|stem| stem.parse().ok());
            // Only what we would name so.
            rounds
                .extend(round.filter(|round| self.path(*round, extension) == self.dir.join(&name)));
        }
        rounds.sort_unstable();
        Ok(rounds)
    }

    /// Nobody else begins or removes rounds until this is dropped.
    fn lock(&self) -> Result<File, StoreError> {
        let lock = File::open(&self.dir).map_err(io_error(&self.dir))?;
        let locked = retry_on_intr(|| flock(&lock, FlockOperation::LockExclusive));
        locked.map_err(|errno| io_error(&self.dir)(errno.into()))?;
        Ok(lock)
    }

    fn path(&self, round: u64, extension: Option<&str>) -> PathBuf {
        match extension {
            None => self.dir.join(format!("{round:04}")),
            Some(extension) => self.dir.join(format!("{round:04}.{extension}")),
        }
    }
}

impl Checkpoint {
    /// What it is of.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Its directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The images that a member is restarted from, the oldest first: a [`Chain`](crate::chain::Chain).
    pub fn chain(&self, member: &str) -> Result<Vec<PathBuf>, StoreError> {
        let mut paths = Vec::new();
        let mut at = self.clone();
        loop {
            let found = at.manifest.members.iter().find(|it| it.name == member);
            let found = found.ok_or_else(|| StoreError::NoMember {
                path: at.path.clone(),
                member: member.to_owned(),
            })?;
            let path = at.path.join(&found.image);
            let parent = Scanner::open(&path)?.header().parent;
            paths.push(path.clone());
            if parent.is_none() {
                paths.reverse();
                return Ok(paths);
            }
            if paths.len() == CHAIN_MAX {
                return Err(StoreError::Orphan { path });
            }
            // A manifest's parent is older than itself: this ends.
            let round = at.manifest.parent.ok_or(StoreError::Orphan { path })?;
            at = self.store.checkpoint(round)?;
        }
    }

    /// Reads every byte of its images and checks it. Those that it builds on are others' images.
    pub fn verify(&self) -> Result<(), StoreError> {
        for member in &self.manifest.members {
            let path = self.path.join(&member.image);
            let name = path.display().to_string();
            let file = File::open(&path).map_err(io_error(&path))?;
            let mut reader = Reader::new(file, name)?;
            while reader.next()?.is_some() {}
            if reader.summary().map(|it| it.id) != Some(member.id) {
                return Err(StoreError::Foreign { path });
            }
        }
        Ok(())
    }
}

impl Member {
    /// Whether the image in this directory is the one: its header and end, not all of it.
    fn check(&self, dir: &Path) -> Result<(), StoreError> {
        let path = dir.join(&self.image);
        let image = Scanner::open(&path)?;
        let summary = image.summary();
        match (summary.id, summary.totals.file_bytes) == (self.id, self.bytes) {
            true => Ok(()),
            false => Err(StoreError::Foreign { path }),
        }
    }
}

/// Bytes that are free on the file system of a directory, for us.
fn available(dir: &Path) -> io::Result<u64> {
    let stat = rustix::fs::statvfs(dir)?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}
