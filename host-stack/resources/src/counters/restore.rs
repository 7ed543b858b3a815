//! Open files that have no name anywhere: memory, counters, timers.

use std::{
    fs::File,
    io::{self, Write},
    os::fd::{AsRawFd, OwnedFd},
};

use rustix::event::{EventfdFlags, eventfd};

use crate::{
    error::{Error, Result},
    opened::owned,
};

/// An eventfd that has counted this far.
pub fn event(count: u64, semaphore: bool) -> Result<OwnedFd> {
    let mut flags = EventfdFlags::empty();
    flags.set(EventfdFlags::SEMAPHORE, semaphore);
    let event = eventfd(0, flags).map_err(|source| Error::io("eventfd", source))?;
    let mut file = File::from(event);
    let written = file.write_all(&count.to_ne_bytes());
    written.map_err(|source| Error::io("eventfd", source))?;
    Ok(file.into())
}

/// A timerfd that goes off when the other would.
pub fn timer(clock: i32, settings: i32, ticks: u64, setting: &[u64; 4]) -> Result<OwnedFd> {
    /// `_IOW('T', 0, __u64)` (linux/timerfd.h).
    const SET_TICKS: libc::Ioctl = 0x4008_5400;
    // SAFETY: timerfd_create(2) takes numbers alone and no address, so the kernel reads and writes no memory of this
    // process.
    let fd = owned(
        unsafe { libc::timerfd_create(clock, libc::TFD_CLOEXEC) },
        "timerfd_create",
    )?;
    let [interval, interval_nanos, value, value_nanos] = setting.map(|word| word as i64);
    let spec = libc::itimerspec {
        it_interval: libc::timespec {
            tv_sec: interval,
            tv_nsec: interval_nanos,
        },
        it_value: libc::timespec {
            tv_sec: value,
            tv_nsec: value_nanos,
        },
    };
    // Of other clocks it is what is left, whatever it was set to be.
    let is_of_day = [libc::CLOCK_REALTIME, libc::CLOCK_REALTIME_ALARM].contains(&clock);
    let flags = if is_of_day { settings } else { 0 };
    // SAFETY: timerfd_settime(2) reads `spec` and writes nothing to a null pointer; TFD_IOC_SET_TICKS reads eight
    // bytes, those of `ticks`.
    let set = unsafe {
        let none = std::ptr::null_mut();
        libc::timerfd_settime(fd.as_raw_fd(), flags, &raw const spec, none) == 0
            && (ticks == 0 || libc::ioctl(fd.as_raw_fd(), SET_TICKS, &raw const ticks) == 0)
    };
    match set {
        true => Ok(fd),
        false => Err(Error::io("timerfd_settime", io::Error::last_os_error())),
    }
}

/// A signalfd of a mask.
pub fn signals(mask: u64) -> Result<OwnedFd> {
    // SAFETY: signalfd4(2) reads eight bytes, as it is told, those of `mask`.
    let fd = unsafe { libc::syscall(libc::SYS_signalfd4, -1, &raw const mask, 8, 0) };
    owned(fd as i32, "signalfd")
}
