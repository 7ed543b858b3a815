//! System V objects (sysvipc(7)): which of those of the IPC namespace are the tree's, and what is in them.
//!
//! | the tree's | |
//! |---|---|
//! | shared memory that a process of it has attached | nobody else has, or it is refused |
//! | what a process of it has made or used last, as far as is known | nobody else who lives, or it is refused |
//! | what its user has made since it was launched, and nobody used who lives | its processes may have ended |
//! | all there is, in a namespace that was made for it | |
//!
//! Of the third kind some may be others'. They are saved for nothing: nothing is taken from them. What others will do
//! with an object, or have done before the tree did, is known to nobody.

use std::{collections::BTreeMap, fs, io};

use libc::pid_t;
use procfs::process::Process as Proc;
use snaprig_tracee::{
    descriptors::me,
    freeze::Frozen,
    memory,
    ranges::Ranges,
    remote::PAGE,
    tree::{self, is_ours},
};

use super::{
    objects::{self, Attached, Kind, Stat},
    undo,
};
use crate::{
    copy::{PageWriter, write_mapped},
    error::{Error, Result},
    huge::pages,
    memory::shared::Attachment,
    state::{MessageQueue, Segment, SemaphoreSet, Sysv},
};

/// What a namespace is made with, and may have been given other values (sysctl(8), kernel).
const LIMITS: [&str; 8] = [
    "shmmax",
    "shmall",
    "shmmni",
    "shm_rmid_forced",
    "msgmax",
    "msgmnb",
    "msgmni",
    "sem",
];

/// Seconds that times may differ by which are told by different clocks.
const ROUNDING: i64 = 2;

/// How often segments are attached by the tree.
type Counts = BTreeMap<i32, u64>;

/// An object that is the tree's.
struct TreeObject {
    stat: Stat,
    /// Not only for all that is known.
    is_certain: bool,
}

/// Whose an object is.
enum Ownership {
    Ours,
    /// The tree's, and this process's.
    Shared(pid_t),
    /// Those who have used it have ended, or were none.
    Nobodys,
    Others,
}

/// Refuses what the tree shares with others, before anything stops.
pub fn look(pids: &[pid_t], is_own: bool) -> Result<()> {
    let all = all();
    if all.is_empty() {
        return Ok(());
    }
    let mut counts = Counts::new();
    for pid in pids {
        // One that has ended has none.
        let maps = Proc::new(*pid).and_then(|process| process.maps());
        for map in maps.iter().flat_map(|maps| maps.iter()) {
            if let procfs::process::MMapPath::Vsys(_) = map.pathname {
                *counts.entry(map.inode as i32).or_default() += 1;
            }
        }
    }
    find(all, &counts, is_own).map(drop)
}

/// A segment as the tree has it.
#[derive(Debug)]
pub struct Source {
    pub bytes: Bytes,
    /// Bytes of its huge pages; 0: ordinary ones.
    pub huge_bytes: u64,
    /// Its number, if it is the tree's alone, and its namespace outlives that.
    own: Option<i32>,
}

impl Source {
    /// The tree ends, and has it in its image: it would take memory for nothing. What is attached goes with the last
    /// process.
    pub fn abandon(&self) {
        if let Some(Err(error)) = self.own.map(objects::remove) {
            tracing::warn!(%error, "a segment of shared memory stays");
        }
    }
}

/// Where the bytes of a segment are.
#[derive(Debug)]
pub enum Bytes {
    /// In a process that has all of it, which sees nothing of their being read: process and address.
    Mapped(pid_t, u64),
    /// The supervisor has attached it.
    Attached(Attached),
}

/// The objects of a tree that stands still, and the bytes of its segments; none, and none that it may find again: there
/// is nothing to say.
pub fn describe(
    frozen: &mut Frozen,
    attachments: &[Attachment],
    is_own: bool,
) -> Result<(Option<Sysv>, Vec<Source>)> {
    let (mut sysv, mut sources) = (Sysv::default(), Vec::new());
    let mut counts = Counts::new();
    for attachment in attachments {
        *counts.entry(attachment.id).or_default() += 1;
    }
    for found in find(all(), &counts, is_own)? {
        let TreeObject { stat, is_certain } = found;
        let added = match stat.kind {
            Kind::Segment => bytes_of(&stat, attachments).map(|(bytes, huge_bytes)| {
                let is_attached = counts.contains_key(&stat.object.id);
                let own = !is_own && is_made_here(&stat, is_attached);
                let own = own.then_some(stat.object.id);
                sources.push(Source {
                    bytes,
                    huge_bytes,
                    own,
                });
            }),
            _ => Ok(()),
        };
        match added.and_then(|()| add(&stat, &mut sysv)) {
            Err(_) if !is_certain => {}
            added => added?,
        }
    }
    for (segment, source) in sysv.segments.iter_mut().zip(&sources) {
        segment.huge_bytes = source.huge_bytes;
    }
    undo::ask(frozen, &mut sysv.sets)?;
    for set in sysv.sets.iter().filter(|set| !set.adjustments.is_empty()) {
        // Else what was asked for means nothing.
        let (id, count) = (set.object.id, set.values.len() as u64);
        if objects::values(id, count).ok().as_ref() != Some(&set.values) {
            let what = format!("the System V semaphores {id}, which others use as well");
            return Err(Error::refused(me(), what).for_now());
        }
    }
    if !is_own && sysv.segments.is_empty() && sysv.sets.is_empty() && sysv.queues.is_empty() {
        return Ok((None, sources));
    }
    let limit = |name: &str| {
        let says = fs::read_to_string(format!("/proc/sys/kernel/{name}")).ok()?;
        Some((name.to_owned(), says.trim().to_owned()))
    };
    sysv.limits = LIMITS.into_iter().filter_map(limit).collect();
    Ok((Some(sysv), sources))
}

/// By a process of the tree; of what is attached, also by one that has ended.
fn is_made_here(stat: &Stat, is_attached: bool) -> bool {
    let mut maker = stat.users.iter().take(1);
    let is_maker = |pid| is_ours(pid) && may_have_used(pid, stat);
    maker.any(|pid| is_maker(*pid) || is_attached && begun(*pid).is_none())
}

/// And of how large pages.
fn bytes_of(stat: &Stat, attachments: &[Attachment]) -> Result<(Bytes, u64)> {
    let is_whole =
        |it: &&Attachment| it.id == stat.object.id && it.offset == 0 && it.bytes >= stat.size;
    if let Some(whole) = attachments.iter().find(is_whole) {
        return Ok((Bytes::Mapped(whole.pid, whole.start), whole.huge_bytes));
    }
    let attach = |bytes, writes| {
        let attached = Attached::attach(stat.object.id, bytes, writes);
        attached.map_err(|source| failed(stat, source))
    };
    let attached = attach(stat.size, false)?;
    let huge_bytes = pages::of_device(attached.device()?);
    if huge_bytes == 0 {
        return Ok((Bytes::Attached(attached), huge_bytes));
    }
    // Which of its pages are there is only told to who may write to them (`super::huge`).
    let bytes = stat.size.next_multiple_of(huge_bytes);
    let writable = attach(bytes, true).or_else(|_| attach(bytes, false))?;
    Ok((Bytes::Attached(writable), huge_bytes))
}

fn all() -> Vec<Stat> {
    let kinds = [Kind::Segment, Kind::Set, Kind::Queue];
    kinds.into_iter().flat_map(objects::all).collect()
}

/// Those of the tree; refuses what it shares. Others may be on their way out, and some of the tree on their way in.
fn find(all: Vec<Stat>, counts: &Counts, is_own: bool) -> Result<Vec<TreeObject>> {
    let launched = begun(tree::first()).unwrap_or(0) - ROUNDING;
    let user = rustix::process::geteuid().as_raw();
    let mut found = Vec::new();
    for stat in all {
        let (attached, others) = match (stat.kind, counts.get(&stat.object.id)) {
            (Kind::Segment, Some(attached)) => (true, stat.used.saturating_sub(*attached)),
            (Kind::Segment, None) => (false, stat.used),
            _ => (false, 0),
        };
        let whose = match is_own || attached {
            true => Ownership::Ours,
            false => whose(&stat),
        };
        let is_certain = match whose {
            Ownership::Others => continue,
            Ownership::Nobodys if others > 0 || stat.object.creator.0 != user => continue,
            Ownership::Nobodys if stat.changed < launched => continue,
            Ownership::Nobodys => false,
            Ownership::Shared(pid) => {
                return Err(refused(&stat, &format!("process {pid} uses as well")).for_now());
            }
            Ownership::Ours if others > 0 => {
                let what = format!("others have attached as well, {others} times");
                return Err(refused(&stat, &what).for_now());
            }
            Ownership::Ours => true,
        };
        found.push(TreeObject { stat, is_certain });
    }
    Ok(found)
}

fn refused(stat: &Stat, what: &str) -> Error {
    let (kind, id, key) = (stat.kind.name(), stat.object.id, stat.object.key);
    Error::refused(me(), format!("{kind} {id} (key {key:#x}), which {what}"))
}

/// By who has made or used it last.
fn whose(stat: &Stat) -> Ownership {
    let users = stat.users.iter().copied();
    let users = users.filter(|pid| *pid > 0 && *pid != me());
    let (mut ours, mut others): (Vec<_>, Vec<_>) = users.partition(|pid| is_ours(*pid));
    // A number may be another process's by now, which began later.
    ours.retain(|pid| may_have_used(*pid, stat));
    others.retain(|pid| begun(*pid).is_some_and(|begun| begun <= stat.changed));
    match (ours.is_empty(), others.first()) {
        (true, None) => Ownership::Nobodys,
        (true, Some(_)) => Ownership::Others,
        (false, None) => Ownership::Ours,
        (false, Some(pid)) => Ownership::Shared(*pid),
    }
}

/// Whether a process of the tree is old enough to have used an object. Those of a restart are younger: files are opened between
/// their objects and them.
fn may_have_used(pid: pid_t, stat: &Stat) -> bool {
    const RESTART_SECONDS: i64 = 60;
    begun(pid).is_none_or(|begun| begun <= stat.changed.saturating_add(RESTART_SECONDS))
}

/// When a process began, in seconds since 1970.
fn begun(pid: pid_t) -> Option<i64> {
    let stat = Proc::new(pid).and_then(|process| process.stat()).ok()?;
    let seconds = stat.starttime / procfs::ticks_per_second();
    Some((procfs::boot_time_secs().ok()? + seconds) as i64)
}

fn failed(stat: &Stat, source: io::Error) -> Error {
    match source.raw_os_error() {
        Some(libc::EINVAL | libc::EIDRM) => refused(stat, "goes away").for_now(),
        _ => refused(stat, &format!("cannot be read: {source}")),
    }
}

fn add(stat: &Stat, to: &mut Sysv) -> Result<()> {
    let (object, id) = (stat.object.clone(), stat.object.id);
    let failed = |source| failed(stat, source);
    match stat.kind {
        Kind::Segment => to.segments.push(Segment {
            object,
            space: 0,
            size: stat.size,
            huge_bytes: 0,
        }),
        Kind::Set => {
            if objects::waiting(id, stat.size).map_err(failed)? > 0 {
                return Err(refused(stat, "others wait for as well").for_now());
            }
            to.sets.push(SemaphoreSet {
                object,
                values: objects::values(id, stat.size).map_err(failed)?,
                last: stat.users.clone(),
                is_used: stat.is_used,
                adjustments: Vec::new(),
            });
        }
        Kind::Queue => {
            let messages = objects::messages(id, stat.used).map_err(|source| {
                match (source.raw_os_error(), stat.used) {
                    // Before Linux 3.8, or without CONFIG_CHECKPOINT_RESTORE.
                    (Some(libc::ENOSYS | libc::EINVAL), 1..) => {
                        refused(stat, "has messages, which this kernel does not copy")
                    }
                    _ => failed(source),
                }
            })?;
            to.queues.push(MessageQueue {
                object,
                size: stat.size,
                messages,
            });
        }
    }
    Ok(())
}

/// Writes a segment of ordinary pages. What was written.
pub fn write(
    space: u32,
    segment: &Segment,
    source: &Source,
    writer: &mut dyn PageWriter,
) -> Result<Ranges> {
    let whole = 0..segment.size.next_multiple_of(PAGE);
    match &source.bytes {
        Bytes::Mapped(pid, start) => {
            let (file, part) = (memory::open(*pid, false)?, *start..*start + whole.end);
            write_mapped(space, &file, part, *start, writer)?;
        }
        Bytes::Attached(attached) => writer.pages(space, 0, attached.pages())?,
    }
    Ok(std::iter::once(whole).collect())
}
