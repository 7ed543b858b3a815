//! A small JSON file that is believed only if it is whole:
//!
//! ```text
//! { "version": 1, "checksum": XXH3 of the manifest as compact JSON, "manifest": { ... } }
//! ```

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use xxhash_rust::xxh3::xxh3_64;

/// What is wrong with such a file.
#[derive(Debug, thiserror::Error)]
pub enum SealError {
    /// It was written by another version of snaprig.
    #[error("it is of version {found}, and this snaprig reads version {known}")]
    Version {
        /// The version that it names.
        found: u32,
        /// The version that is read.
        known: u32,
    },
    /// It is not what was written.
    #[error("it is damaged at offset {offset}: {why}")]
    Damaged {
        /// Where it makes no sense; 0 if all of it does, but is not what was written.
        offset: u64,
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

/// What is read before the version is known: nothing else of another version's need make sense.
#[derive(Deserialize)]
struct Version {
    version: u32,
}

/// The text of a file that holds this.
pub fn to_text<M: Serialize>(version: u32, manifest: &M) -> serde_json::Result<Vec<u8>> {
    serde_json::to_vec_pretty(&Sealed {
        version,
        checksum: checksum(manifest)?,
        manifest,
    })
}

/// What a file with this text holds.
pub fn of_text<M: Serialize + DeserializeOwned>(text: &[u8], known: u32) -> Result<M, SealError> {
    let damaged = |error: serde_json::Error| SealError::Damaged {
        offset: offset_of(text, &error),
        why: error.to_string(),
    };
    let Version { version: found } = serde_json::from_slice(text).map_err(damaged)?;
    if found != known {
        return Err(SealError::Version { found, known });
    }
    let sealed: Sealed<M> = serde_json::from_slice(text).map_err(damaged)?;
    match sealed.checksum == checksum(&sealed.manifest).map_err(damaged)? {
        true => Ok(sealed.manifest),
        false => Err(SealError::Damaged {
            offset: 0,
            why: "its checksum differs".into(),
        }),
    }
}

/// Where in a text its parser has found an error, which it says by line and column.
fn offset_of(text: &[u8], error: &serde_json::Error) -> u64 {
    let before = text.split(|byte| *byte == b'\n');
    let before = before.take(error.line().saturating_sub(1));
    let lines: usize = before.map(|line| line.len() + 1).sum();
    (lines + error.column().saturating_sub(1)) as u64
}

fn checksum<M: Serialize>(manifest: &M) -> serde_json::Result<String> {
    let text = serde_json::to_vec(manifest)?;
    Ok(format!("{:016x}", xxh3_64(&text)))
}
