//! Contents of a regular file: frames of card memory, with holes.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use super::Stat;
use crate::{
    kernel::{errno::Errno, time::card_clock},
    memory::{CardMemory, PAGE},
};

/// The largest file.
pub const SIZE_MAX: u64 = 1 << 40;
/// The part of a card's memory that writes to files leave free: when they have filled the rest,
/// programs can still run, if only to remove them.
const RESERVED_PART: u64 = 64;

/// A regular file, named or not.
pub struct Inode {
    memory: Arc<CardMemory>,
    number: u64,
    inner: Mutex<Inner>,
}

struct Inner {
    size: u64,
    frames: BTreeMap<u64, u64>,
    mode: u32,
    nlink: u64,
    mtime: Duration,
}

impl Inode {
    /// An empty file.
    pub fn new(memory: &Arc<CardMemory>, number: u64, mode: u32) -> Arc<Self> {
        let inner = Inner {
            size: 0,
            frames: BTreeMap::new(),
            mode: mode & 0o7777,
            nlink: 1,
            mtime: card_clock(libc::CLOCK_REALTIME),
        };
        Arc::new(Self {
            memory: memory.clone(),
            number,
            inner: Mutex::new(inner),
        })
    }

    /// An empty file that has no name and never had one, or has one no more.
    pub fn nameless(memory: &Arc<CardMemory>, mode: u32) -> Arc<Self> {
        let inode = Self::new(memory, 0, mode);
        inode.link(-1);
        inode
    }

    /// Shows the pages that are no holes, in order: offset and frame.
    pub fn each_frame(&self, mut seen: impl FnMut(u64, u64)) {
        for (page, frame) in &self.lock().frames {
            seen(page * PAGE, *frame);
        }
    }

    /// Whether `other` is of the same size and has the same bytes in it.
    pub fn is_same(&self, other: &Self) -> bool {
        const PART: usize = 1 << 20;
        let size = self.size();
        size == other.size()
            && (0..size)
                .step_by(PART)
                .all(|offset| self.read_at(offset, PART) == other.read_at(offset, PART))
    }

    /// Its size in bytes.
    pub fn size(&self) -> u64 {
        self.lock().size
    }

    /// Its permission bits.
    pub fn mode(&self) -> u32 {
        self.lock().mode
    }

    /// Sets its permission bits.
    pub fn set_mode(&self, mode: u32) {
        self.lock().mode = mode & 0o7777;
    }

    /// Sets the time of its last change.
    pub fn set_mtime(&self, mtime: Duration) {
        self.lock().mtime = mtime;
    }

    /// One name more or less; returns how many it has.
    pub fn link(&self, by: i64) -> u64 {
        let mut inner = self.lock();
        inner.nlink = inner.nlink.saturating_add_signed(by);
        inner.nlink
    }

    /// What stat(2) tells.
    pub fn stat(&self) -> Stat {
        let inner = self.lock();
        Stat {
            ino: self.number,
            mode: libc::S_IFREG | inner.mode,
            nlink: inner.nlink,
            size: inner.size,
            rdev: 0,
            mtime: inner.mtime,
        }
    }

    /// The frame of page `index`; a hole gets one. The caller `get`s it if it keeps it.
    pub fn frame(&self, index: u64) -> Result<u64, Errno> {
        let mut inner = self.lock();
        if let Some(frame) = inner.frames.get(&index) {
            return Ok(*frame);
        }
        let frame = self.memory.alloc().ok_or(Errno::ENOMEM)?;
        inner.frames.insert(index, frame);
        Ok(frame)
    }

    /// The same for a write, which gets no frame where they are about to run out.
    fn frame_to_write(&self, index: u64) -> Result<u64, Errno> {
        let is_hole = !self.lock().frames.contains_key(&index);
        if is_hole && self.memory.free_bytes() < self.memory.bytes() / RESERVED_PART {
            return Err(Errno::ENOSPC);
        }
        self.frame(index)
    }

    /// Reads at most `max` bytes at `offset`.
    pub fn read_at(&self, offset: u64, max: usize) -> Vec<u8> {
        let inner = self.lock();
        let len = inner.size.saturating_sub(offset).min(max as u64) as usize;
        let mut bytes = vec![0; len];
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let part = ((PAGE - at % PAGE) as usize).min(len - done);
            if let Some(frame) = inner.frames.get(&(at / PAGE)) {
                self.memory
                    .read(frame + at % PAGE, &mut bytes[done..done + part]);
            }
            done += part;
        }
        bytes
    }

    /// Writes as much as fits; at least one byte, or ENOSPC.
    pub fn write_at(&self, offset: u64, data: &[u8]) -> Result<usize, Errno> {
        let end = offset.checked_add(data.len() as u64).ok_or(Errno::EFBIG)?;
        if end > SIZE_MAX {
            return Err(Errno::EFBIG);
        }
        let mut done = 0;
        while done < data.len() {
            let at = offset + done as u64;
            let part = ((PAGE - at % PAGE) as usize).min(data.len() - done);
            let Ok(frame) = self.frame_to_write(at / PAGE) else {
                break;
            };
            self.memory
                .write(frame + at % PAGE, &data[done..done + part]);
            done += part;
        }
        if done == 0 && !data.is_empty() {
            return Err(Errno::ENOSPC);
        }
        let mut inner = self.lock();
        inner.size = inner.size.max(offset + done as u64);
        inner.mtime = card_clock(libc::CLOCK_REALTIME);
        Ok(done)
    }

    /// Sets the size; what lies behind it is gone.
    pub fn truncate(&self, size: u64) -> Result<(), Errno> {
        if size > i64::MAX as u64 {
            return Err(Errno::EINVAL);
        }
        if size > SIZE_MAX {
            return Err(Errno::EFBIG);
        }
        let mut inner = self.lock();
        for (_, frame) in inner.frames.split_off(&size.div_ceil(PAGE)) {
            self.memory.put(frame);
        }
        if let Some(frame) = inner
            .frames
            .get(&(size / PAGE))
            .filter(|_| size < inner.size)
        {
            let tail = (PAGE - size % PAGE) as usize;
            self.memory.write(frame + size % PAGE, &vec![0; tail]);
        }
        inner.size = size;
        inner.mtime = card_clock(libc::CLOCK_REALTIME);
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Inode {
    fn drop(&mut self) {
        let inner = self.inner.get_mut().unwrap_or_else(PoisonError::into_inner);
        for frame in inner.frames.values() {
            self.memory.put(*frame);
        }
    }
}

/// The nameless file behind a shared anonymous mapping of `len` bytes.
pub fn shared_anonymous(memory: &Arc<CardMemory>, len: u64) -> Result<Arc<Inode>, Errno> {
    let inode = Inode::nameless(memory, 0o600);
    inode.truncate(len)?;
    Ok(inode)
}
