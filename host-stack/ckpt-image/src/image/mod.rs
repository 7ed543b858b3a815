//! The image of a checkpoint as a stream of bytes: written once, front to back, and read the same
//! way; so a pipe or a network may carry it.
//!
//! Its grammar is that of all images ([`snaprig_image`]), with blocks of 4096 bytes: pages can be written past the page
//! cache, and read or mapped from the file straight into place. Its header and records:
//!
//! ```text
//! header  payload: who made it where, in which round (postcard)
//! BTCH    payload: chunk*   body: the stored bytes of its chunks, one behind the other
//!         chunk := kind (u32) space (u32) address (u64) bytes (u64) stored bytes (u64) XXH3 (u64)
//! END.    totals: bytes of the image, chunks, bytes of state, of pages, of pages as stored, of zeroes, of what is gone
//! kinds of chunks
//!         1 pages, as they are    3 zeroes    5 state, more follows
//!         2 pages, zstd           4 gone      6 state, the last of a section    +8: zstd
//! ```
//! A chunk's stored bytes fill whole blocks, the rest of them zero, and its XXH3 is that of all of them; so no byte is
//! without a checksum. A later chunk about the same page is the one that counts: a writer
//! may begin while pages still change, and say at the end what has changed meanwhile; so state, too, may be anywhere.
//!
//! What must stay true: a reader believes nothing that it has not checked, holds at most one batch
//! and one section of state, and names the offset of the first thing that is wrong.

mod buffer;
mod error;
mod pipeline;
mod reader;
mod scan;
mod seal;
mod wire;
mod worth;
mod writer;

use serde::{Deserialize, Serialize};
pub use snaprig_image::{
    Filled, ImageId, NoId, Sink, Source, hash,
    transport::{FileSink, Reading},
};

pub use self::{
    buffer::Buffer,
    error::{ImageError, WriteError},
    reader::{Piece, Reader, State},
    scan::{Item, Scanner, Stored},
    writer::{Options, Writer},
};

/// Bytes of a page, and of a block of an image.
pub const PAGE: u64 = 4096;
/// Most bytes of data in a batch: what a [`Buffer`] holds, and the most that a chunk covers.
pub const CHUNK_MAX: usize = 4 << 20;
/// Most bytes of one section of state.
pub const STATE_MAX: usize = 64 << 20;
/// Version of the format: a reader refuses every other.
pub const VERSION: u32 = 5;

/// What stands at the front of an image: who made it where.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
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
    /// The image that it says the same as: the last of a chain that was collapsed into it.
    pub stands_for: Option<ImageId>,
    /// What is in it.
    pub totals: Totals,
}

/// Makes [`hash`] of bytes that come one after the other.
pub use xxhash_rust::xxh3::Xxh3Default as Hasher;
