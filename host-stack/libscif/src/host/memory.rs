//! Memory: the program's own, which is registered in a pool (`snaprig_pages`), and that of others,
//! mapped here.
//!
//! What must stay true: a bad address of the program's is found before it is used; what is mapped here
//! of the pool is none of the program's memory, and no copy of ours needs that to be mapped still.
//!
//! Memory that a program has mapped MAP_SHARED can be registered as well. Its file is reached by the mapping
//! (/proc/self/map_files, which takes CAP_CHECKPOINT_RESTORE), or else by a descriptor of it that is open. What can be shared
//! by neither is EAGAIN: without that capability what is no longer open, and anonymous shared memory; ranges of several
//! mappings of which one is shared; shared huge pages. A file that cannot become shorter, or a memfd that can be kept from it
//! (MFD_ALLOW_SEALING: registering it for a card seals it with F_SEAL_SHRINK), is mapped by the peer's card. Any other is read
//! and written by its descriptor: RMA beyond its end is ENXIO, and scif_mmap on a card is ENOMEM.

use std::{
    collections::BTreeMap,
    ffi::c_void,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    ptr,
    sync::{Mutex, OnceLock},
};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use snaprig_pages::{
    maps::{self, Mapping},
    pages::Range,
    pool::{Moves, Pool, PoolError},
};

use super::lock;
use crate::ffi::Result;

const PAGE: usize = 4096;

static POOL: OnceLock<Option<Pool>> = OnceLock::new();

/// The registered pages of this process, if it has ever had any.
pub(super) fn made_pool() -> Option<&'static Pool> {
    POOL.get().and_then(Option::as_ref)
}

/// The registered pages of this process.
pub(super) fn pool() -> Result<&'static Pool> {
    let pool = POOL.get_or_init(|| Pool::new(Moves::Private, is_ours).ok());
    pool.as_ref().ok_or(libc::ENOMEM)
}

/// What this library has mapped: start and end.
static OURS: Mutex<BTreeMap<u64, u64>> = Mutex::new(BTreeMap::new());

fn is_ours(mapping: &Mapping) -> bool {
    let ours = lock(&OURS);
    let before = ours.range(..=mapping.range.start).next_back();
    before.is_some_and(|(_, end)| mapping.range.start < *end)
}

/// A mapping at this place is the library's.
pub(super) fn claim(start: usize, len: usize) {
    lock(&OURS).insert(start as u64, (start + len) as u64);
}

/// It is not any more.
pub(super) fn disclaim(start: usize, len: usize) {
    let (start, end) = (start as u64, (start + len) as u64);
    let mut ours = lock(&OURS);
    let touched: Vec<_> = ours
        .range(..end)
        .filter(|(_, ours_end)| **ours_end > start)
        .map(|(a, b)| (*a, *b))
        .collect();
    for (a, b) in touched {
        ours.remove(&a);
        if a < start {
            ours.insert(a, start);
        }
        if b > end {
            ours.insert(end, b);
        }
    }
}

/// A mapping of the library's, as long as this lives.
pub(super) struct Claimed(usize, usize);

impl From<(usize, usize)> for Claimed {
    fn from((start, len): (usize, usize)) -> Self {
        claim(start, len);
        Self(start, len)
    }
}

impl Drop for Claimed {
    fn drop(&mut self) {
        disclaim(self.0, self.1);
    }
}

/// Moves the program's memory into the pool.
pub(super) fn share(address: u64, len: u64, prot: u8) -> Result {
    let range = Range {
        start: address,
        end: address.checked_add(len).ok_or(libc::EFAULT)?,
    };
    // Frames of this very call are not to be moved.
    let here = ptr::from_ref(&range).addr() as u64;
    if (range.start..range.end).contains(&here) {
        return Err(libc::EFAULT);
    }
    match pool()?.register(address, len, prot & 2 != 0) {
        Ok(true) => Ok(()),
        // Shared with another process already, or a file's: `shared_file`.
        Ok(false) => Err(libc::EAGAIN),
        Err(PoolError::Fault) => Err(libc::EFAULT),
        Err(PoolError::Io(error)) => Err(error.raw_os_error().unwrap_or(libc::ENOMEM)),
    }
}

/// The file that the program shares this memory by, and where in it that is; EAGAIN if there is none that
/// could be given away: pages of its own that cannot be moved, or of a file that cannot be reached.
pub(super) fn shared_file(address: u64, len: u64, prot: u8) -> Result<(OwnedFd, u64)> {
    let end = address.checked_add(len).ok_or(libc::EFAULT)?;
    let range = Range {
        start: address,
        end,
    };
    let found = maps::shared_file(range, prot & 2 != 0);
    let found = found.map_err(|error| error.raw_os_error().unwrap_or(libc::ENOMEM))?;
    let (file, at) = found.ok_or(libc::EAGAIN)?;
    Ok((file.into(), at))
}

/// Where registered memory is.
enum Source {
    /// In the pool, at this address.
    Pool(u64),
    /// In a file that the program shares with others, from there on.
    File(OwnedFd, u64),
}

/// A registered range, and where the library has it mapped.
pub(super) struct Shared {
    source: Source,
    len: u64,
    prot: u8,
    alias: OnceLock<Option<usize>>,
}

impl Shared {
    pub(super) fn new(address: u64, len: u64, prot: u8) -> Self {
        Self {
            source: Source::Pool(address),
            len,
            prot,
            alias: OnceLock::new(),
        }
    }

    pub(super) fn of_file(file: OwnedFd, at: u64, len: u64, prot: u8) -> Self {
        Self {
            source: Source::File(file, at),
            ..Self::new(0, len, prot)
        }
    }

    /// Where the bytes from `skip` on are, and how many.
    pub(super) fn at(&self, skip: u64) -> Option<(*mut u8, u64)> {
        let left = self.len.checked_sub(skip).filter(|left| *left > 0)?;
        let alias = self.alias.get_or_init(|| {
            let len = self.len as usize;
            match &self.source {
                Source::Pool(address) => map(pool().ok()?.fd(), *address, len, BOTH).ok(),
                Source::File(file, at) => {
                    let prot = ProtFlags::from_bits_truncate(self.prot.into());
                    map(file.as_fd(), *at, len, prot).ok()
                }
            }
        });
        let at = (*alias)? + skip as usize;
        Some((ptr::with_exposed_provenance_mut(at), left))
    }

    /// Bytes from `skip` on that may be used so.
    pub(super) fn allowed(&self, skip: u64, prot: u8) -> Option<u64> {
        let left = self.len.checked_sub(skip).filter(|left| *left > 0)?;
        (self.prot & prot == prot).then_some(left)
    }

    pub(super) fn give_back(mut self, held: bool) {
        if let Some(Some(alias)) = self.alias.take() {
            unmap(alias, self.len as usize);
        }
        if let (false, Source::Pool(address), Ok(pool)) = (held, &self.source, pool()) {
            pool.deregister(*address, self.len);
        }
    }
}

const BOTH: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

fn map(
    file: BorrowedFd<'_>,
    offset: u64,
    len: usize,
    prot: ProtFlags,
) -> rustix::io::Result<usize> {
    let flags = MapFlags::SHARED | MapFlags::NORESERVE;
    // SAFETY: the address is null and the flags have no MAP_FIXED, so that the kernel chooses a
    // place where nothing else is: no memory that is in use is replaced.
    let at = unsafe { mmap(ptr::null_mut(), len, prot, flags, file, offset) }?;
    claim(at.expose_provenance(), len);
    // SAFETY: the advice is on the mapping that was just made, and takes it away from children
    // only: in this process nothing changes.
    let _ = unsafe { madvise(at, len, Advice::LinuxDontFork) };
    Ok(at.expose_provenance())
}

fn unmap(at: usize, len: usize) {
    // SAFETY: the callers pass a mapping that `map` made, for its whole length, and which they have
    // taken out of the table by which others find it, so that nobody uses it any more.
    let _ = unsafe { munmap(ptr::with_exposed_provenance_mut(at), len) };
    disclaim(at, len);
}

/// Whether the program's memory can be read, or written.
pub(super) fn check(address: usize, len: usize, writes: bool) -> Result {
    if len == 0 {
        return Ok(());
    }
    let end = address.checked_add(len).ok_or(libc::EFAULT)?;
    let start = address / PAGE * PAGE;
    let end = end.checked_next_multiple_of(PAGE).ok_or(libc::EFAULT)?;
    let advice = match writes {
        true => Advice::LinuxPopulateWrite,
        false => Advice::LinuxPopulateRead,
    };
    let at: *mut c_void = ptr::with_exposed_provenance_mut(start);
    // SAFETY: populating reads or writes no byte: it only has the kernel put pages in the page
    // table that the mapping says are there, so that nothing changes that a program can see,
    // whatever the addresses are.
    match unsafe { madvise(at, end - start, advice) } {
        Ok(()) if address >= PAGE => Ok(()),
        // A kernel, or memory, that knows no such advice; or a mapping that forbids the access
        // (madvise(2), MADV_POPULATE_READ).
        Err(rustix::io::Errno::INVAL) => check_mappings(start as u64, end as u64, writes),
        _ => Err(libc::EFAULT),
    }
}

/// The same by what is mapped.
fn check_mappings(start: u64, end: u64, writes: bool) -> Result {
    let range = Range { start, end };
    let mappings = maps::within(range).map_err(|_| libc::ENOMEM)?;
    let allowed = |mapping: &Mapping| mapping.reads && (mapping.writes || !writes);
    match maps::covers(&mappings, range) && mappings.iter().all(allowed) {
        true => Ok(()),
        false => Err(libc::EFAULT),
    }
}

/// Copies out of the program's memory.
pub(super) fn read(address: usize, len: usize) -> Result<Vec<u8>> {
    check(address, len, false)?;
    let mut bytes = Vec::with_capacity(len);
    // SAFETY: `check` has found `len` bytes at the address to be readable, and the vector has room
    // for as many, all of which are initialised before its length is set. If the program unmaps its
    // bytes meanwhile it is as wrong as with memcpy(3).
    unsafe {
        ptr::copy_nonoverlapping(
            ptr::with_exposed_provenance(address),
            bytes.as_mut_ptr(),
            len,
        );
        bytes.set_len(len);
    }
    Ok(bytes)
}

/// Copies into the program's memory, which was checked.
pub(super) fn write(address: usize, bytes: &[u8]) {
    // SAFETY: the callers have found, with `check`, that so many bytes can be written at the
    // address. If the program unmaps them meanwhile it is as wrong as with memcpy(3).
    unsafe {
        ptr::copy_nonoverlapping(
            bytes.as_ptr(),
            ptr::with_exposed_provenance_mut(address),
            bytes.len(),
        );
    }
}
