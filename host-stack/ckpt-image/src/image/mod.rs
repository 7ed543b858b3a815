//! The image of a checkpoint as a stream of bytes: written once, front to back, and read the same
//! way; so a pipe or a network may carry it.
//!
//! ```text
//! image   := header  batch*  trailer
//! header  := magic (8) version (u32) bytes of the header (u32) XXH3 (u64)  Header (postcard)
//! batch   := magic (u32) chunks (u32) index (u64) bytes of data (u64) XXH3 (u64)  chunk*  data
//! chunk   := kind (u32) space (u32) address (u64) bytes (u64) stored bytes (u64) XXH3 (u64)
//! trailer := magic (u32) zero (u32) batches (u64) XXH3 (u64)  image's id (u64)  totals (u64 each)
//! kinds      1 pages, as they are    3 zeroes    5 state, more follows
//!            2 pages, zstd           4 gone      6 state, the last of a section    +8: zstd
//! ```
//! Integers are little-endian. Header, chunk list, stored data and trailer each fill whole blocks
//! of 4096 bytes, the rest of them zero: pages can be written past the page cache, and read or
//! mapped from the file straight into place.
//!
//! ```text
//! reader:  header --> batch --> batch --> ... --(trailer)--> end
//! ```
//! A chunk's XXH3 is that of its stored bytes, padding included; a batch's that of its list, seeded
//! with its index; so no byte is without a checksum. The id of an image is the XXH3 of the checksums
//! of its header and of all its batches. A later chunk about the same page is the one that counts: a writer
//! may begin while pages still change, and say at the end what has changed meanwhile; so state, too, may be anywhere.
//!
//! What must stay true: a reader believes nothing that it has not checked, holds at most one batch
//! and one section of state, and names the offset of the first thing that is wrong.

mod direct;
mod error;
mod file;
mod pipeline;
mod pool;
mod reader;
mod scan;
mod seal;
mod sink;
mod wire;
mod writer;

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub use self::{
    error::{ImageError, WriteError},
    file::FileSink,
    pool::Buffer,
    reader::{Piece, Reader, State},
    scan::{Item, Scanner, Stored},
    sink::{Sealed, Sink},
    writer::{Options, Writer},
};

/// Bytes of a page, and of a block of an image.
pub const PAGE: u64 = 4096;
/// Most bytes of data in a batch: what a [`Buffer`] holds, and the most that a chunk covers.
pub const CHUNK_MAX: usize = 4 << 20;
/// Most bytes of one section of state.
pub const STATE_MAX: usize = 64 << 20;
/// Version of the format: a reader refuses every other.
pub const VERSION: u32 = 4;

/// Names an image: a hash of all that is in it. Never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ImageId(pub(crate) u64);

impl fmt::Display for ImageId {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// It is not 16 hexadecimal digits, or all of them are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an image's id is 16 hexadecimal digits, not all zero")]
pub struct NoId;

impl FromStr for ImageId {
    type Err = NoId;

    fn from_str(text: &str) -> Result<Self, NoId> {
        match u64::from_str_radix(text, 16) {
            Ok(id) if id != 0 && text.len() == 16 => Ok(Self(id)),
            _ => Err(NoId),
        }
    }
}

impl Serialize for ImageId {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match to.is_human_readable() {
            true => to.collect_str(self),
            false => self.0.serialize(to),
        }
    }
}

impl<'de> Deserialize<'de> for ImageId {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        use serde::de::Error;
        if from.is_human_readable() {
            let text = std::borrow::Cow::<str>::deserialize(from)?;
            return text.parse().map_err(D::Error::custom);
        }
        match u64::deserialize(from)? {
            0 => Err(D::Error::custom(NoId)),
            id => Ok(Self(id)),
        }
    }
}

/// What stands at the front of an image: who made it where.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// Release of the kernel it was made on (uname(2)).
    pub kernel: String,
    /// Bytes of a page there.
    pub page_bytes: u32,
    /// What its processor can do, as in /proc/cpuinfo.
    pub cpu_features: Vec<String>,
    /// The checkpoint that it is part of.
    pub round: u64,
    /// The image whose pages it builds on; none: it has all there are.
    pub parent: Option<ImageId>,
    /// The image that it says the same as: the last of a chain that was collapsed into it.
    pub stands_for: Option<ImageId>,
}

/// Whole pages at an address of a space: a process's address space, or a shared memory object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The space's number.
    pub space: u32,
    /// Of the first page: a multiple of [`PAGE`].
    pub address: u64,
    /// How long: a multiple of [`PAGE`].
    pub bytes: u64,
}

/// What is in an image, all told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Bytes of the image.
    pub file_bytes: u64,
    /// Chunks.
    pub chunks: u64,
    /// Bytes of state.
    pub state_bytes: u64,
    /// Bytes of pages that are not zero.
    pub page_bytes: u64,
    /// Bytes that those take in the image.
    pub stored_bytes: u64,
    /// Bytes of pages that are zero.
    pub zero_bytes: u64,
    /// Bytes of pages that are gone.
    pub gone_bytes: u64,
}

/// A complete image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Its id.
    pub id: ImageId,
    /// What is in it.
    pub totals: Totals,
}

/// Makes [`hash`] of bytes that come one after the other.
pub use xxhash_rust::xxh3::Xxh3Default as Hasher;

/// The checksum of a chunk's stored bytes.
pub fn hash(stored: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(stored)
}
