//! Which pages a process writes to: write protection by userfaultfd(2) in its asynchronous mode
//! (Documentation/admin-guide/mm/userfaultfd.rst), whose faults the kernel resolves by itself. What was written to is
//! read from pagemap, and protected again (`dump/pages.rs`).
//!
//! ```text
//! process, held:  userfaultfd() -- pidfd_getfd --> supervisor: UFFDIO_API, UFFDIO_REGISTER of each area
//!                 close()
//! ```
//! Only private anonymous memory is tracked. Of shared memory, and of files, pages can be written to that nobody's page
//! table tells of: by write(2), or by a process that has ended since; so they are saved whole.
//!
//! What must stay true: an area is registered whole, while its process is held: else it would be divided, and mremap(2)
//! is not for several areas. The descriptor is closed in the process before that runs; an area that is not tracked, for
//! whatever reason, says so ([`Pagemap::is_tracked`](crate::dump::Pagemap::is_tracked)), and is saved whole. What the
//! kernel takes an area's tracking away for (a fork's child, mremap(2), exec) therefore needs no notice. It may leave
//! the marks of protected pages there, though: an area that mremap(2) joins to one that it moves is not tracked any more
//! either, but its marks stay, also of pages that are written to from then on. So what is registered begins without any:
//! in an address space where something has been tracked before, they are taken away.

use std::{
    collections::HashMap,
    io,
    ops::Range,
    os::fd::{AsRawFd, OwnedFd},
};

use libc::pid_t;

use crate::{
    dump::{Stub, code_of, copy_of},
    error::Result,
    freeze::HeldProcess,
    remote::{call, result},
};

/// ioctl_userfaultfd(2).
const UFFD_API: u64 = 0xaa;
/// UFFD_FEATURE_WP_UNPOPULATED, without which the asynchronous mode is not to be had, and that.
const FEATURES: u64 = 1 << 13 | 1 << 15;
const UFFDIO_API: libc::c_ulong = iowr(0x3f, 24);
const UFFDIO_REGISTER: libc::c_ulong = iowr(0, 32);
const UFFDIO_UNREGISTER: libc::c_ulong = 2 << 30 | 16 << 16 | 0xaa << 8 | 1;
const UFFDIO_WRITEPROTECT: libc::c_ulong = iowr(6, 24);
const REGISTER_WP: u64 = 2;
/// UFFD_USER_MODE_ONLY: all that ordinary users may have. Asynchronous faults are resolved in the kernel, its own, too.
const USER_MODE_ONLY: u64 = 1;

/// The userfaultfds of a tree.
#[derive(Debug, Default)]
pub struct Tracking {
    of: HashMap<pid_t, OwnedFd>,
    /// This kernel cannot do it.
    is_off: bool,
}

impl Tracking {
    /// Whether it can be done at all, as far as is known.
    pub fn is_possible(&self) -> bool {
        !self.is_off
    }

    /// Tracks writes to areas of a process that is held, which are not tracked yet; those that cannot be are left as they
    /// are. All of their pages are as if they had been written to.
    pub fn start(&mut self, process: &mut HeldProcess, areas: &[Range<u64>]) -> Result<()> {
        let left = match self.of.get(&process.pid) {
            Some(userfault) => still_to_do(areas, |area| begin_anew(userfault, area)),
            None => areas,
        };
        if left.is_empty() || self.is_off {
            return Ok(());
        }
        // The first, or one of another program: the process has called exec(2), or its number is another's now.
        self.of.remove(&process.pid);
        match open(process)? {
            Ok(userfault) => {
                still_to_do(left, |area| register(&userfault, area));
                self.of.insert(process.pid, userfault);
            }
            Err(error) => self.refuse(&error),
        }
        Ok(())
    }

    fn refuse(&mut self, error: &io::Error) {
        // A process may have no number for a descriptor left; next time it may.
        if [Some(libc::EMFILE), Some(libc::ENFILE)].contains(&error.raw_os_error()) {
            return;
        }
        self.is_off = true;
        eprintln!(
            "snaprig: writes cannot be tracked here, so that every checkpoint is a full one: userfaultfd: {error}"
        );
    }

    /// Keeps only what belongs to these processes.
    pub fn retain(&mut self, alive: &[pid_t]) {
        self.of.retain(|pid, _| alive.contains(pid));
    }
}

/// Registers areas; those from the first on that it fails for because the address space is no more.
fn still_to_do(
    areas: &[Range<u64>],
    register: impl Fn(&Range<u64>) -> io::Result<()>,
) -> &[Range<u64>] {
    for (index, area) in areas.iter().enumerate() {
        let registered = register(area);
        let is_gone = |error: io::Error| {
            [Some(libc::ENOMEM), Some(libc::ESRCH)].contains(&error.raw_os_error())
        };
        if registered.is_err_and(is_gone) {
            return &areas[index..];
        }
    }
    &[]
}

/// Has a process make a userfaultfd, and takes it.
fn open(process: &mut HeldProcess) -> Result<io::Result<OwnedFd>> {
    let stub = Stub::map(process, &code_of(process.handle())?)?;
    let opened = open_with(process, &stub);
    // Whatever came of it.
    stub.unmap(process)?;
    let userfault = match opened? {
        Ok(userfault) => userfault,
        Err(error) => return Ok(Err(error)),
    };
    let mut api = [UFFD_API, FEATURES, 0];
    Ok(ioctl(&userfault, UFFDIO_API, &mut api).map(|()| userfault))
}

fn open_with(process: &mut HeldProcess, stub: &Stub) -> Result<io::Result<OwnedFd>> {
    let (pid, tid) = (process.pid, process.handle());
    let mut make = |number, argument| -> Result<io::Result<u64>> {
        let calls = [call(number, [argument])];
        let made =
            process.threads[0].remote(pid, stub.end, |remote| remote.calls(stub.at, tid, &calls));
        Ok(result(made?[0]))
    };
    let flags = libc::O_CLOEXEC as u64 | libc::O_NONBLOCK as u64 | USER_MODE_ONLY;
    let fd = match make(libc::SYS_userfaultfd, flags)? {
        Ok(fd) => fd,
        Err(error) => return Ok(Err(error)),
    };
    let copy = copy_of(pid, fd as i32);
    make(libc::SYS_close, fd)?.ok();
    copy.map(Ok)
}

fn register(userfault: &OwnedFd, area: &Range<u64>) -> io::Result<()> {
    let mut range = [area.start, area.end - area.start, REGISTER_WP, 0];
    ioctl(userfault, UFFDIO_REGISTER, &mut range)
}

/// Registers what may have marks.
fn begin_anew(userfault: &OwnedFd, area: &Range<u64>) -> io::Result<()> {
    register(userfault, area)?;
    let (start, bytes) = (area.start, area.end - area.start);
    let unprotected = ioctl(userfault, UFFDIO_WRITEPROTECT, &mut [start, bytes, 0]);
    if unprotected.is_err() {
        // Marks that may be wrong are worse than none.
        ioctl(userfault, UFFDIO_UNREGISTER, &mut [start, bytes])?;
    }
    unprotected
}

fn ioctl<const N: usize>(
    fd: &OwnedFd,
    request: libc::c_ulong,
    words: &mut [u64; N],
) -> io::Result<()> {
    // SAFETY: each request's structure is as long as its number says, which is what is passed.
    match unsafe { libc::ioctl(fd.as_raw_fd(), request, words.as_mut_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// `_IOWR(UFFD_API, number, size)` of `asm-generic/ioctl.h`.
const fn iowr(number: u64, size: u64) -> libc::c_ulong {
    3 << 30 | size << 16 | 0xaa << 8 | number
}
