//! Opens files of processes.

use std::{io, os::fd::OwnedFd, process};

use libc::pid_t;

use crate::{
    calls::events,
    error::{Error, Result},
    opened::{damaged, owned, path_of, reopen, seek},
    state::{Kind, OpenFile},
};

/// The pidfd of a process that has ended, and has been waited for.
pub fn ended() -> Result<OwnedFd> {
    // SAFETY: the process has one thread, so the child of fork(2) may call _exit(2), which it does at once; the other
    // calls take numbers, and a null pointer to which waitpid(2) writes nothing.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::_exit(0);
        }
        let fd = pidfd(child, 0);
        libc::waitpid(child, std::ptr::null_mut(), 0);
        fd
    }
}

fn pidfd(pid: pid_t, flags: u32) -> Result<OwnedFd> {
    // SAFETY: pidfd_open(2) takes numbers alone and no address, so the kernel reads and writes no memory of this process.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, flags) };
    owned(fd as i32, "pidfd_open")
}

/// Waits until a process has ended, whoever's child it is, and whether or not it is waited for.
pub fn await_end(pid: pid_t) -> Result<()> {
    let Ok(process) = pidfd(pid, 0) else {
        // There is none of that number.
        return Ok(());
    };
    loop {
        match events(&process, libc::POLLIN, -1) {
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Error::io("poll", error)),
        }
    }
}

/// Opens what is of a process of the tree.
pub fn open_late(file: &OpenFile) -> Result<OwnedFd> {
    match &file.kind {
        Kind::Pid(pid) => pidfd(*pid, (file.flags & libc::O_NONBLOCK) as u32),
        Kind::Proc { pid, path, offset } => {
            let own = std::fs::read_link("/proc/self").unwrap_or_default();
            if own.to_str() != Some(&process::id().to_string()) {
                let what = "a file of /proc/PID: /proc is another namespace's";
                return Err(Error::Missing { what: what.into() });
            }
            let mut name = format!("/proc/{pid}").into_bytes();
            name.extend(path);
            let opened = reopen(path_of(&name), file.flags)?;
            if file.flags & libc::O_PATH == 0 {
                seek(&opened, *offset)?;
            }
            Ok(opened)
        }
        _ => Err(damaged("a file that is opened late")),
    }
}
