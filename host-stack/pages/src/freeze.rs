//! Makes writers of a range wait for a moment: userfaultfd(2), write protection.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::pages::Range;

/// ioctl_userfaultfd(2).
mod uffd {
    pub const API: u64 = 0xaa;
    pub const USER_MODE_ONLY: libc::c_long = 1;
    pub const FEATURE_WP_SHMEM: u64 = 1 << 12;
    pub const REGISTER_MODE_WP: u64 = 1 << 1;
    pub const WRITEPROTECT_MODE_WP: u64 = 1;
    pub const IOCTL_API: libc::c_ulong = 0xc018_aa3f;
    pub const IOCTL_REGISTER: libc::c_ulong = 0xc020_aa00;
    pub const IOCTL_WRITEPROTECT: libc::c_ulong = 0xc018_aa06;
}

/// A range whose writers wait until this is dropped. Where the kernel has no userfaultfd, they do
/// not: then memory that is written while it is being registered may lose that write.
#[derive(Debug)]
pub struct Freeze {
    /// Closing it wakes them.
    _userfaultfd: Option<OwnedFd>,
}

impl Freeze {
    /// Stops the writers of `range`, all of whose pages are there.
    pub fn new(range: Range) -> Self {
        Self {
            _userfaultfd: protect(range),
        }
    }
}

fn protect(range: Range) -> Option<OwnedFd> {
    let flags = libc::c_long::from(libc::O_CLOEXEC | libc::O_NONBLOCK) | uffd::USER_MODE_ONLY;
    // SAFETY: makes a descriptor.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
    if fd < 0 {
        return None;
    }
    // SAFETY: it is new, and nobody else's.
    let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
    let length = range.end - range.start;
    let mut api = [uffd::API, uffd::FEATURE_WP_SHMEM, 0];
    let mut register = [range.start, length, uffd::REGISTER_MODE_WP, 0];
    let mut protect = [range.start, length, uffd::WRITEPROTECT_MODE_WP];
    let calls = [
        (uffd::IOCTL_API, api.as_mut_slice()),
        (uffd::IOCTL_REGISTER, register.as_mut_slice()),
        (uffd::IOCTL_WRITEPROTECT, protect.as_mut_slice()),
    ];
    for (request, argument) in calls {
        // SAFETY: each argument has the length that its request has in its number.
        if unsafe { libc::ioctl(fd.as_raw_fd(), request, argument.as_mut_ptr()) } < 0 {
            return None;
        }
    }
    Some(fd)
}
