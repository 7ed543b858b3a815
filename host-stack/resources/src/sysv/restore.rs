//! System V objects (sysvipc(7)) of a restarted tree, in an IPC namespace of its own.
//!
//! ```text
//! supervisor:  limits --> objects, with the numbers that they had; values, messages
//! processes:   attach segments (their areas)
//! supervisor:  fills segments
//! processes:   what is undone when they end (SEM_UNDO) --> who has used a semaphore last
//! supervisor:  owners, permissions, marks
//! ```
//! What must stay true: values are set before adjustments, for setting one forgets all adjustments of it.

use std::{fs, io, ops::Range};

use snaprig_tracee::remote::{self, Call, STUB_BYTES, call};

use super::objects::{self, Kind};
use crate::{
    error::{Error, Result},
    event::{Event, Reporter},
    growing::{Data, Growing, SPARE_BYTES},
    layout,
    opened::damaged,
    state::{Area, SemaphoreSet, Sysv, SysvObject},
};

/// Modes beyond permissions (linux/shm.h).
const SHM_DEST: u32 = 0o1000;
const SHM_LOCKED: u32 = 0o2000;
/// Adjustments are made of parts of at most so much: with any value, there is room for them above or below.
const PART: i32 = 1 << 14;

/// Makes all objects of a tree.
pub fn make(sysv: &Sysv, reporter: &Reporter) -> Result<()> {
    for (name, value) in &sysv.limits {
        limit(name, value, reporter)?;
    }
    for segment in &sysv.segments {
        new(
            Kind::Segment,
            &segment.object,
            segment.size,
            segment.huge_bytes,
        )?;
    }
    for set in &sysv.sets {
        let (object, count) = (&set.object, set.values.len() as u64);
        if set.last.len() as u64 != count {
            return Err(damaged("semaphores without users"));
        }
        new(Kind::Set, object, count, 0)?;
        let failed = |source| failed(Kind::Set, object, source);
        for (number, last) in set.last.iter().enumerate() {
            let (number, value) = (number as u16, value(set, number as u16)?);
            if (value, *last) != (0, 0) {
                objects::set_value(object.id, number, value).map_err(failed)?;
            }
        }
        if let (true, Some(value)) = (set.is_used, set.values.first()) {
            objects::use_set(object.id, *value).map_err(failed)?;
        }
    }
    for queue in &sysv.queues {
        let object = &queue.object;
        new(Kind::Queue, object, queue.size, 0)?;
        let bytes: u64 = queue.messages.iter().map(|(_, it)| it.len() as u64).sum();
        let failed = |source| failed(Kind::Queue, object, source);
        // It may have been made to take less since they came.
        let room = SysvObject {
            mode: 0o600,
            owner: object.creator,
            ..object.clone()
        };
        let room_for = queue.size.max(bytes).max(queue.messages.len() as u64);
        objects::own(Kind::Queue, &room, room_for).map_err(failed)?;
        for (kind, bytes) in &queue.messages {
            objects::send(object.id, *kind, bytes).map_err(failed)?;
        }
    }
    Ok(())
}

/// Who may not change a limit of the kernel gets what there is.
fn limit(name: &str, value: &str, reporter: &Reporter) -> Result<()> {
    let is_name = |letter: char| letter.is_ascii_lowercase() || letter == '_';
    if !name.chars().all(is_name) {
        return Err(damaged("a limit of the kernel without a name"));
    }
    let path = format!("/proc/sys/kernel/{name}");
    let own = fs::read_to_string(&path).unwrap_or_default();
    if own.trim() != value
        && let Err(source) = fs::write(&path, value)
    {
        let (was, is) = (value.to_owned(), own.trim().to_owned());
        reporter.tell(Event::LimitDiffers {
            path,
            was,
            is,
            source,
        });
    }
    Ok(())
}

fn new(kind: Kind, object: &SysvObject, size: u64, huge_bytes: u64) -> Result<()> {
    let made = objects::make(kind, object, size, huge_bytes);
    made.map_err(|source| match source.raw_os_error() {
        Some(libc::EPERM) if huge_bytes != 0 => Error::Missing {
            what: format!(
                "{} {} is of huge pages (SHM_HUGETLB), which only the group of vm.hugetlb_shm_group (sysctl) may \
                 make, who has CAP_IPC_LOCK, and who may lock so much (ulimit -l)",
                kind.name(),
                object.id
            ),
        },
        _ => failed(kind, object, source),
    })
}

fn failed(kind: Kind, object: &SysvObject, source: io::Error) -> Error {
    let what = format!("{} {} cannot be made", kind.name(), object.id);
    Error::io(what, source)
}

/// Everything is attached, filled and adjusted.
pub fn finish(sysv: &Sysv) -> Result<()> {
    for segment in &sysv.segments {
        let object = &segment.object;
        let failed = |source| failed(Kind::Segment, object, source);
        objects::own(Kind::Segment, object, segment.size).map_err(failed)?;
        if object.mode & SHM_LOCKED != 0 {
            objects::lock(object.id).map_err(failed)?;
        }
        if object.mode & SHM_DEST != 0 {
            objects::remove(object.id).map_err(failed)?;
        }
    }
    let sets = sysv.sets.iter().map(|set| (Kind::Set, &set.object, 0));
    let queues = sysv.queues.iter();
    let queues = queues.map(|queue| (Kind::Queue, &queue.object, queue.size));
    for (kind, object, size) in sets.chain(queues) {
        objects::own(kind, object, size).map_err(|source| failed(kind, object, source))?;
    }
    Ok(())
}

impl Growing<'_> {
    /// Calls that attach a part of a segment where an area is: of one of which it has all, there; of others in a hole,
    /// from which the part is moved.
    pub fn attach(&self, area: &Area, (id, offset): (i32, u64), sysv: &Sysv) -> Result<Vec<Call>> {
        let mut segments = sysv.segments.iter();
        let segment = segments.find(|segment| segment.object.id == id);
        let segment = segment.ok_or_else(|| damaged("System V shared memory"))?;
        let whole = segment.mapped_bytes();
        let (bytes, writes) = (area.end - area.start, libc::PROT_WRITE);
        if offset.checked_add(bytes).is_none_or(|end| end > whole) {
            return Err(damaged("more of System V shared memory than there is"));
        }
        let is_writable = area.protection & writes != 0 || area.flags.contains(b"mw");
        let flags = if is_writable { 0 } else { libc::SHM_RDONLY };
        let attach = |at| call(libc::SYS_shmat, [id as u64, at, flags as u64]);
        let protection = area.protection as u64;
        let protect = call(libc::SYS_mprotect, [area.start, bytes, protection]);
        if bytes == whole {
            return Ok(vec![attach(area.start), protect]);
        }
        let wanted = self.body.areas.iter().map(|area| area.start..area.end);
        let stub: Range<u64> = self.stub..self.stub + STUB_BYTES + SPARE_BYTES;
        let room = whole.saturating_add(segment.huge_bytes);
        let hole = layout::hole(wanted.chain([stub]), room);
        let hole = hole.ok_or_else(|| damaged("an address space without a hole"))?;
        let hole = hole.next_multiple_of(segment.huge_bytes.max(remote::PAGE));
        let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as u64;
        let part = hole + offset;
        let mut calls = vec![
            attach(hole),
            call(libc::SYS_mremap, [part, bytes, bytes, flags, area.start]),
            protect,
        ];
        let rest = [hole..part, part + bytes..hole + whole];
        let rest = rest.into_iter().filter(|rest| !rest.is_empty());
        calls.extend(rest.map(|rest| call(libc::SYS_munmap, [rest.start, rest.end - rest.start])));
        Ok(calls)
    }

    /// What is undone when it ends.
    pub fn owe(&self, sysv: &Sysv) -> Result<()> {
        for set in &sysv.sets {
            let own = set.adjustments.iter();
            for one in own.filter(|one| one.pid == self.process.pid) {
                let (value, mut left) = (value(set, one.number)?, one.amount);
                while left != 0 {
                    let part = left.clamp(-PART, PART);
                    // Taken with SEM_UNDO: it is given back.
                    let flags = match part > 0 {
                        true => (0, libc::SEM_UNDO),
                        false => (libc::SEM_UNDO, 0),
                    };
                    let amount = part.unsigned_abs() as i16;
                    self.operate(set, &objects::up_and_down(one.number, value, amount, flags))?;
                    left -= part;
                }
            }
        }
        Ok(())
    }

    /// It is who has used a semaphore last.
    pub fn touch(&self, sysv: &Sysv) -> Result<()> {
        for set in &sysv.sets {
            let own = set.last.iter().enumerate();
            for (number, _) in own.filter(|(_, pid)| **pid == self.process.pid) {
                let value = value(set, number as u16)?;
                if set.is_used {
                    self.operate(set, &objects::up_and_down(number as u16, value, 1, (0, 0)))?;
                    continue;
                }
                // With semop(2) it would be one that is used.
                let (id, command) = (set.object.id as u64, libc::SETVAL as u64);
                let set = [id, number as u64, command, value as u64];
                self.make("a semaphore's value", &[call(libc::SYS_semctl, set)])?;
            }
        }
        Ok(())
    }

    fn operate(&self, set: &SemaphoreSet, operations: &[libc::sembuf]) -> Result<()> {
        let fields = |one: &libc::sembuf| {
            [
                one.sem_num.to_ne_bytes(),
                one.sem_op.to_ne_bytes(),
                one.sem_flg.to_ne_bytes(),
            ]
            .concat()
        };
        let bytes: Vec<u8> = operations.iter().flat_map(fields).collect();
        let mut data = Data::at(remote::data(self.stub));
        let at = data.put(&bytes);
        data.write(self.process.pid)?;
        let operate = [set.object.id as u64, at, operations.len() as u64];
        self.make("a semaphore", &[call(libc::SYS_semop, operate)])
    }
}

fn value(set: &SemaphoreSet, number: u16) -> Result<i32> {
    let value = set.values.get(usize::from(number)).copied();
    let value = value.filter(|value| (0..=objects::VALUE_MAX).contains(value));
    value.ok_or_else(|| damaged("a semaphore without a value"))
}
