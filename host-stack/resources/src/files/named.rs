//! Files by their names, and what identifies them later: looked up once, as long as they do not change.

use std::{
    collections::HashMap,
    ffi::OsStr,
    fs::File,
    io::{self, Read},
    os::unix::{
        ffi::OsStrExt,
        fs::{FileExt, MetadataExt},
    },
    path::{Path, PathBuf},
};

use libc::pid_t;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::{
    error::{Error, Result},
    state::FileId,
};

/// The end of a file by which one that has only grown is known again, in bytes.
const TAIL: u64 = 64 << 10;

/// What is known of files.
#[derive(Debug, Default)]
pub struct Named {
    files: HashMap<PathBuf, NamedFile>,
    /// Names of files that inotify instances watch, by device and inode.
    pub watched: HashMap<(u64, u64), PathBuf>,
}

/// A file.
#[derive(Debug)]
struct NamedFile {
    id: FileId,
    inode: u64,
    tail: Option<u64>,
}

impl Named {
    /// A file that a process uses; `hashed`: its bytes are looked at as well.
    pub fn file(&mut self, pid: pid_t, path: &Path, hashed: bool) -> Result<FileId> {
        let found = self.look(path, hashed);
        found.map_err(|source| Error::Process {
            pid,
            what: format!("its file {}", path.display()),
            source,
        })
    }

    /// What an image says of a file's bytes, which a restart has found to be those that are there: they need not be looked at.
    pub fn learn(&mut self, id: &FileId) {
        let path = Path::new(OsStr::from_bytes(&id.path));
        if id.hash == 0 || self.files.contains_key(path) {
            return;
        }
        let Ok(metadata) = std::fs::metadata(path) else {
            return;
        };
        if metadata.len() == id.size && modified(&metadata) == id.modified_nanos {
            let known = NamedFile {
                id: id.clone(),
                inode: metadata.ino(),
                tail: None,
            };
            self.files.insert(path.to_owned(), known);
        }
    }

    fn look(&mut self, path: &Path, hashed: bool) -> io::Result<FileId> {
        let metadata = std::fs::metadata(path)?;
        let modified_nanos = modified(&metadata);
        if let Some(NamedFile { id, inode, .. }) = self.files.get(path) {
            let is_same = *inode == metadata.ino()
                && id.size == metadata.len()
                && id.modified_nanos == modified_nanos;
            if is_same && (id.hash != 0 || !hashed) {
                return Ok(id.clone());
            }
        }
        let hash = match hashed {
            true => hash(path)?,
            false => 0,
        };
        let id = FileId {
            path: path.as_os_str().as_bytes().to_vec(),
            size: metadata.len(),
            modified_nanos,
            hash,
        };
        let known = NamedFile {
            id: id.clone(),
            inode: metadata.ino(),
            tail: None,
        };
        self.files.insert(path.to_owned(), known);
        Ok(id)
    }

    /// [`tail`] of a file that has been looked up; 0: it cannot be read.
    pub fn tail(&mut self, path: &Path) -> u64 {
        let Some(known) = self.files.get_mut(path) else {
            return 0;
        };
        let size = known.id.size;
        *known
            .tail
            .get_or_insert_with(|| tail(path, size).unwrap_or(0))
    }
}

/// Last modification of a file, in nanoseconds.
pub fn modified(metadata: &std::fs::Metadata) -> i64 {
    metadata.mtime() * 1_000_000_000 + metadata.mtime_nsec()
}

/// XXH3 of the last 64 KiB of the first `size` bytes of a file; not 0.
pub fn tail(path: &Path, size: u64) -> io::Result<u64> {
    let mut bytes = vec![0; size.min(TAIL) as usize];
    let start = size - bytes.len() as u64;
    File::open(path)?.read_exact_at(&mut bytes, start)?;
    Ok(xxh3_64(&bytes).max(1))
}

/// XXH3 of a file's bytes; not 0.
pub fn hash(path: &Path) -> io::Result<u64> {
    let mut file = File::open(path)?;
    let mut hash = Xxh3::new();
    let mut bytes = vec![0; 128 << 10];
    loop {
        match file.read(&mut bytes)? {
            0 => return Ok(hash.digest().max(1)),
            count => hash.update(&bytes[..count]),
        }
    }
}
