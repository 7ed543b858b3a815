//! Calls on descriptors of whatever kind.

use std::{
    io,
    mem::MaybeUninit,
    os::fd::{AsFd, AsRawFd},
};

/// The result of a call that says -1 for errors.
pub fn check(returned: i32) -> io::Result<i32> {
    match returned {
        -1 => Err(io::Error::last_os_error()),
        returned => Ok(returned),
    }
}

/// What poll(2) says at once.
pub fn events(fd: impl AsFd, wanted: i16, wait_ms: i32) -> io::Result<i16> {
    let mut one = libc::pollfd {
        fd: fd.as_fd().as_raw_fd(),
        events: wanted,
        revents: 0,
    };
    // SAFETY: poll(2) reads and writes one entry, which is a variable of this function.
    check(unsafe { libc::poll(&raw mut one, 1, wait_ms) })?;
    Ok(one.revents)
}

/// Bytes that can be read at once (FIONREAD).
pub fn readable(fd: impl AsFd) -> io::Result<u64> {
    count(fd, libc::FIONREAD)
}

/// A number of bytes that ioctl(2) says.
pub fn count(fd: impl AsFd, request: libc::Ioctl) -> io::Result<u64> {
    let mut count = MaybeUninit::<i32>::uninit();
    // SAFETY: the callers ask for FIONREAD or TIOCOUTQ, which write an int, or fail.
    unsafe {
        check(libc::ioctl(
            fd.as_fd().as_raw_fd(),
            request,
            count.as_mut_ptr(),
        ))?;
        Ok(count.assume_init().max(0) as u64)
    }
}

/// What a clock says, in nanoseconds.
pub fn clock(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: clock_gettime(2) writes a timespec, which is a variable of this function.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
