//! The checksum of a stream: XXH3 of all of its bytes. The front that a writer or a reader has computes it.

use xxhash_rust::xxh3::Xxh3;

/// The checksum of a stream, as far as that has come.
#[derive(Clone, Default)]
pub struct Digest(Xxh3);

impl std::fmt::Debug for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Digest({:x})", self.checksum())
    }
}

impl Digest {
    /// These are the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The checksum of all bytes so far.
    pub fn checksum(&self) -> u64 {
        self.0.digest()
    }
}
