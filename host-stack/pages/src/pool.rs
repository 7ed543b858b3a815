//! The pool: registered pages of this process, where everybody can map them.
//!
//! Private anonymous memory is moved, in place, into a memfd whose offsets are the addresses
//! themselves: the page at address `a` is at offset `a` of the file. So a peer that has the file
//! finds any registered byte without being told more, and what it mapped stays right for as long as
//! this process lives. Pages that cannot be moved (files, shared memory, huge pages, the stack that
//! is in use) stay where they are; peers reach them with process_vm_readv(2).
//!
//! While a range moves, threads that write to it wait: it is write-protected with userfaultfd(2). Where they cannot be
//! made to wait, and there are any (`Freeze`), it does not move.
//! When the last region over a page is given back, so is the page, as private memory, wherever the
//! program has it by then: memory may be unmapped or moved (mremap(2)) before its region goes, and
//! other memory mapped in its place. A child after fork(2) gets copies, as it would of pinned pages;
//! its parent waits until it has them.

use std::{
    ffi::c_void,
    fs::File,
    io,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::fs::MetadataExt,
    },
    ptr,
    sync::Mutex,
};

use rustix::{
    fs::{
        FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, ftruncate, memfd_create,
    },
    mm::{
        Advice, MapFlags, MprotectFlags, MremapFlags, ProtFlags, madvise, mmap, mmap_anonymous,
        mprotect, mremap_fixed, munmap,
    },
};

use crate::{
    freeze::Freeze,
    maps::{self, Mapping},
    pages::{Pages, Range},
};

/// Bytes of a page.
pub const PAGE: u64 = 4096;
/// Addresses of a process (x86-64, four levels).
const ADDRESSES: u64 = 1 << 47;
/// Ranges of at least this are asked to be huge pages.
const HUGE_PAGE: u64 = 2 << 20;

/// The pool of this process.
#[derive(Debug)]
pub struct Pool {
    file: File,
    pages: Mutex<Pages>,
    moves: Moves,
    is_ours: fn(&Mapping) -> bool,
}

/// What a pool takes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moves {
    /// Anonymous memory that can be written, but for stacks.
    Plain,
    /// Any private memory: static variables, constants and stacks, too. A page of the stack that
    /// the caller is running on must be none that it is using.
    Private,
}

/// Why memory cannot be registered.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// Part of the range is not mapped, or forbids the access: EFAULT.
    #[error("the range is not all mapped, or not for that access")]
    Fault,
    /// It could not be looked at or moved.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Pool {
    /// An empty one. `is_ours`: a mapping of the file that is none of the program's, but of whoever
    /// has the pool.
    pub fn new(moves: Moves, is_ours: fn(&Mapping) -> bool) -> io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = File::from(memfd_create("snaprig-pool", flags)?);
        ftruncate(&file, ADDRESSES)?;
        // A peer's mapping of it must never end in SIGBUS.
        fcntl_add_seals(&file, SealFlags::SHRINK)?;
        Ok(Self {
            file,
            pages: Mutex::default(),
            moves,
            is_ours,
        })
    }

    /// The file.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// By what mappings tell that they are of it: it is another one after a restart of the process.
    fn inode(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.ino())
    }

    /// Registers memory; whether it is in the pool now. `writes`: it must be writable.
    pub fn register(&self, address: u64, length: u64, writes: bool) -> Result<bool, PoolError> {
        let range = page_range(address, length).ok_or(PoolError::Fault)?;
        let mut pages = self.pages.lock().expect("no panic while it is held");
        let mappings = maps::within(range)?;
        let inode = self.inode()?;
        let allowed = |m: &Mapping| m.reads && (m.writes || !writes);
        if !maps::covers(&mappings, range) || !mappings.iter().all(allowed) {
            return Err(PoolError::Fault);
        }
        let here = ptr::from_ref(&range).addr() as u64;
        let movable = |m: &Mapping| {
            if self.moves == Moves::Private {
                return m.inode == inode || m.private && !m.executes;
            }
            let stack = m.range.start <= here && here < m.range.end || m.name.starts_with("[stack");
            let plain = m.name.is_empty() || m.name == "[heap]" || m.name.starts_with("[anon");
            m.inode == inode || m.private && m.inode == 0 && m.writes && plain && !stack
        };
        if !mappings.iter().all(movable) {
            return Ok(false);
        }
        // Whether its pages are counted says nothing of a mapping: it may be new at that place.
        let in_place = |m: &Mapping| m.inode == inode && m.offset == m.range.start;
        let mut moved = Vec::new();
        for mapping in mappings.iter().filter(|m| !in_place(m)) {
            let Some(part) = mapping.range.and(range) else {
                continue;
            };
            if let Err(failure) = self.move_in(part, mapping.writes) {
                // All of it is in the pool, and counted, or none.
                moved.into_iter().for_each(|part| self.give_back(part));
                return match failure {
                    Failure::WritersRun(error) => {
                        tracing::debug!(%error, "memory stays where it is: its writers cannot be stopped");
                        Ok(false)
                    }
                    Failure::Io(error) => Err(error.into()),
                };
            }
            moved.push(part);
        }
        pages.add(range);
        Ok(true)
    }

    /// Gives memory back that was registered, and is in the pool.
    pub fn deregister(&self, address: u64, length: u64) {
        let Some(range) = page_range(address, length) else {
            return;
        };
        let mut pages = self.pages.lock().expect("no panic while it is held");
        for free in pages.remove(range) {
            self.give_back(free);
        }
    }

    /// Pages that are not counted become private memory, if their writers can be stopped; if not, they stay in the pool,
    /// where nobody else has any use for them, and the program has them as before.
    fn give_back(&self, free: Range) {
        if let Err(error) = self.move_out(free) {
            tracing::warn!(%error, "registered pages stay shared");
            return;
        }
        let length = free.end - free.start;
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        // Costs memory if it fails, nothing else.
        let _ = fallocate(&self.file, hole, free.start, length);
    }

    /// Nothing is registered any more; its pages stay in the pool, to be registered again.
    pub fn begin_anew(&self) {
        *self.lock() = Pages::default();
    }

    /// Where the program has pages of the pool.
    pub fn shared(&self) -> io::Result<Vec<Range>> {
        let all = Range {
            start: 0,
            end: ADDRESSES,
        };
        Ok(self.places(all)?.into_iter().map(|(at, _)| at).collect())
    }

    /// Where the program has these pages of the pool now, and whether it can write to them.
    fn places(&self, pages: Range) -> io::Result<Vec<(Range, bool)>> {
        let mut mappings = maps::all()?;
        let inode = self.inode()?;
        mappings.retain(|m| m.inode == inode && !(self.is_ours)(m));
        let place = |m: Mapping| {
            let in_file = Range {
                start: m.offset,
                end: m.offset + (m.range.end - m.range.start),
            };
            let part = in_file.and(pages)?;
            let start = m.range.start + (part.start - m.offset);
            let end = start + (part.end - part.start);
            Some((Range { start, end }, m.writes))
        };
        Ok(mappings.into_iter().filter_map(place).collect())
    }

    /// Makes these pages of the pool private memory.
    fn move_out(&self, pages: Range) -> io::Result<()> {
        for (range, writes) in self.places(pages)? {
            make_private(range)?;
            if !writes {
                let (at, length) = (pointer(range.start), (range.end - range.start) as usize);
                // SAFETY: the pages are mapped, for they are registered, and the program had them without the right to
                // write to them; a reference that writes to them it cannot have.
                unsafe { mprotect(at, length, MprotectFlags::READ) }?;
            }
        }
        Ok(())
    }

    fn move_in(&self, range: Range, writes: bool) -> Result<(), Failure> {
        let (at, length) = (pointer(range.start), (range.end - range.start) as usize);
        let both = ProtFlags::READ | ProtFlags::WRITE;
        let (populate, prot) = match writes {
            true => (Advice::LinuxPopulateWrite, both),
            false => (Advice::LinuxPopulateRead, ProtFlags::READ),
        };
        // SAFETY: populating makes pages present as touching them would, and changes no byte of memory.
        unsafe { madvise(at, length, populate) }?;
        let frozen = Freeze::new(range).map_err(Failure::WritersRun)?;
        // SAFETY: without MAP_FIXED the kernel chooses addresses that nothing is at, so no memory of ours changes.
        let copy = unsafe {
            mmap(
                ptr::null_mut(),
                length,
                both,
                MapFlags::SHARED,
                &self.file,
                range.start,
            )
        }?;
        if length as u64 >= HUGE_PAGE {
            // SAFETY: the advice changes no byte of the range, which was just mapped; memory is as good without.
            let _ = unsafe { madvise(copy, length, Advice::LinuxHugepage) };
        }
        // SAFETY: both are mapped for `length` bytes, which do not overlap, for the copy is new; writers to the source
        // wait.
        unsafe { ptr::copy_nonoverlapping(at.cast::<u8>(), copy.cast::<u8>(), length) };
        // SAFETY: the file has the bytes that were there, which were just copied, and writers wait: the program finds
        // the same bytes at the same addresses, with the same rights.
        let moved = unsafe {
            let fixed = MapFlags::SHARED | MapFlags::FIXED;
            mmap(at, length, prot, fixed, &self.file, range.start)
        };
        // SAFETY: `copy` was mapped above, and nothing refers to it any more.
        let _ = unsafe { munmap(copy, length) };
        drop(frozen);
        moved.map(drop).map_err(Into::into)
    }

    /// Before fork(2): nobody registers.
    ///
    /// # Panics
    /// If a thread panicked while it registered.
    pub fn lock(&self) -> std::sync::MutexGuard<'_, Pages> {
        self.pages.lock().expect("no panic while it is held")
    }
}

/// Why a range does not move into the pool.
enum Failure {
    /// Those who write to it cannot be made to wait.
    WritersRun(io::Error),
    /// Anything else.
    Io(io::Error),
}

impl From<rustix::io::Errno> for Failure {
    fn from(error: rustix::io::Errno) -> Self {
        Self::Io(error.into())
    }
}

/// Replaces shared pages by private ones with the same bytes, while writers wait.
fn make_private(range: Range) -> io::Result<()> {
    let frozen = Freeze::new(range)?;
    make_private_alone(range)?;
    drop(frozen);
    Ok(())
}

/// The same, where nobody writes to them meanwhile: in a child of fork(2), while its parent waits. Allocates nothing.
pub(crate) fn make_private_alone(range: Range) -> io::Result<()> {
    let (at, length) = (pointer(range.start), (range.end - range.start) as usize);
    let both = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: without MAP_FIXED the kernel chooses addresses that nothing is at, so no memory of ours changes.
    let copy = unsafe { mmap_anonymous(ptr::null_mut(), length, both, MapFlags::PRIVATE) }?;
    // SAFETY: both are mapped for `length` bytes, which do not overlap, for the copy is new; the caller sees to it that
    // nobody writes to the source.
    unsafe { ptr::copy_nonoverlapping(at.cast::<u8>(), copy.cast::<u8>(), length) };
    // SAFETY: the copy has the bytes that were there, and nobody writes: the program finds the same bytes at the same
    // addresses.
    let moved = unsafe { mremap_fixed(copy, length, length, MremapFlags::MAYMOVE, at) };
    if moved.is_err() {
        // SAFETY: `copy` was mapped above, is still there, for it has not moved, and nothing refers to it.
        let _ = unsafe { munmap(copy, length) };
    }
    moved.map(drop).map_err(Into::into)
}

pub(crate) fn pointer(address: u64) -> *mut c_void {
    ptr::with_exposed_provenance_mut(address as usize)
}

fn page_range(address: u64, length: u64) -> Option<Range> {
    let end = address
        .checked_add(length.max(1))?
        .checked_next_multiple_of(PAGE)?;
    let start = address / PAGE * PAGE;
    (end <= ADDRESSES).then_some(Range { start, end })
}
