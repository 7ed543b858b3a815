//! A region: part of a memfd, mapped into this process.
//!
//! The memfd often comes from another, possibly hostile, process. It must be sealed against
//! shrinking (`fcntl(2)`, `F_SEAL_SHRINK`), because an access to a mapping past the end of its file
//! is a SIGBUS; and it must be on tmpfs, because huge pages of hugetlbfs can run out at an access.

use std::{
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
    ptr::NonNull,
    sync::Arc,
};

use rustix::{
    fs::{SealFlags, fcntl_get_seals, fstat, fstatfs},
    mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap},
};

/// `TMPFS_MAGIC` of `statfs(2)`: what memfds of ordinary pages report.
const TMPFS_MAGIC: u64 = 0x0102_1994;
/// Regions begin at multiples of this, as mmap(2) demands.
const PAGE: u64 = 4096;

/// Why memory cannot be a region.
#[derive(Debug, thiserror::Error)]
pub enum RegionError {
    /// The range is empty, unaligned or beyond the file.
    #[error(
        "range {offset:#x}+{len:#x} is not inside the file of {file_bytes:#x} bytes, or not at a multiple of 4 KiB"
    )]
    Range {
        /// Start in the file.
        offset: u64,
        /// Bytes.
        len: u64,
        /// Size of the file.
        file_bytes: u64,
    },
    /// The descriptor is no memfd of ordinary pages.
    #[error("the descriptor is not a memfd of ordinary pages: create it with memfd_create(2)")]
    NotMemfd,
    /// The memfd may shrink.
    #[error("the memfd is not sealed: add F_SEAL_SHRINK with fcntl(2) before sharing it")]
    Unsealed,
    /// The kernel refused to look at or map it.
    #[error("cannot map the memfd: {0}")]
    Map(#[from] rustix::io::Errno),
}

impl RegionError {
    /// The nearest error number, for peers that understand only those.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Range { .. } => libc::EINVAL,
            Self::NotMemfd => libc::ENODEV,
            Self::Unsealed => libc::EPERM,
            Self::Map(errno) => errno.raw_os_error(),
        }
    }
}

/// Mapped memory that copies read and write.
#[derive(Debug)]
pub(crate) struct Region(Shared);

/// A region's memory, for those who have it longer than the engine has the region.
#[derive(Clone, Debug)]
pub struct Shared(Arc<Memory>);

/// A mapping of a part of a memfd.
#[derive(Debug)]
struct Memory {
    fd: OwnedFd,
    offset: u64,
    base: NonNull<u8>,
    len: u64,
}

// SAFETY: the mapping lives as long as `self` and is only accessed by raw copies.
unsafe impl Send for Memory {}
// SAFETY: as above; concurrent copies race only on the bytes themselves, which other processes
// change at any time anyway, and of which nobody holds a reference.
unsafe impl Sync for Memory {}

impl Shared {
    /// Where it is mapped in this process, for as long as this or a clone lives.
    pub fn base(&self) -> NonNull<u8> {
        self.0.base
    }

    /// Bytes.
    pub fn bytes(&self) -> u64 {
        self.0.len
    }

    /// The file, and where in it the memory begins.
    pub fn file(&self) -> (BorrowedFd<'_>, u64) {
        (self.0.fd.as_fd(), self.0.offset)
    }
}

impl Region {
    /// Maps `len` bytes at `offset` of the memfd.
    pub(crate) fn map(fd: OwnedFd, offset: u64, len: u64) -> Result<Self, RegionError> {
        // `statfs` has a signed type field on some targets.
        if fstatfs(&fd)?.f_type as u64 != TMPFS_MAGIC {
            return Err(RegionError::NotMemfd);
        }
        let seals = fcntl_get_seals(&fd).map_err(|_| RegionError::NotMemfd)?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(RegionError::Unsealed);
        }
        let file_bytes = u64::try_from(fstat(&fd)?.st_size).unwrap_or(0);
        let inside = offset.checked_add(len).is_some_and(|end| end <= file_bytes);
        if !inside || len == 0 || !offset.is_multiple_of(PAGE) {
            return Err(RegionError::Range {
                offset,
                len,
                file_bytes,
            });
        }
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address that the kernel chooses; `len` fits a usize, since
        // a file of that size exists.
        let base = unsafe { mmap(std::ptr::null_mut(), len as usize, prot, flags, &fd, offset) }?;
        // SAFETY: the range is the mapping just made. Advice not followed costs only speed.
        let _ = unsafe { madvise(base, len as usize, Advice::LinuxHugepage) };
        Ok(Self(Shared(Arc::new(Memory {
            fd,
            offset,
            base: NonNull::new(base.cast()).expect("mmap never returns null"),
            len,
        }))))
    }

    /// Its memory.
    pub(crate) fn share(&self) -> Shared {
        self.0.clone()
    }

    fn memory(&self) -> &Memory {
        &self.0.0
    }

    /// Whether `len` bytes at `at` are inside.
    pub(crate) fn contains(&self, at: u64, len: u64) -> bool {
        at.checked_add(len)
            .is_some_and(|end| end <= self.memory().len)
    }

    /// Where `at` (inside) is mapped.
    pub(crate) fn pointer(&self, at: u64) -> *mut u8 {
        assert!(at <= self.memory().len);
        // SAFETY: at most one past the end of the mapping.
        unsafe { self.memory().base.as_ptr().add(at as usize) }
    }

    /// The file, and where `at` is in it.
    pub(crate) fn file(&self, at: u64) -> (RawFd, u64) {
        (self.memory().fd.as_raw_fd(), self.memory().offset + at)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and whoever uses it holds it.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len as usize) };
    }
}
