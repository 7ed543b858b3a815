//! What is in a directory: `manifest.json`.
//!
//! ```text
//! { "version": 1, "checksum": XXH3 of the manifest as compact JSON, "manifest": { ... } }
//! ```
//! What the manifest says is each kind of directory's own, and so is its version.

use std::{
    fs::File,
    io::{self, Read, Write},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use xxhash_rust::xxh3::xxh3_64;

use crate::{CommitError, NewFile};

/// The file's name.
pub const NAME: &str = "manifest.json";
/// Most bytes of the file.
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
    #[error("{path} is damaged: {why}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
}

#[derive(Serialize, Deserialize)]
struct Sealed<M> {
    version: u32,
    checksum: String,
    manifest: M,
}

/// What is read of a manifest before its version is known: nothing else of another version's need make sense.
#[derive(Deserialize)]
struct Version {
    version: u32,
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
    let sealed = Sealed {
        version,
        checksum: checksum(manifest),
        manifest,
    };
    let text = serde_json::to_vec_pretty(&sealed).map_err(|error| io(error.into()))?;
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
    let damaged = |why: String| ManifestError::Damaged {
        path: path.clone(),
        why,
    };
    let parsed = serde_json::from_slice(&text);
    let Version { version: found } = parsed.map_err(|error| damaged(error.to_string()))?;
    if found != version {
        return Err(ManifestError::Version {
            path: path.clone(),
            found,
            read: version,
        });
    }
    let parsed = serde_json::from_slice(&text);
    let sealed: Sealed<M> = parsed.map_err(|error| damaged(error.to_string()))?;
    match sealed.checksum == checksum(&sealed.manifest) {
        true => Ok(sealed.manifest),
        false => Err(damaged("its checksum differs".into())),
    }
}

fn checksum<M: Serialize>(manifest: &M) -> String {
    let text = serde_json::to_vec(manifest).unwrap_or_default();
    format!("{:016x}", xxh3_64(&text))
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
        let path = directory.join(NAME);
        let good = fs::read(&path).unwrap();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 4;
            fs::write(&path, &bad).unwrap();
            assert!(read(3).is_err(), "{at}");
        }
        fs::write(&path, r#"{"version": 9, "new": []}"#).unwrap();
        assert!(matches!(
            read(3),
            Err(ManifestError::Version { found: 9, .. })
        ));
    }
}
