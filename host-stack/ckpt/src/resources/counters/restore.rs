//! Open files that have no name anywhere: memory, counters, timers.

use std::{
    ffi::CString,
    fs::File,
    io::{self, Write},
    os::fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd},
};

use crate::{
    error::{Error, Result},
    resources::{
        huge::pages,
        opened::{damaged, duplicate, owned, path_to, reopen},
    },
    state::SharedMemory,
};

/// Memory to be filled, and a descriptor of it to be mapped: what is sealed against writing cannot have been mapped by
/// one that writes.
pub fn memory(shared: &SharedMemory) -> Result<(RawFd, RawFd)> {
    let name = shared.name.clone().unwrap_or_else(|| b"snaprig".to_vec());
    let name = CString::new(name).map_err(|_| damaged("a name with a zero"))?;
    let sealing = match shared.seals & libc::F_SEAL_EXEC {
        0 => libc::MFD_ALLOW_SEALING,
        _ => libc::MFD_NOEXEC_SEAL,
    };
    let flags = libc::MFD_CLOEXEC | sealing;
    let memory = match shared.huge_bytes {
        0 => {
            // SAFETY: the name ends with a zero.
            let fd = unsafe { libc::memfd_create(name.as_ptr(), flags) };
            owned(fd, "memfd_create")?
        }
        bytes => pages::memfd(&name, bytes, flags as i32)
            .map_err(|source| Error::io("memfd_create of huge pages", source))?,
    };
    let file = File::from(memory);
    file.set_len(shared.size)
        .map_err(|source| Error::io("memfd", source))?;
    let view = match shared.seals & libc::F_SEAL_WRITE {
        0 => duplicate(file.as_raw_fd())?,
        _ => reopen(&path_to(file.as_raw_fd()), libc::O_RDONLY)?,
    };
    Ok((file.into_raw_fd(), view.into_raw_fd()))
}

/// An eventfd that has counted this far.
pub fn event(count: u64, semaphore: bool) -> Result<OwnedFd> {
    let flags = if semaphore { libc::EFD_SEMAPHORE } else { 0 };
    // SAFETY: no memory is involved; checked.
    let event = owned(unsafe { libc::eventfd(0, flags) }, "eventfd")?;
    let mut file = File::from(event);
    let written = file.write_all(&count.to_ne_bytes());
    written.map_err(|source| Error::io("eventfd", source))?;
    Ok(file.into())
}

/// A timerfd that goes off when the other would.
pub fn timer(clock: i32, settings: i32, ticks: u64, setting: &[u64; 4]) -> Result<OwnedFd> {
    /// `_IOW('T', 0, __u64)` (linux/timerfd.h).
    const SET_TICKS: libc::Ioctl = 0x4008_5400;
    // SAFETY: no memory is involved; checked.
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
    // SAFETY: both are valid to read.
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

/// The pidfd of a process that has ended, and has been waited for.
pub fn ended() -> Result<OwnedFd> {
    // SAFETY: the process has one thread; the child ends at once.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::_exit(0);
        }
        let fd = libc::syscall(libc::SYS_pidfd_open, child, 0) as i32;
        let fd = owned(fd, "pidfd_open");
        libc::waitpid(child, std::ptr::null_mut(), 0);
        fd
    }
}
