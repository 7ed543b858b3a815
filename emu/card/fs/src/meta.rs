//! What everything that can have a name has in common: an inode's attributes (inode(7)).

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use serde::{Deserialize, Serialize};
use snaprig_card_driver::clock::card_clock;

use crate::locks::Locks;

/// A time of a file: seconds since the epoch, which may be negative, and nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timestamp {
    /// Seconds since the epoch.
    pub seconds: i64,
    /// And nanoseconds.
    pub nanos: u32,
}

impl Timestamp {
    /// What the card's clock says.
    pub fn now() -> Self {
        card_clock(libc::CLOCK_REALTIME).into()
    }
}

impl From<Duration> for Timestamp {
    fn from(since_epoch: Duration) -> Self {
        Self {
            seconds: i64::try_from(since_epoch.as_secs()).unwrap_or(i64::MAX),
            nanos: since_epoch.subsec_nanos(),
        }
    }
}

/// What stat(2) tells beside type, size and number.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attributes {
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Names that lead here.
    pub nlink: u64,
    /// Last read.
    pub atime: Timestamp,
    /// Last change of what is in it.
    pub mtime: Timestamp,
    /// Last change of any of this.
    pub ctime: Timestamp,
    /// Where it began.
    pub btime: Timestamp,
    /// xattr(7).
    pub extended: BTreeMap<String, Vec<u8>>,
}

/// An inode's number, attributes and locks.
pub struct Meta {
    /// Its number. No two of a card are the same.
    pub number: u64,
    attributes: Mutex<Attributes>,
    /// Who has locked it.
    pub locks: Locks,
}

impl Meta {
    /// Something new with these permission bits, and with one name.
    pub fn new(mode: u32) -> Arc<Self> {
        let now = Timestamp::now();
        let attributes = Attributes {
            mode: mode & 0o7777,
            nlink: 1,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            ..Attributes::default()
        };
        Self::restored(attributes)
    }

    /// Something that has been somewhere else.
    pub fn restored(attributes: Attributes) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Arc::new(Self {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            attributes: Mutex::new(attributes),
            locks: Locks::default(),
        })
    }

    /// The attributes, to be looked at or changed.
    pub fn lock(&self) -> MutexGuard<'_, Attributes> {
        self.attributes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// What is in it has changed.
    pub fn modified(&self) {
        let mut attributes = self.lock();
        attributes.mtime = Timestamp::now();
        attributes.ctime = attributes.mtime;
    }

    /// One name more or less; returns how many there are.
    pub fn link(&self, by: i64) -> u64 {
        let mut attributes = self.lock();
        attributes.nlink = attributes.nlink.saturating_add_signed(by);
        attributes.ctime = Timestamp::now();
        attributes.nlink
    }

    /// chmod(2).
    pub fn set_mode(&self, mode: u32) {
        let mut attributes = self.lock();
        attributes.mode = mode & 0o7777;
        attributes.ctime = Timestamp::now();
    }

    /// chown(2): -1 leaves an owner as it is. What is run with its owner's rights is so no more, but
    /// for directories, and for the group's of what nobody of the group may execute.
    pub fn set_owner(&self, uid: u32, gid: u32, is_directory: bool) {
        let mut attributes = self.lock();
        if uid != u32::MAX {
            attributes.uid = uid;
        }
        if gid != u32::MAX {
            attributes.gid = gid;
        }
        if !is_directory {
            attributes.mode &= !libc::S_ISUID;
            if attributes.mode & libc::S_IXGRP != 0 {
                attributes.mode &= !libc::S_ISGID;
            }
        }
        attributes.ctime = Timestamp::now();
    }
}
