//! Files by their names, and what identifies them later: looked up once, as long as they do not change.

use std::{
    collections::HashMap,
    fs::File,
    io::{self, Read},
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::{Path, PathBuf},
};

use libc::pid_t;
use xxhash_rust::xxh3::Xxh3;

use crate::{
    error::{Error, Result},
    state::FileId,
};

/// What is known of files.
#[derive(Debug, Default)]
pub struct Named(HashMap<PathBuf, (FileId, u64)>);

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

    fn look(&mut self, path: &Path, hashed: bool) -> io::Result<FileId> {
        let metadata = std::fs::metadata(path)?;
        let modified_nanos = modified(&metadata);
        if let Some((known, inode)) = self.0.get(path) {
            let is_same = *inode == metadata.ino()
                && known.size == metadata.len()
                && known.modified_nanos == modified_nanos;
            if is_same && (known.hash != 0 || !hashed) {
                return Ok(known.clone());
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
        self.0.insert(path.to_owned(), (id.clone(), metadata.ino()));
        Ok(id)
    }
}

/// Last modification of a file, in nanoseconds.
pub fn modified(metadata: &std::fs::Metadata) -> i64 {
    metadata.mtime() * 1_000_000_000 + metadata.mtime_nsec()
}

/// XXH3 of a file's bytes; not 0.
pub fn hash(path: &Path) -> io::Result<u64> {
    let mut file = File::open(path)?;
    let mut hash = Xxh3::new();
    let mut bytes = vec![0; 1 << 20];
    loop {
        match file.read(&mut bytes)? {
            0 => return Ok(hash.digest().max(1)),
            count => hash.update(&bytes[..count]),
        }
    }
}
