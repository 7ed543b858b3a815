//! Files that are of a process of the tree: pidfds, and what is in /proc/PID.
//!
//! | | |
//! |---|---|
//! | of a process of the tree, of its supervisor | saved: opened when all processes are there again |
//! | the pidfd of a process that has ended and been waited for | saved |
//! | of a process outside, of a thread | refused |

mod restore;

use std::os::{fd::OwnedFd, unix::ffi::OsStrExt};

use libc::pid_t;
use snaprig_tracee::tree::is_ours;

use crate::{
    board::Board,
    descriptor::FoundDescriptor,
    error::Result,
    opened::Opened,
    resource::{FoundFile, Resource, Saved, TreeContext},
    state::{Kind, OpenFile, Tree},
};

pub use self::restore::await_end;

/// PIDFD_THREAD.
const OF_THREAD: i32 = libc::O_EXCL;

/// pidfds, and files of /proc/PID.
#[derive(Debug)]
pub struct Processes;

impl Resource for Processes {
    fn recognises(&self, seen: &FoundDescriptor) -> Result<bool> {
        kind(seen).map(|kind| kind.is_some())
    }

    fn save(&mut self, met: FoundFile<'_>, _: &mut TreeContext<'_>) -> Result<Saved> {
        let kind = kind(met.seen)?;
        let kind = kind.ok_or_else(|| met.seen.refused("it is another file by now"))?;
        Ok(kind.into())
    }

    fn open(&mut self, tree: &Tree, opened: &mut Opened, _: Option<&Board<'_>>) -> Result<()> {
        opened.each(tree, |_, file| match file.kind {
            Kind::Pid(-1) => restore::ended().map(Some),
            _ => Ok(None),
        })
    }

    fn is_late(&self, kind: &Kind) -> bool {
        matches!(kind, Kind::Proc { .. } | Kind::Pid(1..))
    }

    fn open_late(&self, file: &OpenFile) -> Result<Option<OwnedFd>> {
        match self.is_late(&file.kind) {
            true => restore::open_late(file).map(Some),
            false => Ok(None),
        }
    }

    fn describe(&self, file: &OpenFile) -> Option<String> {
        match &file.kind {
            Kind::Proc { pid, path, .. } => {
                Some(format!("/proc/{pid}{}", String::from_utf8_lossy(path)))
            }
            Kind::Pid(pid) => Some(format!("process {pid}")),
            _ => None,
        }
    }
}

/// What a descriptor is, if it is of a process.
fn kind(seen: &FoundDescriptor) -> Result<Option<Kind>> {
    let name = seen.name.as_os_str().as_bytes();
    if name.starts_with(b"pidfd:") || seen.anonymous() == Some(b"[pidfd]") {
        return pidfd(seen).map(Some);
    }
    match of_process(name) {
        Some((pid, rest)) => proc(seen, pid, rest).map(Some),
        None => Ok(None),
    }
}

fn pidfd(seen: &FoundDescriptor) -> Result<Kind> {
    let pid = seen.info.get("Pid").and_then(|pid| pid.parse().ok());
    match pid {
        _ if seen.info.flags & OF_THREAD != 0 => Err(seen.refused("a thread's pidfd")),
        Some(pid) if pid == -1 || is_ours(pid) => Ok(Kind::Pid(pid)),
        _ => Err(seen.refused(&format!(
            "the pidfd of process {}, which is outside",
            pid.unwrap_or(0)
        ))),
    }
}

fn proc(seen: &FoundDescriptor, pid: pid_t, rest: &[u8]) -> Result<Kind> {
    let thread = rest.strip_prefix(b"/task/").map(|rest| {
        let digits = rest.split(|byte| *byte == b'/').next();
        digits.and_then(number)
    });
    match thread {
        _ if !is_ours(pid) => Err(seen.refused("of a process outside")),
        Some(tid) if tid != Some(pid) => Err(seen.refused("of a thread")),
        _ => Ok(Kind::Proc {
            pid,
            path: rest.to_vec(),
            offset: seen.info.offset,
        }),
    }
}

/// `/proc/123/status`: whose, and the rest.
fn of_process(name: &[u8]) -> Option<(pid_t, &[u8])> {
    let rest = name.strip_prefix(b"/proc/")?;
    let end = rest.iter().position(|byte| *byte == b'/');
    let (digits, rest) = rest.split_at(end.unwrap_or(rest.len()));
    Some((number(digits)?, rest))
}

fn number(digits: &[u8]) -> Option<pid_t> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}
