//! Open files that have no name anywhere: memory, counters, timers.

use std::{
    fs::File,
    io::{self, Write},
    os::fd::{AsRawFd, OwnedFd},
};

use rustix::event::{EventfdFlags, eventfd};

use crate::{
    calls::clock as clock_of,
    clocks,
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

/// How often a timer of the tree's is set before one that goes off all the time is left as it is.
const SETS_MAX: u32 = 16;

/// A timerfd that goes off when the tree's clock gets there, which showed `then` when it stood still; however often it
/// has gone off since.
pub fn timer_of_tree(clock: i32, then: u64, ticks: u64, setting: &[u64; 4]) -> Result<OwnedFd> {
    let fd = unset_timer(clock)?;
    let of = |pair: [u64; 2]| clocks::nanos(pair, clocks::SECOND_NANOS);
    let &[interval, interval_nanos, left, left_nanos] = setting;
    let (interval, left) = (of([interval, interval_nanos]), of([left, left_nanos]));
    if left == 0 {
        set_timer(&fd, 0, ticks, setting)?;
        return Ok(fd);
    }
    let deadline = then.saturating_add(left);
    // To set it is to forget how often it has gone off, so it must not go off before that is set, too.
    for _ in 0..SETS_MAX {
        let (times, next) = clocks::gone_off(deadline, interval, clock_of(clock));
        let [every, every_nanos] = clocks::split(interval, clocks::SECOND_NANOS);
        let [next_seconds, next_nanos] = clocks::split(next, clocks::SECOND_NANOS);
        let setting = [every, every_nanos, next_seconds, next_nanos];
        let ticks = ticks.saturating_add(times);
        set_timer(&fd, libc::TFD_TIMER_ABSTIME, ticks, &setting)?;
        if next == 0 || clock_of(clock) < next {
            break;
        }
    }
    Ok(fd)
}

/// A timerfd of another clock: what is left of it is left, or it goes off at a time of day.
pub fn timer(clock: i32, settings: i32, ticks: u64, setting: &[u64; 4]) -> Result<OwnedFd> {
    let fd = unset_timer(clock)?;
    let is_of_day = [libc::CLOCK_REALTIME, libc::CLOCK_REALTIME_ALARM].contains(&clock);
    set_timer(&fd, if is_of_day { settings } else { 0 }, ticks, setting)?;
    Ok(fd)
}

fn unset_timer(clock: i32) -> Result<OwnedFd> {
    // SAFETY: timerfd_create(2) takes numbers alone and no address, so the kernel reads and writes no memory of this
    // process.
    let fd = unsafe { libc::timerfd_create(clock, libc::TFD_CLOEXEC) };
    owned(fd, "timerfd_create")
}

/// Sets a timer: interval and time, seconds and nanoseconds each.
fn set_timer(fd: &OwnedFd, flags: i32, ticks: u64, setting: &[u64; 4]) -> Result<()> {
    /// `_IOW('T', 0, __u64)` (linux/timerfd.h).
    const SET_TICKS: libc::Ioctl = 0x4008_5400;
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
    // SAFETY: timerfd_settime(2) reads `spec` and writes nothing to a null pointer; TFD_IOC_SET_TICKS reads eight
    // bytes, those of `ticks`.
    let set = unsafe {
        let none = std::ptr::null_mut();
        libc::timerfd_settime(fd.as_raw_fd(), flags, &raw const spec, none) == 0
            && (ticks == 0 || libc::ioctl(fd.as_raw_fd(), SET_TICKS, &raw const ticks) == 0)
    };
    match set {
        true => Ok(()),
        false => Err(Error::io("timerfd_settime", io::Error::last_os_error())),
    }
}

/// A signalfd of a mask.
pub fn signals(mask: u64) -> Result<OwnedFd> {
    // SAFETY: signalfd4(2) reads eight bytes, as it is told, those of `mask`.
    let fd = unsafe { libc::syscall(libc::SYS_signalfd4, -1, &raw const mask, 8, 0) };
    owned(fd as i32, "signalfd")
}
