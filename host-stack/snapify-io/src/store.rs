//! A snapshot: a directory that is either whole or not there.
//!
//! ```text
//! PATH.partial/            built here; an earlier PATH is not touched
//!   manifest.json          what it is a snapshot of, its files, and the digests of their sums; sealed
//!   offload_process.img    the process image
//!   N-offload_process.img  what has changed since the image before, if it was copied while it worked
//!   local_store/ID         files of the local store
//!   binaries/NAME          the sink program and its libraries
//!   *.xxh3                 checksums, one file for each but the manifest
//! PATH                     by rename, when all of it is on the disk
//! ```
//!
//! Compressed, the image and the local store are there under names that end with `.zst` ([`packed`]).
//!
//! A chain of images is made one ([`open_whole`]) before a card reads it that has none of them.
//!
//! Programs and libraries are those of the host, and the same in snapshot after snapshot: where an earlier one has the very
//! file, the new one has a link to it (link(2)), so that each is whole by itself and the bytes are on the disk once.
//!
//! The manifest names every file with the digest of its checksums, so that a file of another
//! snapshot, good in itself, is refused too.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Read},
    os::{fd::BorrowedFd, unix::fs::OpenOptionsExt},
    path::{Component, Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use serde::{Deserialize, Serialize};
use snaprig_card_image::chain::{self, ChainError};
use snaprig_offload_wire::snapify::{BINARIES, IMAGE, LOCAL_STORE, StoredFile, image};
use snaprig_store::{
    CommitError, Draft, Existing,
    directory::{Leading, sync_tree},
    manifest,
};

use crate::{
    packed,
    stream::{SnapshotFile, Verified, verify},
    sums::{self, StoreError, Sums, io_error},
};

/// Where this process has put programs and libraries last, by length and digest.
static STORED: Mutex<BTreeMap<(u64, u64), PathBuf>> = Mutex::new(BTreeMap::new());

/// Version of the manifest; others are refused.
const VERSION: u32 = 2;

/// What a snapshot is of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
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
    /// Bytes of the images that follow it, each of which has what has changed since the one before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub increments: Vec<u64>,
    /// What has come from the card is compressed ([`packed`]), and so its names end.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub compressed: bool,
    /// XXH3 of each file's checksums, in hexadecimal, by its name in the directory.
    pub digests: BTreeMap<String, String>,
}

impl Manifest {
    /// A manifest without files.
    pub fn new(program: String, node: u16) -> Self {
        Self {
            program,
            node,
            local_store: Vec::new(),
            binaries: Vec::new(),
            image_bytes: 0,
            increments: Vec::new(),
            compressed: false,
            digests: BTreeMap::new(),
        }
    }

    /// Every file of the snapshot, with the length of what is in it.
    pub fn files(&self) -> impl Iterator<Item = (String, u64)> {
        let end = if self.compressed { packed::SUFFIX } else { "" };
        let lists = [
            (LOCAL_STORE, &self.local_store, end),
            (BINARIES, &self.binaries, ""),
        ];
        let stored = lists.into_iter().flat_map(|(directory, files, end)| {
            let name =
                move |file: &StoredFile| (format!("{directory}/{}{end}", file.name), file.len);
            files.iter().map(name)
        });
        let images = (0..).zip(self.images());
        stored.chain(images.map(move |(number, len)| (format!("{}{end}", image(number)), len)))
    }

    /// Bytes of each image.
    pub fn images(&self) -> impl Iterator<Item = u64> {
        [self.image_bytes]
            .into_iter()
            .chain(self.increments.iter().copied())
    }

    /// Whether that file of it is compressed.
    fn is_packed(&self, name: &str) -> bool {
        self.compressed && !name.starts_with(BINARIES)
    }
}

/// A snapshot that is being made. Dropped before it is committed, nothing of it remains.
pub struct Builder {
    path: PathBuf,
    partial: Leading,
    passes: bool,
}

impl Builder {
    /// Starts a snapshot that will be at `path` (absolute), in a directory that exists. What a dead
    /// run left is removed.
    pub fn create(path: &Path) -> Result<Self, StoreError> {
        let mut partial = path.as_os_str().to_owned();
        partial.push(".partial");
        let partial = Draft::begin(Path::new(&partial)).map_err(|error| match error {
            // As its user knows it.
            CommitError::Busy { .. } => StoreError::Busy {
                path: path.to_owned(),
            },
            other => other.into(),
        })?;
        for directory in [LOCAL_STORE, BINARIES] {
            let directory = partial.path().join(directory);
            fs::create_dir(&directory).map_err(io_error(&directory))?;
        }
        Ok(Self {
            path: path.to_owned(),
            partial,
            passes: false,
        })
    }

    /// The same, of one that will not be committed: nobody needs it after a crash of the machine.
    pub fn passing(path: &Path) -> Result<Self, StoreError> {
        let begun = Self::create(path)?;
        Ok(Self {
            passes: true,
            ..begun
        })
    }

    /// Where its files go until it is committed.
    pub fn directory(&self) -> &Path {
        self.partial.path()
    }

    /// What keeps others from it.
    pub fn lock(&self) -> BorrowedFd<'_> {
        self.partial.draft().lock()
    }

    /// Adds a file from memory.
    pub fn add(&self, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
        let path = self.directory().join(name);
        let mut sums = Sums::default();
        sums.update(bytes);
        sums::write_synced(&path, bytes)?;
        sums.save(&path)
    }

    /// Adds a program or a library; no bytes are written where the earlier snapshot at this path, or another one of this
    /// process, has it.
    pub fn add_binary(&self, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
        let mut sums = Sums::default();
        sums.update(bytes);
        let (sums, path) = (sums.finished(), self.directory().join(name));
        let key = (sums.len(), sums.digest());
        let known = |stored: &BTreeMap<_, PathBuf>| stored.get(&key).cloned();
        let stored = known(&STORED.lock().unwrap_or_else(PoisonError::into_inner));
        let place = self.path.join(name);
        let earlier = [Some(place.clone()), stored];
        if !earlier
            .iter()
            .flatten()
            .any(|file| link(file, &path, bytes))
        {
            match self.passes {
                true => fs::write(&path, bytes).map_err(io_error(&path))?,
                false => sums::write_synced(&path, bytes)?,
            }
        }
        if self.passes {
            return sums.save_unsynced(&path);
        }
        sums.save(&path)?;
        let mut stored = STORED.lock().unwrap_or_else(PoisonError::into_inner);
        stored.insert(key, place);
        Ok(())
    }

    /// Makes it the snapshot at its path, in place of an earlier one.
    pub fn commit(self, mut manifest: Manifest) -> Result<PathBuf, StoreError> {
        for (name, _) in manifest.files().collect::<Vec<_>>() {
            let digest = Sums::load(&self.directory().join(&name))?.digest();
            manifest.digests.insert(name, format!("{digest:016x}"));
        }
        manifest::write(self.directory(), VERSION, &manifest)?;
        sync_tree(self.directory())?;
        self.partial.publish(&self.path, Existing::Replace)?;
        Ok(self.path)
    }
}

/// Links `from` to `to` if it has these very bytes; whether it is there now.
fn link(from: &Path, to: &Path, bytes: &[u8]) -> bool {
    if fs::hard_link(from, to).is_err() {
        // There is none, or not on this disk, or disks here have no links.
        return false;
    }
    // What is read is what was linked, whatever becomes of the other name.
    let is_same = has(to, bytes).unwrap_or(false);
    if !is_same {
        // If it stays, it is written over with an error, and the snapshot is not made.
        let _ = fs::remove_file(to);
    }
    is_same
}

fn has(file: &Path, bytes: &[u8]) -> io::Result<bool> {
    // A name may be that of a symbolic link, which would not be the file itself, or of a FIFO, which would be waited for.
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let mut file = File::options().read(true).custom_flags(flags).open(file)?;
    let there = file.metadata()?;
    if !there.is_file() || there.len() != bytes.len() as u64 {
        return Ok(false);
    }
    let mut chunk = vec![0; sums::CHUNK_BYTES];
    for expected in bytes.chunks(sums::CHUNK_BYTES) {
        let chunk = &mut chunk[..expected.len()];
        file.read_exact(chunk)?;
        if chunk != expected {
            return Ok(false);
        }
    }
    // Whoever has written it may have died before it was on the disk.
    file.sync_all()?;
    Ok(true)
}

/// Opens a snapshot, verifies every byte of it, and makes a chain of images one: until that is on the disk, the chain is.
pub fn open_whole(path: &Path) -> Result<Manifest, StoreError> {
    let mut manifest = open(path)?;
    if manifest.increments.is_empty() {
        return Ok(manifest);
    }
    let builder = Builder::create(path)?;
    let images = (0..).zip(manifest.images());
    let images = images.map(|(number, _)| Verified::open(&path.join(image(number))));
    let images = images.collect::<Result<_, StoreError>>()?;
    let whole = builder.directory().join(IMAGE);
    chain::collapse(images, SnapshotFile::create(&whole)?)
        .map_err(|error| unchained(path, error))?;
    manifest.image_bytes = fs::metadata(&whole).map_err(io_error(&whole))?.len();
    manifest.increments.clear();
    for (name, _) in manifest.files().filter(|(name, _)| name != IMAGE) {
        let (from, to) = (path.join(&name), builder.directory().join(&name));
        for (from, to) in [(sums::path_of(&from), sums::path_of(&to)), (from, to)] {
            // Not every disk has links.
            if fs::hard_link(&from, &to).is_err() {
                fs::copy(&from, &to).map_err(io_error(&to))?;
            }
        }
    }
    manifest.digests.clear();
    builder.commit(manifest.clone())?;
    Ok(manifest)
}

fn unchained(path: &Path, error: ChainError) -> StoreError {
    match error {
        ChainError::Io(source) => StoreError::Io {
            path: path.to_owned(),
            source,
        },
        other => StoreError::NotASnapshot {
            path: path.to_owned(),
            why: other.to_string(),
        },
    }
}

/// Opens a snapshot without a look at its files.
pub fn peek(path: &Path) -> Result<Manifest, StoreError> {
    let not = |why: &str| StoreError::NotASnapshot {
        path: path.to_owned(),
        why: why.to_owned(),
    };
    if !path.is_dir() {
        return Err(not("there is no such directory"));
    }
    if !path.join(manifest::NAME).exists() {
        return Err(not("it has no manifest.json"));
    }
    let manifest: Manifest = manifest::read(path, VERSION)?;
    let plain = |name: &str| {
        let mut parts = Path::new(name).components();
        parts.all(|part| matches!(part, Component::Normal(_)))
    };
    let strange = manifest.files().find(|(name, _)| !plain(name));
    match strange {
        Some((name, _)) => Err(not(&format!("manifest.json names {name:?}"))),
        None => Ok(manifest),
    }
}

/// Opens a snapshot and verifies every byte of it.
pub fn open(path: &Path) -> Result<Manifest, StoreError> {
    let manifest = peek(path)?;
    for (name, expected) in manifest.files() {
        let file = path.join(&name);
        let sums = verify(&file)?;
        let found = match manifest.is_packed(&name) {
            true => packed::len(&file)?,
            false => sums.len(),
        };
        if found != expected {
            return Err(StoreError::Truncated {
                path: file,
                expected,
                found,
            });
        }
        if manifest.digests.get(&name) != Some(&format!("{:016x}", sums.digest())) {
            return Err(StoreError::Foreign { path: file });
        }
    }
    Ok(manifest)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

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
        // What earlier versions of snaprig have written.
        fs::create_dir(&three).unwrap();
        let earlier = r#"{"version": 1, "program": "km", "node": 1}"#;
        fs::write(three.join(manifest::NAME), earlier).unwrap();
        let refused = open(&three).unwrap_err();
        let versions = StoreError::Version {
            path: three.join(manifest::NAME),
            found: 1,
            expected: 2,
        };
        assert_eq!(refused.to_string(), versions.to_string());
    }

    #[test]
    fn programs_and_libraries_are_on_the_disk_once() {
        let dir = tempfile::tempdir().unwrap();
        let name = format!("{BINARIES}/km");
        let program: Vec<u8> = (0..200_000_u32).map(|at| (at * 11) as u8).collect();
        let make = |path: &Path, program: &[u8]| {
            let builder = Builder::create(path).unwrap();
            builder.add(IMAGE, b"the image").unwrap();
            builder.add_binary(&name, program).unwrap();
            let mut manifest = Manifest::new("km".into(), 1);
            manifest.image_bytes = 9;
            manifest.binaries.push(StoredFile {
                name: "km".into(),
                card_path: "/tmp/km".into(),
                len: program.len() as u64,
                mode: 0o755,
            });
            builder.commit(manifest).unwrap();
            open(path).unwrap();
            fs::metadata(path.join(&name)).unwrap().ino()
        };
        let (one, two) = (dir.path().join("one"), dir.path().join("two"));
        let first = make(&one, &program);
        // In place of an earlier one, and beside it.
        assert_eq!(make(&one, &program), first);
        assert_eq!(make(&two, &program), first);
        // One that is damaged, or of another program, is not taken.
        let mut damaged = program.clone();
        damaged[100_000] ^= 1;
        fs::write(one.join(&name), &damaged).unwrap();
        assert!(open(&two).is_err());
        assert_ne!(make(&one, &program), first);
        let other = make(&two, &damaged[..1000]);
        assert_ne!(make(&two, &program), other);
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
