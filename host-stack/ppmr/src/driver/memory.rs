//! The pool of a node: memory in chunks, each of which one thread has at a time.

use std::{
    ops::{Deref, DerefMut},
    sync::{Mutex, MutexGuard, PoisonError},
};

use crate::{Buffers, message::Remote};

/// A pool. Its addresses, as peers name them, begin at 0.
#[derive(Debug)]
pub struct Memory {
    chunks: Vec<Mutex<Box<[u8]>>>,
    chunk_bytes: u32,
}

/// A chunk, held.
pub struct Chunk<'a>(MutexGuard<'a, Box<[u8]>>);

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
    pub fn chunk(&self, slot: u32) -> Option<Chunk<'_>> {
        let chunk = self.chunks.get(slot as usize)?;
        Some(Chunk(chunk.lock().unwrap_or_else(PoisonError::into_inner)))
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

impl Deref for Chunk<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl DerefMut for Chunk<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}
