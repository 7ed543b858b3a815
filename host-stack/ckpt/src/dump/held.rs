//! What is held through open files: locks, leases, and who is told of what happens to them.

use std::{
    io,
    os::fd::{AsRawFd, OwnedFd},
};

use libc::pid_t;

use super::seen::Seen;
use crate::{
    error::Result,
    socket::check,
    state::{Lock, LockedBy, Owner},
};

/// fcntl(2).
const F_GETSIG: i32 = 11;
const F_GETOWN_EX: i32 = 16;
/// F_OWNER_PGRP: a group, not a process.
pub const OF_GROUP: i32 = 2;

/// Who gets the signals of an open file.
pub fn owner(copy: &OwnedFd) -> io::Result<Option<Owner>> {
    // struct f_owner_ex: kind, number.
    let mut of = [0i32; 2];
    // SAFETY: `of` is valid to write to.
    let signal = unsafe {
        check(libc::fcntl(copy.as_raw_fd(), F_GETOWN_EX, of.as_mut_ptr()))?;
        check(libc::fcntl(copy.as_raw_fd(), F_GETSIG))?
    };
    let [kind, id] = of;
    Ok((id != 0 || signal != 0).then_some(Owner { kind, id, signal }))
}

/// The locks that a process has through a descriptor: its own, and those of the open file (proc_locks(5)).
///
/// ```text
/// 1: FLOCK  ADVISORY  WRITE 359 00:13:11691 0 EOF
/// ```
pub fn locks(seen: &Seen) -> Result<Vec<Lock>> {
    let lines = seen.info.all("lock");
    lines
        .map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            if words.contains(&"BREAKING") {
                let error = seen.refused("its lease is being broken");
                return Err(error.for_now());
            }
            lock(&words, seen.pid).ok_or_else(|| {
                seen.refused(&format!(
                    "it has a lock of a kind that cannot be saved ({line})"
                ))
            })
        })
        .collect()
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
