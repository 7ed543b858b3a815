//! Advisory locks: of whole files (flock(2)) and of ranges of bytes (fcntl(2)).
//!
//! A lock of a whole file, or of a range that was asked for with F_OFD_SETLK, is an open file
//! description's and goes with it; any other lock of a range is a table of descriptors', and goes when
//! one of the table's descriptors of the file is closed.

use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use snaprig_card_driver::{errno::Errno, wait::Channel};

/// Most locks of one file.
const LOCKS_MAX: usize = 1 << 16;
/// Behind the last byte that a file can have: a range of no length goes up to there.
pub const END: u64 = 1 << 63;
/// Whose a lock is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// A table of descriptors, and the process that asked.
    Table(u64, i32),
    /// An open file description.
    Description(u64),
}

impl Owner {
    fn is(self, other: Self) -> bool {
        match (self, other) {
            (Self::Table(one, _), Self::Table(other, _)) => one == other,
            (one, other) => one == other,
        }
    }
}

/// A lock of the bytes from `start` up to `end`, which is not locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Range {
    /// The first byte.
    pub start: u64,
    /// The byte behind the last one.
    pub end: u64,
    /// Whether nobody else may have any lock of them.
    pub exclusive: bool,
}

impl Range {
    fn overlaps(&self, other: &Self) -> bool {
        self.start < other.end && other.start < self.end
    }

    fn conflicts(&self, other: &Self) -> bool {
        self.overlaps(other) && (self.exclusive || other.exclusive)
    }
}

/// What a snapshot says of the locks that go with a descriptor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocksImage {
    /// Of the whole file: whether it is exclusive.
    pub whole: Option<bool>,
    /// Of ranges: the description's.
    pub description: Vec<Range>,
    /// Of ranges: the process's.
    pub process: Vec<Range>,
}

/// The locks of a file.
#[derive(Default)]
pub struct Locks {
    held: Mutex<Held>,
    /// Woken when one is taken away.
    pub channel: Channel,
}

#[derive(Default)]
struct Held {
    /// flock(2): description, and whether it is exclusive.
    whole: Vec<(u64, bool)>,
    ranges: Vec<(Owner, Range)>,
}

impl Locks {
    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A description is gone.
    pub fn forget_description(&self, id: u64, wake: &mut dyn FnMut(Channel)) {
        let mut held = self.lock();
        held.whole.retain(|(owner, _)| *owner != id);
        held.forget(Owner::Description(id));
        drop(held);
        wake(self.channel);
    }

    /// A table of descriptors has closed the file.
    pub fn forget_table(&self, table: u64, wake: &mut dyn FnMut(Channel)) {
        let mut held = self.lock();
        if held.forget(Owner::Table(table, 0)) {
            drop(held);
            wake(self.channel);
        }
    }

    /// flock(2); whether it was granted. What was held before is lost even if it was not.
    pub fn lock_whole(
        &self,
        id: u64,
        exclusive: Option<bool>,
        wake: &mut dyn FnMut(Channel),
    ) -> bool {
        let mut held = self.lock();
        if exclusive.is_some_and(|wanted| held.whole.contains(&(id, wanted))) {
            return true;
        }
        held.whole.retain(|(owner, _)| *owner != id);
        let Some(wanted) = exclusive else {
            drop(held);
            wake(self.channel);
            return true;
        };
        let granted = held.whole.iter().all(|(_, other)| !wanted && !other);
        if granted {
            held.whole.push((id, wanted));
        }
        drop(held);
        wake(self.channel);
        granted
    }

    /// Somebody else's lock that is in the way of this one.
    pub fn conflict(&self, owner: Owner, range: &Range) -> Option<(Owner, Range)> {
        let held = self.lock();
        let mut others = held.ranges.iter().filter(|(other, _)| !other.is(owner));
        others.find(|(_, other)| range.conflicts(other)).copied()
    }

    /// Sets, changes or (`None`) takes away a lock; nobody else's is in the way.
    pub fn set(
        &self,
        owner: Owner,
        (start, end): (u64, u64),
        exclusive: Option<bool>,
        wake: &mut dyn FnMut(Channel),
    ) -> Result<(), Errno> {
        let mut held = self.lock();
        let new = Range {
            start,
            end,
            exclusive: exclusive.unwrap_or(false),
        };
        if exclusive.is_some() && held.ranges.len() >= LOCKS_MAX {
            return Err(Errno::ENOLCK);
        }
        let mut ranges = Vec::new();
        let mut merged = new;
        for (other, range) in std::mem::take(&mut held.ranges) {
            let touches = range.start <= merged.end && merged.start <= range.end;
            if !other.is(owner) {
                ranges.push((other, range));
            } else if exclusive == Some(range.exclusive) && touches {
                merged.start = merged.start.min(range.start);
                merged.end = merged.end.max(range.end);
            } else if range.overlaps(&new) {
                let before = Range {
                    end: start.min(range.end),
                    ..range
                };
                let after = Range {
                    start: end.max(range.start),
                    ..range
                };
                let left = [before, after].into_iter();
                ranges.extend(left.filter(|r| r.start < r.end).map(|r| (other, r)));
            } else {
                ranges.push((other, range));
            }
        }
        if exclusive.is_some() {
            ranges.push((owner, merged));
        }
        held.ranges = ranges;
        drop(held);
        wake(self.channel);
        Ok(())
    }

    /// What a snapshot says of those of a description and a table.
    pub fn image(&self, id: u64, table: u64) -> LocksImage {
        let held = self.lock();
        let of = |owner: Owner| {
            let own = held.ranges.iter().filter(|(other, _)| other.is(owner));
            own.map(|(_, range)| *range).collect()
        };
        let mut whole = held.whole.iter();
        LocksImage {
            whole: whole.find(|(owner, _)| *owner == id).map(|(_, e)| *e),
            description: of(Owner::Description(id)),
            process: of(Owner::Table(table, 0)),
        }
    }
}

impl Held {
    fn forget(&mut self, owner: Owner) -> bool {
        let before = self.ranges.len();
        self.ranges.retain(|(other, _)| !other.is(owner));
        self.ranges.len() < before
    }
}

/// Tables whose threads wait for others' locks: thread, its table, the other.
#[derive(Default)]
pub struct LockWaits(Vec<(i32, u64, u64)>);

impl LockWaits {
    /// The thread waits no more.
    pub fn forget(&mut self, tid: i32) {
        self.0.retain(|(other, ..)| *other != tid);
    }

    /// The thread waits; EDEADLK if somebody waits for it who would have to go first.
    pub fn wait(&mut self, tid: i32, table: u64, holder: u64) -> Result<(), Errno> {
        let mut at = holder;
        for _ in 0..=self.0.len() {
            if at == table {
                return Err(Errno::EDEADLK);
            }
            match self.0.iter().find(|(_, waiting, _)| *waiting == at) {
                Some((.., next)) => at = *next,
                None => break,
            }
        }
        self.0.push((tid, table, holder));
        Ok(())
    }
}
