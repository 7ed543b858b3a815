//! The checksum of a stream: XXH3 of all of its bytes. The front that a writer or a reader has computes it.

use xxhash_rust::xxh3::Xxh3;

/// The checksum of a stream, as far as that has come.
#[derive(Clone)]
pub struct Digest(Option<Xxh3>);

impl std::fmt::Debug for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Digest({:x})", self.checksum())
    }
}

impl Default for Digest {
    /// Of no bytes yet.
    fn default() -> Self {
        Self(Some(Xxh3::new()))
    }
}

impl Digest {
    /// Of a stream whose bytes are checked by whoever reads them, as those of an image are: every one has the same. Both ends
    /// have it, or neither.
    pub fn none() -> Self {
        Self(None)
    }

    /// These are the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        if let Some(hash) = &mut self.0 {
            hash.update(bytes);
        }
    }

    /// The checksum of all bytes so far.
    pub fn checksum(&self) -> u64 {
        self.0.as_ref().map_or(0, Xxh3::digest)
    }
}
