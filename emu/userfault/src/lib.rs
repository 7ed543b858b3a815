//! userfaultfd(2): who writes to memory waits, or is noted, or what a file has is put into a page table
//! (ioctl_userfaultfd(2)); or who touches memory whose pages are still to come waits for them ([`missing`]).
//!
//! What must stay true: a userfaultfd is for faults of ring 3 alone (UFFD_USER_MODE_ONLY), which is all that ordinary users
//! may have, unless those of system calls are asked for, too ([`Userfault::of_all`]); it is made by the system call:
//! /dev/userfaultfd is root's on most machines. It may also be another process's, which has made it for us: addresses are
//! those of the process that made it. Dropping it wakes who waits, and has all areas be what they were before.

pub mod missing;
pub mod scan;

use std::{
    io,
    ops::Range,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

use linux_raw_sys::{
    general::{
        UFFD_API, UFFD_USER_MODE_ONLY, UFFDIO_REGISTER_MODE_MINOR, UFFDIO_REGISTER_MODE_MISSING,
        UFFDIO_REGISTER_MODE_WP, uffdio_api, uffdio_continue, uffdio_range, uffdio_register,
        uffdio_writeprotect,
    },
    ioctl,
};
use rustix::mm::{UserfaultfdFlags, userfaultfd};

/// What a userfaultfd is to do beside what all do: UFFD_FEATURE_ bits.
pub mod features {
    use linux_raw_sys::general;

    /// Faults of pages that a file has, and the page table has not, of huge pages.
    pub const MINOR_HUGE: u64 = general::UFFD_FEATURE_MINOR_HUGETLBFS as u64;
    /// Write protection of memory that is shared, or of huge pages.
    pub const PROTECT_SHARED: u64 = general::UFFD_FEATURE_WP_HUGETLBFS_SHMEM as u64;
    /// Write protection of what has no pages yet; [`NOTE_WRITES`] is not to be had without.
    pub const PROTECT_UNPOPULATED: u64 = general::UFFD_FEATURE_WP_UNPOPULATED as u64;
    /// The kernel resolves faults of write protection by itself, and notes them in the page table.
    pub const NOTE_WRITES: u64 = general::UFFD_FEATURE_WP_ASYNC as u64;
    /// What the process does to its memory is told of ([`Happened`](super::missing::Happened)), and waits until that has been
    /// read: its children have a userfaultfd each. It takes CAP_SYS_PTRACE.
    pub const FOLLOW: u64 = (general::UFFD_FEATURE_EVENT_FORK
        | general::UFFD_FEATURE_EVENT_REMAP
        | general::UFFD_FEATURE_EVENT_REMOVE
        | general::UFFD_FEATURE_EVENT_UNMAP) as u64;
}

/// The faults that an area is registered for: UFFDIO_REGISTER_MODE_ bits.
#[derive(Clone, Copy, Debug)]
#[repr(u64)]
pub enum Mode {
    /// Writes to pages that are protected.
    WriteProtect = UFFDIO_REGISTER_MODE_WP as u64,
    /// Pages that the file has, and the page table has not.
    Minor = UFFDIO_REGISTER_MODE_MINOR as u64,
    /// Pages that are not there.
    Missing = UFFDIO_REGISTER_MODE_MISSING as u64,
}

/// A userfaultfd. Areas are of whole pages.
#[derive(Debug)]
pub struct Userfault(OwnedFd);

impl Userfault {
    /// Of this process, with [`features`].
    pub fn own(features: u64) -> io::Result<Self> {
        Self::make(FLAGS, features)
    }

    /// Likewise, but system calls that fault wait, too, where the process may have that: with CAP_SYS_PTRACE, or with
    /// vm.unprivileged_userfaultfd. Elsewhere they fail with EFAULT.
    pub fn of_all(features: u64) -> io::Result<Self> {
        Self::make(FLAGS_OF_ALL, features).or_else(|_| Self::own(features))
    }

    /// Of this process, for all faults, and told of all that the process does: what memory that follows takes.
    pub fn following() -> io::Result<Self> {
        Self::make(FLAGS_OF_ALL, features::FOLLOW)
    }

    fn make(flags: u64, features: u64) -> io::Result<Self> {
        let flags = UserfaultfdFlags::from_bits_retain(flags as u32);
        // SAFETY: what it does to memory, the other functions do: they make pages read-only for a
        // while, or have a page table show what the file has; no byte that is read changes by it.
        Self::with(unsafe { userfaultfd(flags) }?, features)
    }

    /// Of the process that has made the descriptor, with [`FLAGS`] or [`FLAGS_OF_ALL`], and has not begun to use it.
    pub fn with(fd: OwnedFd, features: u64) -> io::Result<Self> {
        let userfault = Self(fd);
        let api = uffdio_api {
            api: UFFD_API.into(),
            features,
            ioctls: 0,
        };
        userfault.ioctl(ioctl::UFFDIO_API, api)?;
        Ok(userfault)
    }

    /// Registers an area for faults of a mode.
    pub fn register(&self, area: &Range<u64>, mode: Mode) -> io::Result<()> {
        let register = uffdio_register {
            range: range(area),
            mode: mode as u64,
            ioctls: 0,
        };
        self.ioctl(ioctl::UFFDIO_REGISTER, register)
    }

    /// Has an area be what it was before.
    pub fn unregister(&self, area: &Range<u64>) -> io::Result<()> {
        self.ioctl(ioctl::UFFDIO_UNREGISTER, range(area))
    }

    /// Protects the pages of an area that is registered for [`Mode::WriteProtect`].
    pub fn protect(&self, area: &Range<u64>) -> io::Result<()> {
        self.set_protection(area, PROTECT)
    }

    /// Takes the marks of protected pages away.
    pub fn unprotect(&self, area: &Range<u64>) -> io::Result<()> {
        self.set_protection(area, 0)
    }

    fn set_protection(&self, area: &Range<u64>, mode: u64) -> io::Result<()> {
        let range = range(area);
        self.ioctl(
            ioctl::UFFDIO_WRITEPROTECT,
            uffdio_writeprotect { range, mode },
        )
    }

    /// Has a page of a file that is in memory be in the page table, of an area that is registered for [`Mode::Minor`];
    /// nothing is made: where the file has none, it fails with EFAULT.
    pub fn go_on(&self, page: &Range<u64>) -> io::Result<()> {
        let go_on = uffdio_continue {
            range: range(page),
            mode: 0,
            mapped: 0,
        };
        self.ioctl(ioctl::UFFDIO_CONTINUE, go_on)
    }

    fn ioctl<T>(&self, request: u32, mut argument: T) -> io::Result<()> {
        self.ioctl_with(request, &mut argument)
    }

    fn ioctl_with<T>(&self, request: u32, argument: &mut T) -> io::Result<()> {
        // SAFETY: the structure is the one that the request's number is made of, by the callers, all of this module. It
        // has addresses of the userfaultfd's process, whose page tables the kernel looks up and checks, and of this one at
        // most those of memory that the caller has borrowed to be read: the kernel writes to the structure alone.
        match unsafe { libc::ioctl(self.0.as_raw_fd(), request.into(), &raw mut *argument) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl AsFd for Userfault {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<OwnedFd> for Userfault {
    /// One that is in use already, and that another process has sent.
    fn from(fd: OwnedFd) -> Self {
        Self(fd)
    }
}

/// What userfaultfd(2) is asked for by whoever makes one: O_CLOEXEC, O_NONBLOCK, UFFD_USER_MODE_ONLY.
pub const FLAGS: u64 =
    libc::O_CLOEXEC as u64 | libc::O_NONBLOCK as u64 | UFFD_USER_MODE_ONLY as u64;

/// The same without UFFD_USER_MODE_ONLY: system calls that fault wait, too. The process needs CAP_SYS_PTRACE for it.
pub const FLAGS_OF_ALL: u64 = FLAGS & !(UFFD_USER_MODE_ONLY as u64);

/// UFFDIO_WRITEPROTECT_MODE_WP, which is no constant of the library's.
const PROTECT: u64 = 1;

fn range(area: &Range<u64>) -> uffdio_range {
    uffdio_range {
        start: area.start,
        len: area.end - area.start,
    }
}
