//! What is in a directory: `manifest.json`, a [`sealed`] file. What it says is each kind of directory's own, and
//! so is its version.

use std::{
    fs::File,
    io::{self, Read, Write},
    path::{Path, PathBuf},
};

use serde::{Serialize, de::DeserializeOwned};

use crate::{
    CommitError, NewFile,
    sealed::{self, SealError},
};

/// The file's name.
pub const NAME: &str = "manifest.json";
/// Most bytes of the file. A longer one is not written either: nobody could read it.
const BYTES_MAX: u64 = 16 << 20;

/// Why a manifest cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// It cannot be read.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It was written by another version.
    #[error("{path} is of version {found}, and version {read} is read")]
    Version {
        /// The file.
        path: PathBuf,
        /// The version it names.
        found: u32,
        /// The version that is read.
        read: u32,
    },
    /// It is damaged.
    #[error("{path} is damaged at offset {offset}: {why}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where it makes no sense; 0 if all of it does, but is not what was written.
        offset: u64,
        /// What is wrong.
        why: String,
    },
}

/// Writes the manifest of a directory, safely on the disk. The directory is not synced.
pub fn write<M: Serialize>(
    directory: &Path,
    version: u32,
    manifest: &M,
) -> Result<(), CommitError> {
    let path = directory.join(NAME);
    let io = |source| CommitError::Io {
        path: path.clone(),
        source,
    };
    let text = sealed::to_text(version, manifest).map_err(|error| io(error.into()))?;
    if text.len() as u64 > BYTES_MAX {
        return Err(io(io::ErrorKind::FileTooLarge.into()));
    }
    let mut file = NewFile::create(&path)?;
    file.write_all(&text).map_err(io)?;
    file.rename()
}

/// Reads the manifest of a directory.
pub fn read<M: Serialize + DeserializeOwned>(
    directory: &Path,
    version: u32,
) -> Result<M, ManifestError> {
    let path = directory.join(NAME);
    let mut text = Vec::new();
    let read = File::open(&path).and_then(|file| file.take(BYTES_MAX).read_to_end(&mut text));
    read.map_err(|source| ManifestError::Io {
        path: path.clone(),
        source,
    })?;
    sealed::of_text(&text, version).map_err(|error| match error {
        SealError::Version { found, known } => ManifestError::Version {
            path,
            found,
            read: known,
        },
        SealError::Damaged { offset, why } => ManifestError::Damaged { path, offset, why },
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_manifest_comes_back_and_no_other_does() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        let manifest = vec!["a file".to_owned(), "another".to_owned()];
        let read = |version| read::<Vec<String>>(directory, version);
        assert!(matches!(read(3), Err(ManifestError::Io { .. })));
        write(directory, 3, &manifest).unwrap();
        assert_eq!(read(3).unwrap(), manifest);
        assert_eq!(fs::read_dir(directory).unwrap().count(), 1);
        let refused = read(4).unwrap_err();
        assert!(matches!(
            refused,
            ManifestError::Version {
                found: 3,
                read: 4,
                ..
            }
        ));
        let too_long = "x".repeat(BYTES_MAX as usize);
        assert!(write(directory, 3, &vec![too_long]).is_err());
        assert_eq!(read(3).unwrap(), manifest);
        let path = directory.join(NAME);
        let good = fs::read(&path).unwrap();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 4;
            fs::write(&path, &bad).unwrap();
            let Err(error) = read(3) else {
                panic!("{at}");
            };
            if let ManifestError::Damaged { offset, .. } = error {
                assert!(offset <= good.len() as u64);
            }
        }
        fs::write(&path, r#"{"version": 9, "new": []}"#).unwrap();
        assert!(matches!(
            read(3),
            Err(ManifestError::Version { found: 9, .. })
        ));
    }
}
