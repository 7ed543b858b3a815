//! What an image says of locks, leases, and who is told of what happens to open files.

use serde::{Deserialize, Serialize};

/// Who gets the signals of an open file (F_SETOWN_EX, F_SETSIG).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// F_OWNER_: thread, process or group.
    pub kind: i32,
    /// Its number; 0: nobody.
    pub id: i32,
    /// Which signal; 0: SIGIO.
    pub signal: i32,
}

/// A lock on a file, or a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lock {
    /// What it was made with.
    pub by: LockedBy,
    /// It keeps readers out as well.
    pub write: bool,
    /// First byte.
    pub start: u64,
    /// Last byte; none: whatever there will be.
    pub end: Option<u64>,
}

/// What a lock was made with, and so who owns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LockedBy {
    /// flock(2): the description.
    Flock,
    /// F_OFD_SETLK: the description.
    Description,
    /// F_SETLK: the process of this number.
    Process(i32),
    /// F_SETLEASE: the description.
    Lease,
}
