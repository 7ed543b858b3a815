//! Makes writers of a range wait for a moment: userfaultfd(2), write protection.
//!
//! What must stay true: there is a [`Freeze`] only where writers really wait. Where the kernel has no userfaultfd(2) for
//! this process (containers often refuse it), or somebody else tracks the range by one (a supervisor that takes
//! checkpoints does), or for memory that it is not for (private pages of files, such as variables with a value), there is
//! one only if the calling thread is the only one that could write; else there is none, and whoever wants one leaves memory
//! where it is.

use std::{
    io,
    marker::PhantomData,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
};

use crate::{pages::Range, threads};

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
pub enum Freeze {
    /// Closing it wakes them.
    Waiting { _userfaultfd: OwnedFd },
    /// There is no other writer, and no handler of a signal runs.
    Alone { _signals: SignalsBlocked },
}

impl Freeze {
    /// Stops the writers of `range`, all of whose pages are there.
    pub fn new(range: Range) -> io::Result<Self> {
        Self::waiting(range).or_else(|error| {
            let signals = SignalsBlocked::new();
            match threads::is_alone() {
                true => Ok(Self::Alone { _signals: signals }),
                false => Err(error),
            }
        })
    }

    fn waiting(range: Range) -> io::Result<Self> {
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
        Ok(Self::Waiting { _userfaultfd: fd })
    }
}

/// All signals wait for the calling thread, until this is dropped in it.
pub struct SignalsBlocked {
    before: libc::sigset_t,
    /// It is that thread's.
    _not_send: PhantomData<*const ()>,
}

impl SignalsBlocked {
    fn new() -> Self {
        // SAFETY: zeroes are a set of signals; both sets are this function's own, and of the size that libc writes.
        let before = unsafe {
            let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = std::mem::zeroed();
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, &raw mut before);
            before
        };
        Self {
            before,
            _not_send: PhantomData,
        }
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        // SAFETY: a set that pthread_sigmask has filled; nobody wants the one before.
        unsafe {
            libc::pthread_sigmask(
                libc::SIG_SETMASK,
                &raw const self.before,
                std::ptr::null_mut(),
            );
        }
    }
}
