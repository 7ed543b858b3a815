//! A region: part of a file that another process shares, mapped into this one, or read and written.
//!
//! The file often comes from a hostile process. An access to a mapping past the end of its file is a SIGBUS, so only a
//! memfd that is sealed against shrinking (`fcntl(2)`, `F_SEAL_SHRINK`) is mapped; and it must be on tmpfs, because
//! huge pages of hugetlbfs can run out at an access. Any other regular file is read and written by its descriptor:
//! one that has become shorter is an error then.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    ptr::NonNull,
    sync::Arc,
};

use rustix::{
    fs::{FileType, OFlags, SealFlags, fcntl_get_seals, fcntl_getfl, fstat, fstatfs},
    mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap},
};

/// `TMPFS_MAGIC` of `statfs(2)`: what memfds of ordinary pages report.
const TMPFS_MAGIC: u64 = 0x0102_1994;
/// `HUGETLBFS_MAGIC`: such files are not written with write(2).
const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;
/// `FUSE_SUPER_MAGIC`: whoever shares such a file may let a read of it wait for ever.
const FUSE_MAGIC: u64 = 0x6573_5546;
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
    /// The descriptor is not of a file that can be read and written.
    #[error(
        "the descriptor is not of a regular file, or is of hugetlbfs or FUSE: share ordinary memory or a file"
    )]
    Kind,
    /// The kernel refused to look at or map it.
    #[error("cannot map the memfd: {0}")]
    Map(#[from] rustix::io::Errno),
}

impl RegionError {
    /// The nearest error number, for peers that understand only those.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Range { .. } => libc::EINVAL,
            Self::Kind => libc::ENODEV,
            Self::Map(errno) => errno.raw_os_error(),
        }
    }
}

/// Memory that copies read and write.
#[derive(Debug)]
pub(crate) enum Region {
    /// In this process.
    Mapped(Shared),
    /// By its descriptor.
    File(File),
}

/// A part of a file that may become shorter.
#[derive(Debug)]
pub(crate) struct File {
    fd: OwnedFd,
    offset: u64,
    len: u64,
}

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
// SAFETY: threads that share a region only copy through raw pointers; copies at the same time race on the bytes alone,
// which other processes change at any time anyway, and of which nobody holds a reference.
unsafe impl Sync for Memory {}

impl Shared {
    fn map(fd: OwnedFd, offset: u64, len: u64) -> Result<Self, RegionError> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address that the kernel chooses; `len` fits a usize, since
        // a file of that size exists.
        let base = unsafe { mmap(std::ptr::null_mut(), len as usize, prot, flags, &fd, offset) }?;
        // SAFETY: the range is the mapping just made. Advice not followed costs only speed.
        let _ = unsafe { madvise(base, len as usize, Advice::LinuxHugepage) };
        Ok(Self(Arc::new(Memory {
            fd,
            offset,
            base: NonNull::new(base.cast()).expect("mmap never returns null"),
            len,
        })))
    }

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
    /// Takes `len` bytes at `offset` of the file.
    pub(crate) fn new(fd: OwnedFd, offset: u64, len: u64) -> Result<Self, RegionError> {
        // `statfs` has a signed type field on some targets.
        let system = fstatfs(&fd)?.f_type as u64;
        let stat = fstat(&fd)?;
        let is_regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        if !is_regular || [HUGETLBFS_MAGIC, FUSE_MAGIC].contains(&system) {
            return Err(RegionError::Kind);
        }
        let file_bytes = u64::try_from(stat.st_size).unwrap_or(0);
        let inside = offset.checked_add(len).is_some_and(|end| end <= file_bytes);
        if !inside || len == 0 || !offset.is_multiple_of(PAGE) {
            return Err(RegionError::Range {
                offset,
                len,
                file_bytes,
            });
        }
        let is_lasting = fcntl_get_seals(&fd).is_ok_and(|seals| seals.contains(SealFlags::SHRINK));
        let is_open_for_both = fcntl_getfl(&fd)?.contains(OFlags::RDWR);
        if system == TMPFS_MAGIC && is_lasting && is_open_for_both {
            Ok(Self::Mapped(Shared::map(fd, offset, len)?))
        } else {
            Ok(Self::File(File { fd, offset, len }))
        }
    }

    /// Its memory, if it is mapped.
    pub(crate) fn share(&self) -> Option<Shared> {
        match self {
            Self::Mapped(shared) => Some(shared.clone()),
            Self::File(_) => None,
        }
    }

    /// Whether `len` bytes at `at` are inside.
    pub(crate) fn contains(&self, at: u64, len: u64) -> bool {
        let bytes = match self {
            Self::Mapped(shared) => shared.bytes(),
            Self::File(file) => file.len,
        };
        at.checked_add(len).is_some_and(|end| end <= bytes)
    }

    /// Where `at` (inside) is mapped, if it is.
    pub(crate) fn pointer(&self, at: u64) -> Option<*mut u8> {
        let Self::Mapped(shared) = self else {
            return None;
        };
        assert!(at <= shared.bytes());
        // SAFETY: at most one past the end of the mapping.
        Some(unsafe { shared.base().as_ptr().add(at as usize) })
    }

    /// The file, and where `at` is in it.
    pub(crate) fn file(&self, at: u64) -> (BorrowedFd<'_>, u64) {
        let (fd, offset) = match self {
            Self::Mapped(shared) => shared.file(),
            Self::File(file) => (file.fd.as_fd(), file.offset),
        };
        (fd, offset + at)
    }

    /// Reads all of a range (inside) from its file, or (`write`) writes it: [`transfer`].
    ///
    /// # Safety
    /// `here` is valid for `len` bytes, or for none, which the kernel notices (`EFAULT`).
    pub(crate) unsafe fn transfer(
        &self,
        at: u64,
        here: *mut u8,
        len: u64,
        write: bool,
    ) -> Result<(), i32> {
        let (file, at) = self.file(at);
        // SAFETY: the caller says that `here` is good for `len` bytes, or that the kernel notices.
        unsafe { transfer(file, at, here, len as usize, write) }
    }
}

/// Reads all of a range of a file into memory, or (`write`) writes it from there; or an errno, `ENXIO` if the file
/// has become shorter than that.
///
/// # Safety
/// `here` is valid for `len` bytes, or for none, which the kernel notices (`EFAULT`).
pub unsafe fn transfer(
    file: BorrowedFd<'_>,
    at: u64,
    here: *mut u8,
    len: usize,
    write: bool,
) -> Result<(), i32> {
    // A write would make the file longer again.
    let bytes = fstat(file).map_or(0, |stat| stat.st_size as u64);
    if at.checked_add(len as u64).is_none_or(|end| end > bytes) {
        return Err(libc::ENXIO);
    }
    let fd = file.as_raw_fd();
    let mut done = 0;
    while done < len {
        let (here, left) = (here.wrapping_add(done).cast(), len - done);
        let at = (at + done as u64).cast_signed();
        // SAFETY: the caller says that `here` is good for `len` bytes, or that the kernel notices; `done` of them are
        // behind, and the rest is asked for.
        let count = unsafe {
            match write {
                true => libc::pwrite(fd, here, left, at),
                false => libc::pread(fd, here, left, at),
            }
        };
        match count {
            0 => return Err(libc::ENXIO),
            1.. => done += count as usize,
            _ => match io::Error::last_os_error().raw_os_error() {
                Some(libc::EINTR) => {}
                errno => return Err(errno.unwrap_or(libc::EIO)),
            },
        }
    }
    Ok(())
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and whoever uses it holds it.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len as usize) };
    }
}
