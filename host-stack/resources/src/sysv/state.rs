//! System V objects (sysvipc(7)).

use serde::{Deserialize, Serialize};
use snaprig_tracee::remote::PAGE;

/// Those of a tree.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Sysv {
    /// The kernel's limits: names in /proc/sys/kernel, and what they say.
    pub limits: Vec<(String, String)>,
    /// Shared memory.
    pub segments: Vec<Segment>,
    /// Sets of semaphores.
    pub sets: Vec<SemaphoreSet>,
    /// Message queues.
    pub queues: Vec<MessageQueue>,
}

/// What all objects have (struct ipc_perm).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SysvObject {
    /// Its number.
    pub id: i32,
    /// 0: it has none (IPC_PRIVATE).
    pub key: i32,
    /// Permissions, SHM_DEST, SHM_LOCKED.
    pub mode: u32,
    /// User and group.
    pub owner: (u32, u32),
    /// Who has made it: user and group.
    pub creator: (u32, u32),
}

/// Shared memory (shmget(2)).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Segment {
    /// Number, key, owner.
    pub object: SysvObject,
    /// Space of the image.
    pub space: u32,
    /// Bytes.
    pub size: u64,
    /// Bytes of its huge pages (SHM_HUGETLB); 0: ordinary ones.
    pub huge_bytes: u64,
}

impl Segment {
    /// Bytes of its pages, of which all are mapped.
    pub fn mapped_bytes(&self) -> u64 {
        let page_bytes = self.huge_bytes.max(PAGE);
        self.size.checked_next_multiple_of(page_bytes).unwrap_or(0)
    }
}

/// Semaphores (semget(2)).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SemaphoreSet {
    /// Number, key, owner.
    pub object: SysvObject,
    /// The value of each.
    pub values: Vec<i32>,
    /// Who has used each last; 0: nobody.
    pub last: Vec<i32>,
    /// semop(2) has been called for it: programs wait for that (sem_otime).
    pub is_used: bool,
    /// What is undone when processes end.
    pub adjustments: Vec<Adjustment>,
}

/// What is added to a semaphore when a process ends (SEM_UNDO).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Adjustment {
    /// The process.
    pub pid: i32,
    /// The semaphore's number in its set.
    pub number: u16,
    /// So much.
    pub amount: i32,
}

/// Messages (msgget(2)).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MessageQueue {
    /// Number, key, owner.
    pub object: SysvObject,
    /// Bytes that it takes.
    pub size: u64,
    /// The oldest first: type and bytes.
    pub messages: Vec<(i64, Vec<u8>)>,
}
