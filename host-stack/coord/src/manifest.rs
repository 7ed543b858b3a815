//! Checkpoints of a job on a disk, and what makes one complete: its manifest.
//!
//! ```text
//!   DIR/round-0000000007/   what members have written
//!                 manifest.json            complete: all of it is there
//!                 manifest.json.new        not yet, or never
//! ```
//!
//! What must stay true: a directory with a manifest has all that the manifest names, on the disk; it
//! got its name by one rename. A round's directory without one is nothing, and is never offered.
//! Rounds count up for as long as `DIR` is there, complete or not: no two have one directory.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::job::read_short;

/// Version of the format; others are refused.
pub const VERSION: u32 = 1;
/// More bytes than this are no manifest.
const BYTES_MAX: u64 = 64 << 20;
const NAME: &str = "manifest.json";
const PREFIX: &str = "round-";

/// What a complete checkpoint consists of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The job's name.
    pub job: String,
    /// The round.
    pub round: u64,
    /// By member, what it said of what it has written.
    pub members: BTreeMap<String, String>,
}

/// The file: a manifest, and the checksum of its text.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Sealed {
    version: u32,
    /// xxh3 of the manifest's JSON without white space, in hexadecimal.
    checksum: String,
    manifest: Manifest,
}

/// Why there is no checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// A file cannot be used.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is no manifest, or damaged.
    #[error("{}: {why}; this checkpoint cannot be used", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
}

fn io_at(path: &Path) -> impl FnOnce(io::Error) -> ManifestError {
    let path = path.to_owned();
    move |source| ManifestError::Io { path, source }
}

fn checksum(manifest: &Manifest) -> Result<String, serde_json::Error> {
    let text = serde_json::to_vec(manifest)?;
    Ok(format!("{:016x}", xxh3_64(&text)))
}

/// All checkpoints of a job.
#[derive(Clone, Debug)]
pub struct Checkpoints {
    directory: PathBuf,
}

impl Checkpoints {
    /// Those in this directory, which is made if it is not there.
    pub fn open(directory: &Path) -> Result<Self, ManifestError> {
        fs::create_dir_all(directory).map_err(io_at(directory))?;
        let directory = directory.into();
        Ok(Self { directory })
    }

    /// Where a round's members write.
    pub fn round(&self, round: u64) -> PathBuf {
        self.directory.join(format!("{PREFIX}{round:010}"))
    }

    /// All rounds that have a directory, complete or not, in order.
    pub fn rounds(&self) -> Result<Vec<u64>, ManifestError> {
        let error = || io_at(&self.directory);
        let mut rounds = Vec::new();
        for entry in fs::read_dir(&self.directory).map_err(error())? {
            let name = entry.map_err(error())?.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
            rounds.extend(number.and_then(|number| number.parse::<u64>().ok()));
        }
        rounds.sort_unstable();
        Ok(rounds)
    }

    /// A number for the next round.
    pub fn next_round(&self) -> Result<u64, ManifestError> {
        let last = self.rounds()?.last().copied();
        Ok(last.unwrap_or(0).saturating_add(1))
    }

    /// Complete checkpoints, in order. A manifest that is damaged is not skipped: nobody should take
    /// an older checkpoint for the last one without knowing.
    pub fn complete(&self) -> Result<Vec<u64>, ManifestError> {
        let mut rounds = self.rounds()?;
        rounds.retain(|round| self.round(*round).join(NAME).exists());
        Ok(rounds)
    }

    /// Of which the last one is this, if there is one.
    pub fn last(&self) -> Result<Option<Manifest>, ManifestError> {
        let last = self.complete()?.last().copied();
        last.map(|round| self.read(round)).transpose()
    }

    /// A complete checkpoint's manifest, verified.
    pub fn read(&self, round: u64) -> Result<Manifest, ManifestError> {
        let path = self.round(round).join(NAME);
        let bytes = read_short(&path, BYTES_MAX).map_err(io_at(&path))?;
        let malformed = |why: String| ManifestError::Malformed {
            path: path.clone(),
            why,
        };
        let json = |error: serde_json::Error| malformed(error.to_string());
        // The version first: nothing else of another version's need make sense.
        let value: serde_json::Value = serde_json::from_slice(&bytes).map_err(json)?;
        let version = value.get("version").and_then(serde_json::Value::as_u64);
        if version != Some(VERSION.into()) {
            let why = format!("version {version:?}; this snaprig reads version {VERSION}");
            return Err(malformed(why));
        }
        let sealed: Sealed = serde_json::from_value(value).map_err(json)?;
        if checksum(&sealed.manifest).map_err(json)? != sealed.checksum {
            return Err(malformed("its checksum is wrong".into()));
        }
        if sealed.manifest.round != round {
            let why = format!("it is that of round {}", sealed.manifest.round);
            return Err(malformed(why));
        }
        Ok(sealed.manifest)
    }

    /// Makes what members have written a checkpoint: the rename in here is the commit. On an error
    /// there is none.
    pub fn commit(&self, manifest: &Manifest) -> Result<(), ManifestError> {
        let directory = self.round(manifest.round);
        fs::create_dir_all(&directory).map_err(io_at(&directory))?;
        let path = directory.join(NAME);
        let malformed = |error: serde_json::Error| ManifestError::Malformed {
            path: path.clone(),
            why: error.to_string(),
        };
        let sealed = Sealed {
            version: VERSION,
            checksum: checksum(manifest).map_err(malformed)?,
            manifest: manifest.clone(),
        };
        let bytes = serde_json::to_vec_pretty(&sealed).map_err(malformed)?;
        let temporary = directory.join("manifest.json.new");
        write_synced(&temporary, &bytes).map_err(io_at(&temporary))?;
        // The directory's own name, and its members' files, first: then its manifest's.
        for one in [&self.directory, &directory] {
            sync(one).map_err(io_at(one))?;
        }
        fs::rename(&temporary, &path).map_err(io_at(&path))?;
        let Err(error) = sync(&directory) else {
            return Ok(());
        };
        // It has its name, and nobody knows for how long. If that cannot be taken back, it stands.
        match fs::remove_file(&path) {
            Ok(()) => Err(io_at(&directory)(error)),
            Err(_) => {
                tracing::warn!(%error, path = %path.display(), "a manifest may not outlive a crash");
                Ok(())
            }
        }
    }

    /// Removes what rounds before this one have left that is no checkpoint. To be called when nobody
    /// is in such a round any more.
    pub fn sweep(&self, before: u64) -> Result<(), ManifestError> {
        let complete = self.complete()?;
        for round in self.rounds()? {
            if round < before && complete.binary_search(&round).is_err() {
                let directory = self.round(round);
                fs::remove_dir_all(&directory).map_err(io_at(&directory))?;
            }
        }
        Ok(())
    }
}

fn write_synced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    use io::Write;
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

fn sync(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(round: u64) -> Manifest {
        let members = [("0".to_owned(), "10 pages".to_owned())];
        Manifest {
            job: "job".into(),
            round,
            members: members.into(),
        }
    }

    #[test]
    fn only_what_was_committed_is_offered() {
        let dir = tempfile::tempdir().unwrap();
        let all = Checkpoints::open(&dir.path().join("checkpoints")).unwrap();
        assert_eq!((all.next_round().unwrap(), all.last().unwrap()), (1, None));
        all.commit(&manifest(2)).unwrap();
        for half in [1, 3] {
            fs::create_dir(all.round(half)).unwrap();
            fs::write(all.round(half).join("0.image"), "half").unwrap();
            fs::write(all.round(half).join("manifest.json.new"), "half").unwrap();
        }
        assert_eq!(all.last().unwrap(), Some(manifest(2)));
        assert_eq!(all.next_round().unwrap(), 4);
        all.sweep(3).unwrap();
        assert_eq!(all.rounds().unwrap(), [2, 3]);
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let all = Checkpoints::open(dir.path()).unwrap();
        all.commit(&manifest(1)).unwrap();
        let path = all.round(1).join(NAME);
        let good = fs::read(&path).unwrap();
        for at in 0..good.len() {
            for bit in 0..8 {
                let mut bad = good.clone();
                bad[at] ^= 1 << bit;
                fs::write(&path, &bad).unwrap();
                // White space may be other white space.
                if let Ok(read) = all.read(1) {
                    assert_eq!(read, manifest(1));
                }
            }
            fs::write(&path, &good[..at]).unwrap();
            assert!(all.read(1).is_err());
        }
    }

    #[test]
    fn a_manifest_that_cannot_be_written_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let all = Checkpoints::open(dir.path()).unwrap();
        fs::create_dir_all(all.round(1).join("manifest.json.new")).unwrap();
        assert!(all.commit(&manifest(1)).is_err());
        assert_eq!(all.last().unwrap(), None);
    }
}
