//! A snapshot: a directory that is either whole or not there.
//!
//! ```text
//! PATH.partial/            built here; an earlier PATH is not touched
//!   manifest.json          what it is a snapshot of, and which files it has
//!   offload_process.img    the process image
//!   local_store/ID         files of the local store
//!   binaries/NAME          the sink program
//!   *.xxh3                 checksums, one file for each of the above
//! PATH                     by rename, when all of it is on the disk
//! ```

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use snaprig_wire::snapify::{BINARIES, IMAGE, LOCAL_STORE, StoredFile};

use crate::sums::{self, StoreError, Sums, io_error};

const MANIFEST: &str = "manifest.json";
/// Version of the manifest; others are refused.
const VERSION: u32 = 1;

/// What a snapshot is of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of this format.
    pub version: u32,
    /// The offload process's program.
    pub program: String,
    /// Card node on which it was taken.
    pub node: u16,
    /// Files of the local store.
    pub local_store: Vec<StoredFile>,
    /// The sink program and its libraries.
    pub binaries: Vec<StoredFile>,
    /// Bytes of the process image.
    pub image_bytes: u64,
}

impl Manifest {
    /// A manifest of the current version.
    pub fn new(program: String, node: u16) -> Self {
        Self {
            version: VERSION,
            program,
            node,
            local_store: Vec::new(),
            binaries: Vec::new(),
            image_bytes: 0,
        }
    }
}

/// A snapshot that is being made. Dropped before it is committed, nothing of it remains.
pub struct Builder {
    path: PathBuf,
    partial: PathBuf,
    committed: bool,
}

impl Builder {
    /// Starts a snapshot that will be at `path` (absolute). What a dead run left is removed.
    pub fn create(path: &Path) -> Result<Self, StoreError> {
        let mut partial = path.as_os_str().to_owned();
        partial.push(".partial");
        let partial = PathBuf::from(partial);
        if partial.exists() {
            fs::remove_dir_all(&partial).map_err(io_error(&partial))?;
        }
        for directory in [LOCAL_STORE, BINARIES] {
            let directory = partial.join(directory);
            fs::create_dir_all(&directory).map_err(io_error(&directory))?;
        }
        Ok(Self {
            path: path.to_owned(),
            partial,
            committed: false,
        })
    }

    /// Where its files go until it is committed.
    pub fn directory(&self) -> &Path {
        &self.partial
    }

    /// Adds a file from memory.
    pub fn add(&self, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
        let path = self.partial.join(name);
        let mut sums = Sums::default();
        sums.update(bytes);
        sums::write_synced(&path, bytes)?;
        sums.save(&path)
    }

    /// Makes it the snapshot at its path, in place of an earlier one.
    pub fn commit(mut self, manifest: &Manifest) -> Result<PathBuf, StoreError> {
        let text = serde_json::to_vec_pretty(manifest)
            .map_err(|e| io_error(&self.partial)(io::Error::other(e)))?;
        self.add(MANIFEST, &text)?;
        for directory in [
            self.partial.join(LOCAL_STORE),
            self.partial.join(BINARIES),
            self.partial.clone(),
        ] {
            sync_directory(&directory)?;
        }
        if self.path.exists() {
            // The earlier snapshot is there until the very moment that this one is.
            rustix::fs::renameat_with(
                rustix::fs::CWD,
                &self.partial,
                rustix::fs::CWD,
                &self.path,
                rustix::fs::RenameFlags::EXCHANGE,
            )
            .map_err(|e| io_error(&self.path)(e.into()))?;
            fs::remove_dir_all(&self.partial).map_err(io_error(&self.partial))?;
        } else {
            fs::rename(&self.partial, &self.path).map_err(io_error(&self.path))?;
        }
        self.committed = true;
        if let Some(parent) = self.path.parent() {
            sync_directory(parent)?;
        }
        Ok(self.path.clone())
    }
}

impl Drop for Builder {
    fn drop(&mut self) {
        if !self.committed {
            // What cannot be removed now is removed when the next snapshot is made there.
            let _ = fs::remove_dir_all(&self.partial);
        }
    }
}

/// Opens a snapshot and verifies every byte of it.
pub fn open(path: &Path) -> Result<Manifest, StoreError> {
    let not = |why: &str| StoreError::NotASnapshot {
        path: path.to_owned(),
        why: why.to_owned(),
    };
    if !path.is_dir() {
        return Err(not("there is no such directory"));
    }
    let file = path.join(MANIFEST);
    if !file.exists() {
        return Err(not("it has no manifest.json"));
    }
    sums::verify(&file)?;
    let text = fs::read(&file).map_err(io_error(&file))?;
    let manifest: Manifest =
        serde_json::from_slice(&text).map_err(|e| not(&format!("manifest.json: {e}")))?;
    if manifest.version != VERSION {
        return Err(StoreError::Version {
            path: file,
            found: manifest.version,
        });
    }
    let lists = [
        (LOCAL_STORE, &manifest.local_store),
        (BINARIES, &manifest.binaries),
    ];
    for (directory, files) in lists {
        for stored in files {
            let file = path.join(directory).join(&stored.name);
            let found = sums::verify(&file)?;
            if found != stored.len {
                let expected = stored.len;
                return Err(StoreError::Truncated {
                    path: file,
                    expected,
                    found,
                });
            }
        }
    }
    sums::verify(&path.join(IMAGE))?;
    Ok(manifest)
}

fn sync_directory(path: &Path) -> Result<(), StoreError> {
    File::open(path)
        .and_then(|directory| directory.sync_all())
        .map_err(io_error(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn make(path: &Path, image: &[u8]) -> Builder {
        let builder = Builder::create(path).unwrap();
        builder.add(IMAGE, image).unwrap();
        builder
    }

    #[test]
    fn a_snapshot_is_whole_or_the_earlier_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("snapshot");
        let manifest = Manifest::new("km".into(), 1);
        assert!(matches!(open(&path), Err(StoreError::NotASnapshot { .. })));
        make(&path, b"one").commit(&manifest).unwrap();
        assert_eq!(open(&path).unwrap(), manifest);
        drop(make(&path, b"two"));
        assert_eq!(fs::read(path.join(IMAGE)).unwrap(), b"one");
        make(&path, b"three").commit(&manifest).unwrap();
        assert_eq!(fs::read(path.join(IMAGE)).unwrap(), b"three");
        assert_eq!(
            fs::read_dir(dir.path()).unwrap().count(),
            1,
            "nothing is left behind"
        );
    }

    #[test]
    fn a_flipped_bit_in_any_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("snapshot");
        make(&path, b"the image")
            .commit(&Manifest::new("km".into(), 1))
            .unwrap();
        for entry in fs::read_dir(&path).unwrap() {
            let file = entry.unwrap().path();
            if file.is_dir() {
                continue;
            }
            let good = fs::read(&file).unwrap();
            for at in 0..good.len() {
                let mut damaged = good.clone();
                damaged[at] ^= 4;
                fs::write(&file, &damaged).unwrap();
                let error = open(&path).unwrap_err().to_string();
                let name = file.file_stem().unwrap().to_string_lossy().into_owned();
                assert!(error.contains(&name), "{error}");
            }
            fs::write(&file, &good).unwrap();
        }
        open(&path).unwrap();
    }
}
