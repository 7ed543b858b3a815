//! userfaultfd(2): of this process, or of one that is held, which makes it for its tracer.
//!
//! ```text
//! process, held:  userfaultfd() -- pidfd_getfd --> supervisor: UFFDIO_API, UFFDIO_REGISTER of areas, ...
//!                 close()
//! ```
//! What must stay true: the descriptor is closed in the process before that runs.

use std::{
    io,
    ops::Range,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
};

use crate::{
    code::code_of,
    descriptors::copy_of,
    error::Result,
    freeze::HeldProcess,
    remote::{call, result},
    stub::Stub,
};

/// ioctl_userfaultfd(2).
const UFFD_API: u64 = 0xaa;
const UFFDIO_API: libc::c_ulong = iowr(0x3f, 24);
const UFFDIO_REGISTER: libc::c_ulong = iowr(0, 32);
const UFFDIO_UNREGISTER: libc::c_ulong = 2 << 30 | 16 << 16 | 0xaa << 8 | 1;
const UFFDIO_WRITEPROTECT: libc::c_ulong = iowr(6, 24);
const UFFDIO_CONTINUE: libc::c_ulong = iowr(7, 32);
/// UFFD_USER_MODE_ONLY: all that ordinary users may have.
const USER_MODE_ONLY: u64 = 1;
/// UFFDIO_REGISTER_MODE_WP.
pub const WRITE_PROTECT: u64 = 2;
/// UFFDIO_REGISTER_MODE_MINOR.
pub const MINOR: u64 = 4;

/// A userfaultfd.
#[derive(Debug)]
pub struct Userfault(OwnedFd);

impl Userfault {
    /// Of this process, with UFFD_FEATURE_ bits.
    pub fn own(features: u64) -> io::Result<Self> {
        // SAFETY: userfaultfd(2) takes flags alone, and touches no memory. The descriptor was just
        // made for this process, which is checked, and is owned by the one `OwnedFd` from here on.
        let fd = unsafe {
            match libc::syscall(libc::SYS_userfaultfd, flags()) {
                fd if fd < 0 => return Err(io::Error::last_os_error()),
                fd => OwnedFd::from_raw_fd(fd as i32),
            }
        };
        Self::with(fd, features)
    }

    /// Of a process, which makes it, and does not have it for long.
    pub fn of(process: &mut HeldProcess, features: u64) -> Result<io::Result<Self>> {
        let stub = Stub::map(process, &code_of(process.handle())?)?;
        let opened = open_with(process, &stub);
        // Whatever came of it.
        stub.unmap(process)?;
        Ok(opened?.and_then(|fd| Self::with(fd, features)))
    }

    fn with(fd: OwnedFd, features: u64) -> io::Result<Self> {
        let userfault = Self(fd);
        userfault.ioctl(UFFDIO_API, &mut [UFFD_API, features, 0])?;
        Ok(userfault)
    }

    /// Registers an area for faults of a mode.
    pub fn register(&self, area: &Range<u64>, mode: u64) -> io::Result<()> {
        let mut range = [area.start, area.end - area.start, mode, 0];
        self.ioctl(UFFDIO_REGISTER, &mut range)
    }

    /// Has an area be what it was before.
    pub fn unregister(&self, area: &Range<u64>) -> io::Result<()> {
        let mut range = [area.start, area.end - area.start];
        self.ioctl(UFFDIO_UNREGISTER, &mut range)
    }

    /// Takes the marks of protected pages away.
    pub fn unprotect(&self, area: &Range<u64>) -> io::Result<()> {
        let mut range = [area.start, area.end - area.start, 0];
        self.ioctl(UFFDIO_WRITEPROTECT, &mut range)
    }

    /// Has a page of a file that is in memory be in the page table, of an area that is registered for [`MINOR`] faults;
    /// nothing is made: where the file has none, it fails with EFAULT.
    pub fn go_on(&self, page: &Range<u64>) -> io::Result<()> {
        let mut range = [page.start, page.end - page.start, 0, 0];
        self.ioctl(UFFDIO_CONTINUE, &mut range)
    }

    fn ioctl<const N: usize>(
        &self,
        request: libc::c_ulong,
        words: &mut [u64; N],
    ) -> io::Result<()> {
        // SAFETY: the size of a request's structure is in its number, and is what the callers, all
        // of this module, pass as an array of words, which is borrowed exclusively during the call.
        // Addresses in it are of the process of the userfaultfd, whose page tables they are about:
        // the kernel checks them, and copies nothing to them.
        match unsafe { libc::ioctl(self.0.as_raw_fd(), request, words.as_mut_ptr()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

fn flags() -> u64 {
    libc::O_CLOEXEC as u64 | libc::O_NONBLOCK as u64 | USER_MODE_ONLY
}

fn open_with(process: &mut HeldProcess, stub: &Stub) -> Result<io::Result<OwnedFd>> {
    let (pid, tid) = (process.pid, process.handle());
    let mut make = |number, argument| -> Result<io::Result<u64>> {
        let calls = [call(number, [argument])];
        let made =
            process.threads[0].remote(pid, stub.end, |remote| remote.calls(stub.at, tid, &calls));
        Ok(result(made?[0]))
    };
    let fd = match make(libc::SYS_userfaultfd, flags())? {
        Ok(fd) => fd,
        Err(error) => return Ok(Err(error)),
    };
    let copy = copy_of(pid, fd as i32);
    make(libc::SYS_close, fd)?.ok();
    copy.map(Ok)
}

/// `_IOWR(UFFD_API, number, size)` of `asm-generic/ioctl.h`.
const fn iowr(number: u64, size: u64) -> libc::c_ulong {
    3 << 30 | size << 16 | 0xaa << 8 | number
}
