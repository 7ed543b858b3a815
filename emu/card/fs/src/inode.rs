//! Contents of a regular file: frames of card memory, with holes.

use std::{
    cmp::Ordering,
    collections::BTreeMap,
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use snaprig_card_driver::errno::Errno;
use snaprig_card_memory::{CardMemory, PAGE};

use crate::{
    meta::Meta,
    stat::{BLOCK, Stat},
};

/// Seals that forbid every write.
const SEALS_OF_WRITES: i32 = libc::F_SEAL_WRITE | libc::F_SEAL_FUTURE_WRITE;

/// The largest file.
pub const SIZE_MAX: u64 = 1 << 40;
/// The part of a card's memory that writes to files leave free: when they have filled the rest,
/// programs can still run, if only to remove them.
const RESERVED_PART: u64 = 16;

/// A regular file, named or not.
pub struct Inode {
    memory: Arc<CardMemory>,
    meta: Arc<Meta>,
    inner: Mutex<Inner>,
}

struct Inner {
    size: u64,
    frames: BTreeMap<u64, u64>,
    /// `F_SEAL_*` (fcntl(2)).
    seals: i32,
    /// No name may be given to it (open(2), O_TMPFILE with O_EXCL).
    stays_nameless: bool,
}

impl Inode {
    /// An empty file.
    pub fn new(memory: &Arc<CardMemory>, mode: u32) -> Arc<Self> {
        Self::of(memory, Meta::new(mode), libc::F_SEAL_SEAL)
    }

    /// An empty file that has no name and never had one, or has one no more.
    pub fn nameless(memory: &Arc<CardMemory>, mode: u32) -> Arc<Self> {
        let inode = Self::new(memory, mode);
        inode.meta.link(-1);
        inode
    }

    /// An empty file with these attributes and `F_SEAL_*`.
    pub fn of(memory: &Arc<CardMemory>, meta: Arc<Meta>, seals: i32) -> Arc<Self> {
        let inner = Inner {
            size: 0,
            frames: BTreeMap::new(),
            seals,
            stays_nameless: false,
        };
        Arc::new(Self {
            memory: memory.clone(),
            meta,
            inner: Mutex::new(inner),
        })
    }

    /// Its attributes.
    pub fn meta(&self) -> &Arc<Meta> {
        &self.meta
    }

    /// Its seals.
    pub fn seals(&self) -> i32 {
        self.lock().seals
    }

    /// Adds seals (fcntl(2), F_ADD_SEALS).
    pub fn seal(&self, seals: i32) -> Result<(), Errno> {
        let mut inner = self.lock();
        if inner.seals & libc::F_SEAL_SEAL != 0 {
            return Err(Errno::EPERM);
        }
        inner.seals |= seals;
        Ok(())
    }

    /// Whether it may get a name, though it has none.
    pub fn may_be_named(&self) -> bool {
        !self.lock().stays_nameless
    }

    /// It never gets a name.
    pub fn keep_nameless(&self) {
        self.lock().stays_nameless = true;
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
        self.meta.lock().mode
    }

    /// What stat(2) tells.
    pub fn stat(&self) -> Stat {
        let inner = self.lock();
        let mut stat = Stat::of(&self.meta, libc::S_IFREG);
        stat.size = inner.size;
        stat.blocks = inner.frames.len() as u64 * (PAGE / BLOCK);
        stat
    }

    /// The next byte from `offset` on that is in a page, or that is in none; ENXIO behind the end.
    /// After the last byte comes a hole (lseek(2)).
    pub fn seek(&self, offset: u64, data: bool) -> Result<u64, Errno> {
        let inner = self.lock();
        if offset >= inner.size {
            return Err(Errno::ENXIO);
        }
        let first = offset / PAGE;
        let page = match data {
            true => inner.frames.range(first..).map(|(page, _)| *page).next(),
            false => (first..).find(|page| !inner.frames.contains_key(page)),
        };
        let at = page.map(|page| offset.max(page * PAGE));
        match at.filter(|at| *at < inner.size) {
            Some(at) => Ok(at),
            None if data => Err(Errno::ENXIO),
            None => Ok(inner.size),
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

    /// The frames that there are of these pages, in order: page, frame.
    pub fn frames(&self, pages: Range<u64>) -> Vec<(u64, u64)> {
        let inner = self.lock();
        let there = inner.frames.range(pages);
        there.map(|(page, frame)| (*page, *frame)).collect()
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
        self.check_seals(data.is_empty(), end)?;
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
        if done > 0 {
            let mut inner = self.lock();
            inner.size = inner.size.max(offset + done as u64);
            self.meta.modified();
        }
        Ok(done)
    }

    /// EPERM if the seals forbid a write up to `end`.
    fn check_seals(&self, is_empty: bool, end: u64) -> Result<(), Errno> {
        let inner = self.lock();
        let grows = inner.seals & libc::F_SEAL_GROW != 0 && end > inner.size;
        match inner.seals & SEALS_OF_WRITES != 0 || grows {
            true if !is_empty => Err(Errno::EPERM),
            _ => Ok(()),
        }
    }

    /// Makes a hole of `len` bytes at `offset` (fallocate(2), FALLOC_FL_PUNCH_HOLE).
    pub fn punch(&self, offset: u64, len: u64) -> Result<(), Errno> {
        let mut inner = self.lock();
        if inner.seals & SEALS_OF_WRITES != 0 {
            return Err(Errno::EPERM);
        }
        let end = offset.saturating_add(len);
        let pages = offset / PAGE..=end.saturating_sub(1) / PAGE;
        let touched: Vec<_> = {
            let is_mapped = self.memory.shared();
            let frames = inner.frames.range(pages);
            frames
                .map(|(page, frame)| (*page, *frame, is_mapped(*frame)))
                .collect()
        };
        for (page, frame, is_mapped) in touched {
            let (start, stop) = (offset.max(page * PAGE), end.min((page + 1) * PAGE));
            // A page that is mapped stays, for those who look at it.
            if stop - start == PAGE && !is_mapped {
                inner.frames.remove(&page);
                self.memory.put(frame);
            } else {
                let zeros = vec![0; (stop - start) as usize];
                self.memory.write(frame + start % PAGE, &zeros);
            }
        }
        self.meta.modified();
        Ok(())
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
        let sealed = match size.cmp(&inner.size) {
            Ordering::Less => libc::F_SEAL_SHRINK,
            Ordering::Equal => 0,
            Ordering::Greater => libc::F_SEAL_GROW,
        };
        if inner.seals & sealed != 0 {
            return Err(Errno::EPERM);
        }
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
        self.meta.modified();
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
