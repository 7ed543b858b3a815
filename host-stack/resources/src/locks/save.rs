//! What is held through open files: locks, leases, and who is told of what happens to them.

use std::{
    io,
    os::fd::{AsRawFd, OwnedFd},
};

use libc::pid_t;
use snaprig_tracee::{descriptors::descriptors, tree};

use crate::{
    calls::check,
    descriptor::FoundDescriptor,
    error::{Error, Result},
    state::{Lock, LockedBy, Owner},
};

/// fcntl(2).
const F_GETSIG: i32 = 11;
const F_GETOWN_EX: i32 = 16;
/// F_OWNER_PGRP: a group, not a process.
const OF_GROUP: i32 = 2;

/// Who gets the signals of an open file.
fn owner(copy: &OwnedFd) -> io::Result<Option<Owner>> {
    // struct f_owner_ex: kind, number.
    let mut of = [0i32; 2];
    // SAFETY: F_GETOWN_EX writes a struct f_owner_ex, which is two ints, as `of` is; F_GETSIG takes no argument.
    let signal = unsafe {
        check(libc::fcntl(copy.as_raw_fd(), F_GETOWN_EX, of.as_mut_ptr()))?;
        check(libc::fcntl(copy.as_raw_fd(), F_GETSIG))?
    };
    let [kind, id] = of;
    Ok((id != 0 || signal != 0).then_some(Owner { kind, id, signal }))
}

/// Who gets the signals of an open file that a descriptor is of: a process of the tree, a group, or nobody.
pub fn owner_of(
    seen: &FoundDescriptor,
    copy: &OwnedFd,
    is_ours: impl Fn(pid_t) -> bool,
) -> Result<Option<Owner>> {
    let owner = owner(copy).map_err(|source| Error::Process {
        pid: seen.pid,
        what: format!("the owner of descriptor {}", seen.fd),
        source,
    })?;
    let told = owner.filter(|owner| owner.kind != OF_GROUP && owner.id != 0);
    match told.is_some_and(|owner| !is_ours(owner.id)) {
        true => Err(seen.refused("a process outside gets its signals (F_SETOWN)")),
        false => Ok(owner),
    }
}

/// The locks that a process has through a descriptor: its own, and those of the open file (proc_locks(5)).
///
/// ```text
/// 1: FLOCK  ADVISORY  WRITE 359 00:13:11691 0 EOF
/// ```
pub fn locks(process: pid_t, seen: &FoundDescriptor) -> Result<Vec<Lock>> {
    let lines = seen.info.all("lock");
    lines
        .map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            if words.contains(&"BREAKING") {
                let error = seen.refused("its lease is being broken");
                return Err(error.for_now());
            }
            lock(&words, process).ok_or_else(|| {
                seen.refused(&format!(
                    "it has a lock of a kind that cannot be saved ({line})"
                ))
            })
        })
        .collect()
}

/// Refuses a tree that holds what nobody else can have while it lives.
pub fn none() -> Result<()> {
    for pid in tree::processes()? {
        for fd in descriptors(pid).unwrap_or_default() {
            let Ok(seen) = FoundDescriptor::look(pid, fd) else {
                continue;
            };
            let mut locks = seen.info.all("lock");
            // Those who only read share it.
            if let Some(line) = locks.find(|line| line.contains(" WRITE ")) {
                let kind = line.split_whitespace().nth(1).unwrap_or("a lock");
                let what = format!(
                    "it has a lock on it ({kind}), which cannot be had on this machine while it is here: make a \
                     checkpoint, and restart that"
                );
                return Err(seen.refused(&what));
            }
        }
    }
    Ok(())
}

fn lock(words: &[&str], pid: pid_t) -> Option<Lock> {
    let [_, kind, _, mode, _, _, start, end] = *words else {
        return None;
    };
    let by = match kind {
        "FLOCK" => LockedBy::Flock,
        "OFDLCK" => LockedBy::Description,
        "POSIX" => LockedBy::Process(pid),
        "LEASE" => LockedBy::Lease,
        _ => return None,
    };
    Some(Lock {
        by,
        write: mode == "WRITE",
        start: start.parse().ok()?,
        end: match end {
            "EOF" => None,
            end => Some(end.parse().ok()?),
        },
    })
}
