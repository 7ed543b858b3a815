//! The pool of a node: memory in chunks, all of it one mapping, which an HCA can know as one region. It is shared memory: the
//! child of a fork(2) has the same (a [common pool](super::common)), and is not given a copy of what an HCA knows.
//!
//! Peers and their HCAs may write to chunks while they are read: those are copied, and nothing in Rust ever refers to them.
//! Behind them is what a source's writers fill themselves ([`lent`](super::lent)), which nobody else writes to.

use std::{
    io,
    ops::Range,
    sync::atomic::{AtomicUsize, Ordering},
};

use rustix::mm::{MapFlags, ProtFlags};
use vm_memory::{MmapRegion, VolatileMemory, VolatileSlice};

use crate::{Buffers, message::Remote};

const PAGE_BYTES: usize = 4096;
/// mmap(2): of no file.
const MAP_ANONYMOUS: u32 = 0x20;

/// A pool. Its addresses, as peers name them, begin at 0.
#[derive(Debug)]
pub struct Memory {
    region: MmapRegion,
    chunk_bytes: u32,
    chunks: u32,
    /// Where the next bytes begin that can be lent.
    unlent: AtomicUsize,
}

impl Memory {
    /// Of so many chunks.
    pub fn new(buffers: &Buffers, chunks: u32) -> io::Result<Self> {
        Self::lending(buffers, chunks, 0)
    }

    /// The same, with as many bytes more to lend.
    pub fn lending(buffers: &Buffers, chunks: u32, bytes: usize) -> io::Result<Self> {
        let chunk_bytes = buffers.chunk_bytes;
        let pool = (chunks as usize).checked_mul(chunk_bytes as usize);
        let pool = pool.and_then(|bytes| bytes.checked_next_multiple_of(PAGE_BYTES));
        let pool = pool.ok_or(io::ErrorKind::OutOfMemory)?;
        let bytes = pool.checked_add(bytes);
        let bytes = bytes.ok_or(io::ErrorKind::OutOfMemory)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = (MapFlags::SHARED | MapFlags::NORESERVE).bits() | MAP_ANONYMOUS;
        let region = MmapRegion::build(None, bytes, protection.bits() as i32, flags as i32);
        Ok(Self {
            region: region.map_err(io::Error::other)?,
            chunk_bytes,
            chunks,
            unlent: AtomicUsize::new(pool),
        })
    }

    /// So many bytes, whole pages, which are nobody else's from now on; none: there are no more.
    pub fn lend(&self, bytes: usize) -> Option<Range<usize>> {
        let bytes = bytes.checked_next_multiple_of(PAGE_BYTES)?;
        let end =
            |start: usize| Some(start.checked_add(bytes)?).filter(|end| *end <= self.region.size());
        let ordering = Ordering::Relaxed;
        let lent = self.unlent.fetch_update(ordering, ordering, end);
        lent.ok().map(|start| start..start + bytes)
    }

    /// Some bytes, of whatever they are.
    pub fn at(&self, address: u64, bytes: u32) -> Option<VolatileSlice<'_>> {
        let from = usize::try_from(address).ok()?;
        self.region.get_slice(from, bytes as usize).ok()
    }

    /// Where a chunk begins, as peers name it.
    pub fn address(&self, slot: u32) -> u64 {
        u64::from(slot) * u64::from(self.chunk_bytes)
    }

    /// Where peers find it.
    pub fn remote(&self) -> Remote {
        Remote::default()
    }

    /// All of it.
    pub fn region(&self) -> &MmapRegion {
        &self.region
    }

    /// Some bytes of a chunk, if it has them.
    pub fn part(&self, slot: u32, at: u32, bytes: u32) -> Option<VolatileSlice<'_>> {
        if slot >= self.chunks || at.checked_add(bytes)? > self.chunk_bytes {
            return None;
        }
        let chunk = (slot as usize).checked_mul(self.chunk_bytes as usize)?;
        let from = chunk.checked_add(at as usize)?;
        self.region.get_slice(from, bytes as usize).ok()
    }

    /// The chunk that a peer means, if it is one, and so long.
    pub fn slot_at(&self, address: u64, bytes: u32) -> Option<u32> {
        let chunk_bytes = u64::from(self.chunk_bytes);
        let slot = u32::try_from(address.checked_div(chunk_bytes)?).ok()?;
        let is_one = address.is_multiple_of(chunk_bytes) && self.part(slot, 0, bytes).is_some();
        is_one.then_some(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lent_is_nobody_elses() {
        const LENT_BYTES: usize = 64 * PAGE_BYTES;
        let memory = Memory::lending(&Buffers::default(), 2, LENT_BYTES).unwrap();
        let lent = [1, LENT_BYTES - PAGE_BYTES, 1].map(|bytes| memory.lend(bytes));
        let pool = 256 << 10;
        let [end, all] = [pool + PAGE_BYTES, pool + LENT_BYTES];
        assert_eq!(lent, [Some(pool..end), Some(end..all), None]);
        assert!(memory.at(pool as u64, LENT_BYTES as u32).is_some());
        assert!(memory.at(pool as u64, LENT_BYTES as u32 + 1).is_none());
        // No chunk is there.
        assert_eq!(memory.slot_at(pool as u64, 128 << 10), None);
    }

    #[test]
    fn no_part_is_outside_of_its_chunk() {
        let buffers = Buffers {
            pool_bytes: 300,
            chunk_bytes: 100,
        };
        let memory = Memory::new(&buffers, 3).unwrap();
        assert!(memory.part(2, 0, 100).is_some() && memory.part(2, 100, 0).is_some());
        for (slot, at, bytes) in [(3, 0, 1), (0, 0, 101), (0, 1, 100), (0, u32::MAX, 2)] {
            assert!(memory.part(slot, at, bytes).is_none());
        }
        assert_eq!(memory.slot_at(200, 100), Some(2));
        assert_eq!(memory.lend(1), None);
        for (address, bytes) in [(300, 1), (1, 1), (0, 101), (u64::MAX, 0)] {
            assert_eq!(memory.slot_at(address, bytes), None);
        }
    }
}
