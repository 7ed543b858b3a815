//! A snapshot: a directory that is either whole or not there.
//!
//! ```text
//! PATH.partial/            built here; an earlier PATH is not touched
//!   manifest.json          what it is a snapshot of, its files, and the digests of their sums
//!   offload_process.img    the process image
//!   local_store/ID         files of the local store
//!   binaries/NAME          the sink program
//!   *.xxh3                 checksums, one file for each of the above
//! PATH                     by rename, when all of it is on the disk
//! ```
//!
//! The manifest names every file with the digest of its checksums, so that a file of another
//! snapshot, good in itself, is refused too.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    path::{Component, Path, PathBuf},
};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use snaprig_offload_wire::snapify::{BINARIES, IMAGE, LOCAL_STORE, StoredFile};

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
    /// XXH3 of each file's checksums, in hexadecimal, by its name in the directory.
    pub digests: BTreeMap<String, String>,
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
            digests: BTreeMap::new(),
        }
    }

    /// Every file of the snapshot, with its length.
    pub fn files(&self) -> impl Iterator<Item = (String, u64)> {
        let lists = [(LOCAL_STORE, &self.local_store), (BINARIES, &self.binaries)];
        let stored = lists.into_iter().flat_map(|(directory, files)| {
            let name = move |file: &StoredFile| (format!("{directory}/{}", file.name), file.len);
            files.iter().map(name)
        });
        stored.chain([(IMAGE.to_owned(), self.image_bytes)])
    }
}

/// A snapshot that is being made. Dropped before it is committed, nothing of it remains.
pub struct Builder {
    path: PathBuf,
    partial: PathBuf,
    committed: bool,
    /// The directory, locked (flock(2)): a second builder of the same snapshot is told so, and the
    /// remains of a dead one are told from those of a living one.
    _lock: File,
}

impl Builder {
    /// Starts a snapshot that will be at `path` (absolute), in a directory that exists. What a dead
    /// run left is removed.
    pub fn create(path: &Path) -> Result<Self, StoreError> {
        let mut partial = path.as_os_str().to_owned();
        partial.push(".partial");
        let partial = PathBuf::from(partial);
        if let Ok(dead) = File::open(&partial) {
            if flock(&dead, FlockOperation::NonBlockingLockExclusive).is_err() {
                return Err(StoreError::Busy {
                    path: path.to_owned(),
                });
            }
            fs::remove_dir_all(&partial).map_err(io_error(&partial))?;
        }
        let lock = Self::make(&partial).inspect_err(|_| {
            // A directory that could not be made whole is no use to anybody.
            let _ = fs::remove_dir_all(&partial);
        })?;
        Ok(Self {
            path: path.to_owned(),
            partial,
            committed: false,
            _lock: lock,
        })
    }

    fn make(partial: &Path) -> Result<File, StoreError> {
        for directory in ["", LOCAL_STORE, BINARIES] {
            let directory = partial.join(directory);
            fs::create_dir(&directory).map_err(io_error(&directory))?;
        }
        let lock = File::open(partial).map_err(io_error(partial))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)
            .map_err(|e| io_error(partial)(e.into()))?;
        Ok(lock)
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
    pub fn commit(mut self, mut manifest: Manifest) -> Result<PathBuf, StoreError> {
        for (name, _) in manifest.files().collect::<Vec<_>>() {
            let digest = Sums::load(&self.partial.join(&name))?.digest();
            manifest.digests.insert(name, format!("{digest:016x}"));
        }
        let text = serde_json::to_vec_pretty(&manifest)
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
    let damaged = |e: serde_json::Error| not(&format!("manifest.json: {e}"));
    // The version first: nothing else of another version's manifest need make sense.
    let Version { version } = serde_json::from_slice(&text).map_err(damaged)?;
    if version != VERSION {
        return Err(StoreError::Version {
            path: file,
            found: version,
            expected: VERSION,
        });
    }
    let manifest: Manifest = serde_json::from_slice(&text).map_err(damaged)?;
    for (name, expected) in manifest.files() {
        let plain = Path::new(&name)
            .components()
            .all(|part| matches!(part, Component::Normal(_)));
        if !plain {
            return Err(not(&format!("manifest.json names {name:?}")));
        }
        let file = path.join(&name);
        let sums = sums::verify(&file)?;
        if sums.len() != expected {
            return Err(StoreError::Truncated {
                path: file,
                expected,
                found: sums.len(),
            });
        }
        if manifest.digests.get(&name) != Some(&format!("{:016x}", sums.digest())) {
            return Err(StoreError::Foreign { path: file });
        }
    }
    Ok(manifest)
}

#[derive(Deserialize)]
struct Version {
    version: u32,
}

fn sync_directory(path: &Path) -> Result<(), StoreError> {
    File::open(path)
        .and_then(|directory| directory.sync_all())
        .map_err(io_error(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn make(path: &Path, image: &[u8]) -> Result<PathBuf, StoreError> {
        let builder = Builder::create(path)?;
        builder.add(IMAGE, image)?;
        let mut manifest = Manifest::new("km".into(), 1);
        manifest.image_bytes = image.len() as u64;
        builder.commit(manifest)
    }

    #[test]
    fn a_snapshot_is_whole_or_the_earlier_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("snapshot");
        assert!(matches!(open(&path), Err(StoreError::NotASnapshot { .. })));
        make(&path, b"one").unwrap();
        assert_eq!(open(&path).unwrap().image_bytes, 3);
        let building = Builder::create(&path).unwrap();
        building.add(IMAGE, b"two").unwrap();
        let second = Builder::create(&path);
        assert!(matches!(second, Err(StoreError::Busy { .. })));
        drop(building);
        assert_eq!(fs::read(path.join(IMAGE)).unwrap(), b"one");
        // What a dead builder leaves is in nobody's way.
        fs::create_dir_all(dir.path().join("snapshot.partial/local_store")).unwrap();
        make(&path, b"three").unwrap();
        assert_eq!(fs::read(path.join(IMAGE)).unwrap(), b"three");
        assert_eq!(
            fs::read_dir(dir.path()).unwrap().count(),
            1,
            "nothing is left behind"
        );
    }

    #[test]
    fn files_that_are_missing_short_of_another_version_or_of_another_snapshot_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (dir.path().join("one"), dir.path().join("two"));
        make(&one, b"the image").unwrap();
        make(&two, b"the other").unwrap();
        let sums = sums::path_of(Path::new(IMAGE));
        for file in [Path::new(IMAGE), &sums] {
            fs::copy(two.join(file), one.join(file)).unwrap();
        }
        assert!(matches!(open(&one), Err(StoreError::Foreign { .. })));
        let image = two.join(IMAGE);
        fs::write(&image, b"the oth").unwrap();
        assert!(matches!(
            open(&two),
            Err(StoreError::Truncated { found: 7, .. })
        ));
        fs::remove_file(&image).unwrap();
        let error = open(&two).unwrap_err().to_string();
        assert!(error.contains(IMAGE), "{error}");
        let three = dir.path().join("three");
        let builder = Builder::create(&three).unwrap();
        builder
            .add(MANIFEST, br#"{"version": 2, "new": []}"#)
            .unwrap();
        fs::rename(builder.directory(), &three).unwrap();
        assert!(matches!(
            open(&three),
            Err(StoreError::Version { found: 2, .. })
        ));
    }

    #[test]
    fn a_flipped_bit_in_any_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("snapshot");
        make(&path, b"the image").unwrap();
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
