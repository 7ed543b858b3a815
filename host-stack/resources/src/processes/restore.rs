//! Opens files of processes.

use std::{os::fd::OwnedFd, process};

use crate::{
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
        let fd = libc::syscall(libc::SYS_pidfd_open, child, 0) as i32;
        let fd = owned(fd, "pidfd_open");
        libc::waitpid(child, std::ptr::null_mut(), 0);
        fd
    }
}

/// Opens what is of a process of the tree.
pub fn open_late(file: &OpenFile) -> Result<OwnedFd> {
    match &file.kind {
        Kind::Pid(pid) => {
            let flags = (file.flags & libc::O_NONBLOCK) as u32;
            // SAFETY: pidfd_open(2) takes numbers alone and no address, so the kernel reads and writes no memory of
            // this process.
            let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, *pid, flags) };
            owned(fd as i32, "pidfd_open")
        }
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
