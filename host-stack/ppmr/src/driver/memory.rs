//! The pool of a node: memory in chunks, each of which one thread has at a time.

use std::sync::{Mutex, MutexGuard};

use super::lock;
use crate::{Buffers, message::Remote};

/// A pool. Its addresses, as peers name them, begin at 0.
#[derive(Debug)]
pub struct Memory {
    chunks: Vec<Mutex<Box<[u8]>>>,
    chunk_bytes: u32,
}

impl Memory {
    /// Of so many chunks.
    pub fn new(buffers: &Buffers, chunks: u32) -> Self {
        let chunk = || Mutex::new(vec![0; buffers.chunk_bytes as usize].into());
        Self {
            chunks: (0..chunks).map(|_| chunk()).collect(),
            chunk_bytes: buffers.chunk_bytes,
        }
    }

    /// Where peers find it.
    pub fn remote(&self) -> Remote {
        Remote::default()
    }

    /// A chunk, by its number.
    pub fn chunk(&self, slot: u32) -> Option<MutexGuard<'_, Box<[u8]>>> {
        self.chunks.get(slot as usize).map(lock)
    }

    /// The chunk that a peer means, if it is one, and so long.
    pub fn slot_at(&self, address: u64, bytes: u32) -> Option<u32> {
        let chunk_bytes = u64::from(self.chunk_bytes);
        let slot = u32::try_from(address.checked_div(chunk_bytes)?).ok()?;
        let is_one = address.is_multiple_of(chunk_bytes)
            && bytes <= self.chunk_bytes
            && (slot as usize) < self.chunks.len();
        is_one.then_some(slot)
    }
}
