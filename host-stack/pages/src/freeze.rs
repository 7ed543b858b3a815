//! Makes writers of a range wait for a moment: userfaultfd(2), write protection.
//!
//! What must stay true: there is a [`Freeze`] only where writers really wait. Where the kernel has no userfaultfd(2) for
//! this process (containers often refuse it), or somebody else tracks the range by one (a supervisor that takes
//! checkpoints does), there is none, and whoever wants one leaves memory where it is.

use std::{
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
};

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

/// A range whose writers wait until this is dropped.
#[derive(Debug)]
pub struct Freeze {
    /// Closing it wakes them.
    _userfaultfd: OwnedFd,
}

impl Freeze {
    /// Stops the writers of `range`, all of whose pages are there.
    pub fn new(range: Range) -> io::Result<Self> {
        let flags = libc::c_long::from(libc::O_CLOEXEC | libc::O_NONBLOCK) | uffd::USER_MODE_ONLY;
        // SAFETY: userfaultfd(2) takes flags alone, and touches no memory of the caller's.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call has just made it, so nobody else has it.
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
            // SAFETY: each argument has the length that its request has in its number (bits 16 to 29): 24, 32, 24.
            if unsafe { libc::ioctl(fd.as_raw_fd(), request, argument.as_mut_ptr()) } < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(Self { _userfaultfd: fd })
    }
}
