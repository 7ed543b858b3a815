//! Buffers for page data: aligned, a few, used over and over.
//!
//! A buffer has room in front of its data for the list of its batch, so that both go out as one
//! contiguous write; whose ends are on block boundaries, as O_DIRECT wants it.

use std::{
    io,
    ops::{Deref, DerefMut},
    ptr::{self, NonNull},
    sync::{
        Arc,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use super::{CHUNK_MAX, wire::LIST_MAX};

/// Of a huge page.
const HUGE: usize = 2 << 20;

/// Anonymous memory for one batch: [`LIST_MAX`] bytes, and [`CHUNK_MAX`] of data, which is of huge pages if the machine
/// has any left: to make small ones takes as long as to fill them.
struct Memory {
    mapped: NonNull<u8>,
    /// From the start of what is mapped to the list: the data begins with a huge page.
    before: usize,
}

impl Memory {
    const BYTES: usize = LIST_MAX + CHUNK_MAX;
    const MAPPED: usize = Self::BYTES + HUGE;

    fn new() -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice: nobody else has it.
        let start = unsafe {
            mmap_anonymous(ptr::null_mut(), Self::MAPPED, protection, MapFlags::PRIVATE)?
        };
        let mapped = NonNull::new(start.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let data = (mapped.addr().get() + LIST_MAX).next_multiple_of(HUGE);
        let before = data - LIST_MAX - mapped.addr().get();
        let memory = Self { mapped, before };
        // SAFETY: of the mapping, whose content they leave as it is. Where there are no huge pages, there are small ones.
        unsafe {
            let list = memory.start().as_ptr();
            let _ = madvise(list.add(LIST_MAX).cast(), CHUNK_MAX, Advice::LinuxHugepage);
            let _ = madvise(list.cast(), Self::BYTES, Advice::LinuxPopulateWrite);
        }
        Ok(memory)
    }

    /// Where the list is.
    fn start(&self) -> NonNull<u8> {
        // SAFETY: within the mapping.
        unsafe { self.mapped.add(self.before) }
    }
}

// SAFETY: the mapping belongs to this value alone; a thread that has the value may use and unmap it.
unsafe impl Send for Memory {}

impl Deref for Memory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: mapped readable from `new` to `drop`, initialized (to zero) by the kernel, and
        // written only through `&mut self`.
        unsafe { std::slice::from_raw_parts(self.start().as_ptr(), Self::BYTES) }
    }
}

impl DerefMut for Memory {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and writable; `&mut self` makes the slice the only one.
        unsafe { std::slice::from_raw_parts_mut(self.start().as_ptr(), Self::BYTES) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`, which no slice outlives.
        let unmapped = unsafe { munmap(self.mapped.as_ptr().cast(), Self::MAPPED) };
        debug_assert!(unmapped.is_ok());
    }
}

/// Memory of a pool's, with room in front of the data. Goes back when it is dropped.
pub struct Block {
    /// There until it is dropped.
    memory: Option<Memory>,
    home: SyncSender<Memory>,
}

impl Block {
    /// All of it: the list's room, then the data.
    pub fn bytes(&self) -> &[u8] {
        self.memory.as_deref().unwrap_or_default()
    }

    /// All of it, to write.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.memory.as_deref_mut().unwrap_or_default()
    }

    /// The data.
    pub fn data_mut(&mut self) -> &mut [u8] {
        &mut self.bytes_mut()[LIST_MAX..]
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            // The channel has room for all there are; without a pool it is unmapped.
            let _ = self.home.try_send(memory);
        }
    }
}

/// All blocks of a writer. They are made as they are needed: memory is not free.
pub struct Pool {
    free: Receiver<Memory>,
    home: SyncSender<Memory>,
    /// How many have been made, and how many may still be.
    made: usize,
    more: usize,
}

impl Pool {
    /// A pool of so many.
    pub fn new(blocks: usize) -> Self {
        let (home, free) = sync_channel(blocks);
        Self {
            free,
            home,
            made: 0,
            more: blocks,
        }
    }

    /// The next that is free; waits for it once all have been made.
    pub fn take(&mut self) -> io::Result<Block> {
        let memory = match self.free.try_recv() {
            Ok(memory) => memory,
            Err(_) if self.more > 0 => self.make()?,
            // We hold a sender: it does not fail.
            Err(_) => self.free.recv().map_err(io::Error::other)?,
        };
        Ok(Block {
            memory: Some(memory),
            home: self.home.clone(),
        })
    }

    /// Waits until all that have been made are back, and makes more until there are so many, or as many as
    /// there may be.
    pub fn settle(&mut self, blocks: usize) -> io::Result<()> {
        let mut all = Vec::new();
        for _ in 0..self.made {
            // We hold a sender: it does not fail.
            all.push(self.free.recv().map_err(io::Error::other)?);
        }
        while all.len() < blocks && self.more > 0 {
            all.push(self.make()?);
        }
        for memory in all {
            // It has room for all there are.
            let _ = self.home.try_send(memory);
        }
        Ok(())
    }

    fn make(&mut self) -> io::Result<Memory> {
        let memory = Memory::new()?;
        (self.made, self.more) = (self.made + 1, self.more - 1);
        Ok(memory)
    }
}

/// [`CHUNK_MAX`] bytes, page-aligned, for page data: to fill, and to give to
/// [`Writer::submit`](super::Writer::submit). What was in it before is anything.
pub struct Buffer {
    pub(super) block: Block,
    /// Counts those that are out.
    pub(super) _out: Arc<()>,
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.block.bytes()[LIST_MAX..]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.block.data_mut()
    }
}
