//! Checksums of a file, one a chunk, in a file of their own beside it (`NAME.xxh3`).
//!
//! ```text
//! magic (8 bytes)  version (u32)  chunk bytes (u32)  length (u64)  XXH3 of each chunk (u64 each)
//! XXH3 of all of the above (u64)
//! ```
//! Integers are little-endian. A damaged file is refused by name and offset, whichever of the two
//! it is.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
};

use snaprig_store::{CommitError, ManifestError};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

const MAGIC: &[u8; 8] = b"SNAPSUMS";
const VERSION: u32 = 1;
/// Bytes that one checksum covers.
pub const CHUNK_BYTES: usize = 64 << 10;
const HEADER_BYTES: usize = 24;

/// Why a stored file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The host said no.
    #[error("{path}: {source}{}", hint(.source))]
    Io {
        /// The file.
        path: PathBuf,
        /// What the host said.
        source: io::Error,
    },
    /// A chunk does not match its checksum.
    #[error("{path} is damaged in the {len} bytes at offset {offset}; take another snapshot")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where the chunk starts.
        offset: u64,
        /// Its bytes.
        len: u64,
    },
    /// What says what the snapshot is of is damaged.
    #[error("{path} is damaged at offset {offset}: {why}; take another snapshot")]
    Manifest {
        /// The file.
        path: PathBuf,
        /// Where.
        offset: u64,
        /// What is wrong with it.
        why: String,
    },
    /// The file is shorter or longer than it was.
    #[error("{path} has {found} bytes instead of {expected}; take another snapshot")]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Bytes it should have.
        expected: u64,
        /// Bytes it has.
        found: u64,
    },
    /// It was written by another version of snaprig.
    #[error("{path} is of version {found}, this snaprig reads version {expected}")]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// The version that is read.
        expected: u32,
    },
    /// It is whole, but not the file that the snapshot was made with.
    #[error("{path} belongs to another snapshot, from its first byte (offset 0)")]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// Somebody else is writing it.
    #[error("a snapshot is being made in {path} already; wait for it, or choose another directory")]
    Busy {
        /// The directory.
        path: PathBuf,
    },
    /// It is no snapshot at all.
    #[error("{path} is not a snapshot: {why}")]
    NotASnapshot {
        /// The directory or file.
        path: PathBuf,
        /// What is missing.
        why: String,
    },
}

impl StoreError {
    /// What the host said, if it did.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Io { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }
}

impl From<CommitError> for StoreError {
    fn from(error: CommitError) -> Self {
        match error {
            CommitError::Io { path, source } => Self::Io { path, source },
            CommitError::Busy { path } => Self::Busy { path },
            CommitError::Exists { path } => Self::Io {
                path,
                source: io::ErrorKind::AlreadyExists.into(),
            },
        }
    }
}

impl From<ManifestError> for StoreError {
    fn from(error: ManifestError) -> Self {
        match error {
            ManifestError::Io { path, source } => Self::Io { path, source },
            ManifestError::Version { path, found, read } => Self::Version {
                path,
                found,
                expected: read,
            },
            ManifestError::Damaged { path, offset, why } => Self::Manifest { path, offset, why },
        }
    }
}

/// What to do about an error of the host.
pub fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "; make room, or choose another directory"
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "; choose a directory that you may write to"
        }
        _ => "",
    }
}

/// An error of the host on `path`.
pub fn io_error(path: &Path) -> impl FnOnce(io::Error) -> StoreError + '_ {
    move |source| StoreError::Io {
        path: path.to_owned(),
        source,
    }
}

/// Where a file's checksums are.
pub fn path_of(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".xxh3");
    name.into()
}

/// Checksums of a file that is being written or read.
#[derive(Default)]
pub struct Sums {
    len: u64,
    chunks: Vec<u64>,
    current: Xxh3,
    in_current: usize,
}

impl Sums {
    /// Takes the next bytes of the file.
    pub fn update(&mut self, mut bytes: &[u8]) {
        self.len += bytes.len() as u64;
        while !bytes.is_empty() {
            let part = bytes.len().min(CHUNK_BYTES - self.in_current);
            self.current.update(&bytes[..part]);
            self.in_current += part;
            bytes = &bytes[part..];
            if self.in_current == CHUNK_BYTES {
                self.end_chunk();
            }
        }
    }

    fn end_chunk(&mut self) {
        self.chunks.push(self.current.digest());
        self.current.reset();
        self.in_current = 0;
    }

    /// With the last chunk of the file, which may be short.
    pub fn finished(mut self) -> Self {
        if self.in_current > 0 {
            self.end_chunk();
        }
        self
    }

    /// Writes the checksums beside `file`, safely on the disk.
    pub fn save(self, file: &Path) -> Result<(), StoreError> {
        write_synced(&path_of(file), &self.sealed())
    }

    /// The same, for who does not need them after a crash of the machine.
    pub fn save_unsynced(self, file: &Path) -> Result<(), StoreError> {
        let path = path_of(file);
        fs::write(&path, self.sealed()).map_err(io_error(&path))
    }

    fn sealed(self) -> Vec<u8> {
        let mut bytes = self.finished().encode();
        bytes.extend_from_slice(&xxh3_64(&bytes).to_le_bytes());
        bytes
    }

    /// Reads the checksums beside `file`.
    pub fn load(file: &Path) -> Result<Self, StoreError> {
        let path = path_of(file);
        let bytes = fs::read(&path).map_err(io_error(&path))?;
        let damaged = || StoreError::Damaged {
            path: path.clone(),
            offset: 0,
            len: bytes.len() as u64,
        };
        if bytes.len() < HEADER_BYTES + 8 || !(bytes.len() - HEADER_BYTES).is_multiple_of(8) {
            return Err(damaged());
        }
        let (body, own) = bytes.split_at(bytes.len() - 8);
        if xxh3_64(body).to_le_bytes() != *own || body[..8] != *MAGIC {
            return Err(damaged());
        }
        let version = u32::from_le_bytes(body[8..12].try_into().expect("4 bytes"));
        if version != VERSION {
            return Err(StoreError::Version {
                path,
                found: version,
                expected: VERSION,
            });
        }
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
        let (len, chunks): (_, Vec<u64>) = (
            word(&body[16..24]),
            body[24..].chunks_exact(8).map(word).collect(),
        );
        if chunks.len() as u64 != len.div_ceil(CHUNK_BYTES as u64) {
            return Err(damaged());
        }
        Ok(Self {
            len,
            chunks,
            ..Self::default()
        })
    }

    /// Bytes of the file.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// One number for the whole file: XXH3 of the checksums of its chunks and of its length.
    pub fn digest(&self) -> u64 {
        xxh3_64(&self.encode())
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&(CHUNK_BYTES as u32).to_le_bytes());
        bytes.extend_from_slice(&self.len.to_le_bytes());
        bytes.extend(self.chunks.iter().flat_map(|sum| sum.to_le_bytes()));
        bytes
    }

    /// Whether the file is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Checks a whole chunk that was read at `offset` of `file`.
    pub fn check(&self, file: &Path, offset: u64, chunk: &[u8]) -> Result<(), StoreError> {
        match self.chunks.get(offset as usize / CHUNK_BYTES) {
            Some(sum) if *sum == xxh3_64(chunk) => Ok(()),
            _ => Err(StoreError::Damaged {
                path: file.to_owned(),
                offset,
                len: chunk.len() as u64,
            }),
        }
    }
}

/// Writes a small file and waits until it is on the disk.
pub fn write_synced(path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    let mut file = File::create(path).map_err(io_error(path))?;
    file.write_all(bytes)
        .and_then(|()| file.sync_all())
        .map_err(io_error(path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::verify;

    #[test]
    fn every_flipped_bit_is_found_and_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let bytes: Vec<u8> = (0..200_000u32).map(|i| (i * 7) as u8).collect();
        fs::write(&path, &bytes).unwrap();
        let mut sums = Sums::default();
        for part in bytes.chunks(777) {
            sums.update(part);
        }
        sums.save(&path).unwrap();
        assert_eq!(verify(&path).unwrap().len(), 200_000);
        for at in [0, 65_535, 65_536, 199_999] {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            fs::write(&path, &damaged).unwrap();
            let offset = (at / CHUNK_BYTES * CHUNK_BYTES) as u64;
            match verify(&path).err().unwrap() {
                StoreError::Damaged { offset: found, .. } => assert_eq!(found, offset),
                other => panic!("{other}"),
            }
        }
        fs::write(&path, &bytes[..100_000]).unwrap();
        assert!(matches!(
            verify(&path),
            Err(StoreError::Truncated { found: 100_000, .. })
        ));
        fs::write(&path, &bytes).unwrap();
        let good = fs::read(path_of(&path)).unwrap();
        for at in 0..good.len() {
            let mut damaged = good.clone();
            damaged[at] ^= 1;
            fs::write(path_of(&path), &damaged).unwrap();
            assert!(verify(&path).is_err(), "sums flipped at {at}");
        }
    }
}
