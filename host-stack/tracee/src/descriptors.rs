//! Descriptors of processes as the kernel knows them: which there are, which are of the same open file, copies of them.

use std::{
    cmp::Ordering,
    fs,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
};

use crate::error::{Error, Result};
use libc::pid_t;

/// pidfd_open(2), since Linux 6.9.
const PIDFD_THREAD: i32 = libc::O_EXCL;

/// The numbers of a process's descriptors.
pub fn descriptors(pid: pid_t) -> Result<Vec<i32>> {
    let path = format!("/proc/{pid}/fd");
    let entries = fs::read_dir(&path).map_err(|source| Error::io(path, source))?;
    let names = entries.flatten().map(|entry| entry.file_name());
    let mut numbers: Vec<i32> = names
        .filter_map(|name| name.to_str()?.parse().ok())
        .collect();
    numbers.sort_unstable();
    Ok(numbers)
}

/// This process.
pub fn me() -> pid_t {
    std::process::id().cast_signed()
}

/// Which of the supervisor's standard descriptors a process's is.
pub fn is_own(pid: pid_t, fd: i32) -> Option<i32> {
    (0..3).find(|own| is_same_file((pid, fd), (me(), *own)))
}

/// The descriptors that this process was launched with: its own are closed by exec(2).
pub fn passed_on() -> Vec<i32> {
    // SAFETY: fcntl(2) with F_GETFD takes a number alone, touches no memory, and fails with EBADF
    // for what is no descriptor.
    let is_passed_on = |fd: &i32| unsafe { libc::fcntl(*fd, libc::F_GETFD) } == 0;
    let own = descriptors(me()).unwrap_or_default();
    own.into_iter().filter(is_passed_on).collect()
}

/// Whether two descriptors are of one open file.
pub fn is_same_file(one: (pid_t, i32), other: (pid_t, i32)) -> bool {
    compare(one, other) == Some(Ordering::Equal)
}

/// The order that the kernel has open files in (kcmp(2)); none: one of them is not there.
pub fn compare((pid, fd): (pid_t, i32), (other, number): (pid_t, i32)) -> Option<Ordering> {
    const KCMP_FILE: i32 = 0;
    // SAFETY: kcmp(2) of two files takes five numbers, and none of them is an address: the kernel
    // compares two entries of its own and touches no memory of either process.
    let order = unsafe {
        libc::syscall(
            libc::SYS_kcmp,
            pid,
            other,
            KCMP_FILE,
            fd as u64,
            number as u64,
        )
    };
    match order {
        0 => Some(Ordering::Equal),
        1 => Some(Ordering::Less),
        2 => Some(Ordering::Greater),
        _ => None,
    }
}

/// Whether a descriptor is of the open file that an epoll instance of the same process has as number `target`.
pub fn is_watched((pid, fd): (pid_t, i32), epoll: i32, target: i32) -> bool {
    const KCMP_EPOLL_TFD: i32 = 7;
    // struct kcmp_epoll_slot: epoll's descriptor, target, which of several.
    let slot = [epoll as u32, target as u32, 0];
    // SAFETY: kcmp(2) of this kind reads a `struct kcmp_epoll_slot` of three 32-bit numbers, which
    // `slot` is; it is on this stack during the call, and the other arguments are numbers.
    unsafe {
        libc::syscall(
            libc::SYS_kcmp,
            pid,
            pid,
            KCMP_EPOLL_TFD,
            fd as u64,
            slot.as_ptr(),
        ) == 0
    }
}

/// A descriptor of this process for the same open file (pidfd_getfd(2)).
pub fn copy_of(pid: pid_t, fd: i32) -> Result<OwnedFd> {
    let failed = || {
        Error::io(
            format!(
                "descriptor {fd} of process {pid} (pidfd_getfd(2), which containers may forbid)"
            ),
            std::io::Error::last_os_error(),
        )
    };
    // SAFETY: pidfd_open(2) and pidfd_getfd(2) take numbers alone, and touch no memory. Each
    // descriptor was just made for this process, which is checked, and is owned by one `OwnedFd`
    // from here on.
    unsafe {
        let mut process = libc::syscall(libc::SYS_pidfd_open, pid, 0);
        if process < 0 {
            // A thread: the first one of its process has ended.
            process = libc::syscall(libc::SYS_pidfd_open, pid, PIDFD_THREAD);
        }
        if process < 0 {
            return Err(failed());
        }
        let process = OwnedFd::from_raw_fd(process as i32);
        let copy = libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), fd, 0);
        match copy {
            copy if copy < 0 => Err(failed()),
            copy => Ok(OwnedFd::from_raw_fd(copy as i32)),
        }
    }
}
