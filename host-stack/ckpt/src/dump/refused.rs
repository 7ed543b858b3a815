//! What a process has that cannot be saved, and that can be seen while it runs: nothing needs to stop for the answer.

use std::{
    fs::{self, File},
    io::Read,
    os::unix::fs::MetadataExt,
    path::Path,
};

use libc::pid_t;
use procfs::process::{Process, Status};
use snaprig_resources::{
    collected::kind_of,
    descriptor::FoundDescriptor,
    error::{Error, Result},
    files::named::Named,
    plugins::owned::Owned,
    resource::Resources,
};
use snaprig_tracee::{
    descriptors::{descriptors, me},
    error::Error as TraceeError,
    freeze::HeldProcess,
    trace::has_ended,
    tree,
};

use super::areas::Flags;

/// Namespaces that a tree shares with its supervisor: it is restarted in one of each.
const NAMESPACES: [&str; 8] = ["user", "pid", "mnt", "net", "ipc", "uts", "cgroup", "time"];
/// Class of an ELF file of 32 bits (elf(5)), and where it is said.
const ELFCLASS32: u8 = 1;
const EI_CLASS: usize = 4;

/// Refuses a process of a tree by the name of what it has. One of its threads, for the first may have ended; none, if all
/// have.
pub fn check(
    pid: pid_t,
    resources: &Resources,
    named: &mut Named,
    owned: &Owned,
) -> Result<Option<pid_t>> {
    let Ok(tasks) = Process::new(pid).and_then(|process| process.tasks()) else {
        return Ok(None);
    };
    let mut living = None;
    for task in tasks.flatten() {
        let (Ok(stat), Ok(status)) = (task.stat(), task.status()) else {
            continue;
        };
        if stat.state == 'D' && is_making_a_process(pid, task.tid) {
            return Err(Error::from(TraceeError::Stuck { tid: task.tid }).for_now());
        }
        if !matches!(stat.state, 'Z' | 'X') {
            thread(pid, &status)?;
            living = living.or(Some(task.tid));
        }
    }
    let Some(tid) = living else { return Ok(None) };
    match whole(tid).and_then(|()| files(tid, resources, named, owned)) {
        // It may have been about to end.
        Err(_) if has_ended(tid) => Ok(None),
        Err(error) => Err(error),
        Ok(()) => Ok(Some(tid)),
    }
}

/// What all threads of a process share.
fn whole(pid: pid_t) -> Result<()> {
    let of = |pid, name: &str| fs::read_link(format!("/proc/{pid}/ns/{name}")).ok();
    for name in NAMESPACES {
        let (its, own) = (of(pid, name), of(me(), name));
        if its.is_some() && its != own {
            let what = format!("a namespace of its own ({name})");
            return Err(Error::refused(pid, what));
        }
    }
    let root = |pid: pid_t| {
        let metadata = fs::metadata(format!("/proc/{pid}/root/"));
        metadata.map(|root| (root.dev(), root.ino())).ok()
    };
    if root(pid).is_some_and(|its| Some(its) != root(me())) {
        return Err(Error::refused(
            pid,
            "a root directory of its own (chroot(2))",
        ));
    }
    let says = |pid: pid_t, name: &str| fs::read(format!("/proc/{pid}/{name}")).ok();
    for (name, what) in [
        ("cgroup", "a control group of its own (cgroups(7))"),
        ("attr/current", "a security label of its own"),
    ] {
        let (its, own) = (says(pid, name), says(tree::first(), name));
        // Who is about to end has left its group already.
        if its.is_some() && its != own {
            return Err(Error::refused(pid, what).for_now());
        }
    }
    executable(pid)
}

fn executable(pid: pid_t) -> Result<()> {
    let exe = format!("/proc/{pid}/exe");
    if is_of_32_bits(Path::new(&exe)) {
        return Err(Error::refused(pid, "a program of 32 bits"));
    }
    let (name, file) = (fs::read_link(&exe), fs::metadata(&exe));
    if let (Ok(name), Ok(file)) = (name, file) {
        let id = |file: fs::Metadata| (file.dev(), file.ino());
        if fs::metadata(&name).map(id).ok() != Some(id(file)) {
            let what = format!("its program has been removed ({})", name.display());
            return Err(Error::refused(pid, what));
        }
    }
    Ok(())
}

fn thread(pid: pid_t, status: &Status) -> Result<()> {
    filter(pid, status)?;
    if status.tracerpid != 0 {
        let what = format!("process {} traces it", status.tracerpid);
        return Err(Error::refused(pid, what));
    }
    Ok(())
}

/// Filters are inherited: those that the supervisor has, a container's say, the restarted process has as well.
fn filter(pid: pid_t, status: &Status) -> Result<()> {
    const FILTER: u32 = libc::SECCOMP_MODE_FILTER;
    match status.seccomp {
        None | Some(0) => Ok(()),
        Some(FILTER)
            if filters(status.pid).is_some_and(|its| Some(its) == filters(tree::first())) =>
        {
            Ok(())
        }
        Some(_) => Err(Error::refused(pid, "a seccomp filter of its own")),
    }
}

/// How many seccomp filters a thread has; none: the kernel does not say (before Linux 5.9).
fn filters(tid: pid_t) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{tid}/status")).ok()?;
    let mut lines = status.lines();
    let count = lines.find_map(|line| line.strip_prefix("Seccomp_filters:"))?;
    count.trim().parse().ok()
}

/// Whether a thread is in a call that makes a process or a thread: it may wait in it, as vfork(2) does.
fn is_making_a_process(pid: pid_t, tid: pid_t) -> bool {
    let call = fs::read_to_string(format!("/proc/{pid}/task/{tid}/syscall"));
    let number = call
        .ok()
        .and_then(|call| call.split(' ').next()?.parse().ok());
    let makes = [libc::SYS_vfork, libc::SYS_clone, libc::SYS_clone3];
    number.is_some_and(|number| makes.contains(&number))
}

fn is_of_32_bits(exe: &Path) -> bool {
    let mut start = [0; EI_CLASS + 1];
    let read = File::open(exe).and_then(|mut file| file.read_exact(&mut start));
    read.is_ok() && start.starts_with(b"\x7fELF") && start[EI_CLASS] == ELFCLASS32
}

/// Refuses a process by what its memory is.
pub fn flags(pid: pid_t, flags: &Flags) -> Result<()> {
    match &flags.refused {
        Some(what) => Err(Error::refused(pid, what.clone())),
        None => Ok(()),
    }
}

/// What only shows when it is held: threads whose calls would not be ours, and what they have asked for since they were
/// looked at.
pub fn held(process: &HeldProcess) -> Result<()> {
    filter(process.pid, &Process::new(process.handle())?.status()?)?;
    for thread in &process.threads {
        if thread.tracee.dispatches_calls() {
            let what = "system calls that it makes itself (PR_SET_SYSCALL_USER_DISPATCH)";
            return Err(Error::refused(process.pid, what));
        }
    }
    Ok(())
}

/// Refuses a process by what files it has.
fn files(pid: pid_t, resources: &Resources, named: &mut Named, owned: &Owned) -> Result<()> {
    for fd in descriptors(pid).unwrap_or_default() {
        // What is looked at may be closed meanwhile, and its number be another file's.
        let mut check = || check_file(pid, fd, resources, named, owned);
        check().or_else(|_| check())?;
    }
    Ok(())
}

fn check_file(
    pid: pid_t,
    fd: i32,
    resources: &Resources,
    named: &mut Named,
    owned: &Owned,
) -> Result<()> {
    let Ok(seen) = FoundDescriptor::look(pid, fd) else {
        return Ok(());
    };
    if owned.is_known(&seen.metadata) {
        return Ok(());
    }
    let kind = kind_of(resources, &seen)?;
    resources[kind].look_closer(&seen, named)
}
