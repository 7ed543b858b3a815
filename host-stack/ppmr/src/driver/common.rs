//! The pool of a target, in two processes: one takes images, and the other reads them where they are.
//!
//! ```text
//! who takes (a child by fork(2))                  who reads
//!    | -- Part { slot, at, bytes }, ... ------------> |    copies it out of the pool
//!    | <- so many bytes are taken, their checksum --- |
//! ```
//! What must stay true: who reads touches only parts that it was told of, and has not said to be done with.

use std::{io, sync::Arc};

use serde::{Deserialize, Serialize};

use super::memory::Memory;
use crate::Buffers;

/// A pool that a child by fork(2) has as well.
#[derive(Clone, Debug)]
pub struct CommonPool(pub(super) Arc<Memory>);

/// Where bytes of a stream are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    pub(super) slot: u32,
    pub(super) at: u32,
    pub(super) bytes: u32,
}

impl CommonPool {
    /// For so many streams at one time.
    pub fn new(buffers: &Buffers, streams_max: u32) -> io::Result<Self> {
        let chunks = buffers.chunks_for(streams_max as usize);
        let chunks = chunks.map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        Ok(Self(Arc::new(Memory::new(buffers, chunks)?)))
    }

    /// Copies as much of the front of a part as there is room for; the rest of the part. An error: it is none of this pool.
    pub fn copy(&self, part: Part, to: &mut [u8]) -> io::Result<(usize, Option<Part>)> {
        let Part { slot, at, bytes } = part;
        let count = to.len().min(bytes as usize);
        let here = self.0.part(slot, at, bytes);
        let here = here.ok_or(io::ErrorKind::InvalidData)?;
        here.copy_to(&mut to[..count]);
        let (at, bytes) = (at + count as u32, bytes - count as u32);
        Ok((count, (bytes > 0).then_some(Part { slot, at, bytes })))
    }
}
