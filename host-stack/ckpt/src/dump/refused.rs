//! What a process has that cannot be saved, and that can be seen while it runs: nothing needs to stop for the answer.

use std::fs;

use libc::pid_t;
use procfs::process::Process;

use super::{
    descriptors::{descriptors, is_ours, is_own},
    named::Named,
    seen::{Class, Seen},
    watches,
};
use crate::error::{Error, Result};

/// Namespaces that a tree shares with its supervisor: it is restarted in one of each.
const NAMESPACES: [&str; 8] = ["user", "pid", "mnt", "net", "ipc", "uts", "cgroup", "time"];

/// Refuses a process of a tree by the name of what it has. One that has ended meanwhile is none.
pub fn check(pid: pid_t, supervisor: pid_t, named: &mut Named) -> Result<()> {
    let Ok(status) = Process::new(pid).and_then(|process| process.status()) else {
        return Ok(());
    };
    if status.seccomp.is_some_and(|mode| mode != 0) {
        return Err(Error::refused(pid, "a seccomp filter"));
    }
    if status.tracerpid != 0 {
        let what = format!("process {} traces it", status.tracerpid);
        return Err(Error::refused(pid, what));
    }
    let of = |pid, name: &str| fs::read_link(format!("/proc/{pid}/ns/{name}")).ok();
    for name in NAMESPACES {
        let (its, own) = (of(pid, name), of(supervisor, name));
        if its.is_some() && its != own {
            let what = format!("a namespace of its own ({name})");
            return Err(Error::refused(pid, what));
        }
    }
    for fd in descriptors(pid).unwrap_or_default() {
        // What is looked at may be closed meanwhile, and its number be another file's.
        if check_file(pid, fd, named).is_err() && is_own(pid, fd).is_none() {
            check_file(pid, fd, named)?;
        }
    }
    Ok(())
}

fn check_file(pid: pid_t, fd: i32, named: &mut Named) -> Result<()> {
    let Ok(seen) = Seen::look(pid, fd) else {
        return Ok(());
    };
    match seen.class(is_ours)? {
        Class::Inotify => watches::find_all(&seen, named).map(drop),
        _ => Ok(()),
    }
}
