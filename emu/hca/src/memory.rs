//! Device memory: the tables and rings of all HCAs of a fabric, in one shared mapping.
//!
//! ```text
//! 0            header, ports, table of processes, multicast groups
//! KEYS_AT      memory keys
//! QPS_AT       queue pairs
//! CQS_AT       completion queues
//! SRQS_AT      shared receive queues
//! HEAP_AT      rings: send, receive and completion entries
//! ```
//!
//! The file is sparse: what nobody created costs nothing. The control daemon alone allocates; every
//! process reads and writes. Nothing in here is trusted: an index or a position that comes out of it
//! is checked on its way in again, and any bit pattern is a value of every table.

use std::{
    mem::{align_of, size_of},
    ptr::NonNull,
};

use crate::{
    cell::{U32, U64},
    cq::Cq,
    key::Key,
    lock::Lock,
    port::{GROUPS_MAX, Gid, Group, PORTS_MAX, Port, gid_words},
    qp::Qp,
    srq::Srq,
};

/// "snapHCA" and the version of the layout.
pub const MAGIC: u64 = 0x0004_4143_4870_616e
    ^ HEAP_AT << 8
    ^ (size_of::<Qp>() as u64) << 24
    ^ (size_of::<Cq>() as u64) << 36;
/// Processes that use one fabric at a time.
pub const PROCESSES_MAX: u32 = 1024;
/// Memory regions and windows of one fabric.
pub const KEYS_MAX: u32 = 1 << 18;
/// Queue pairs of one fabric.
pub const QPS_MAX: u32 = 1 << 16;
/// Completion queues of one fabric.
pub const CQS_MAX: u32 = 1 << 16;
/// Shared receive queues of one fabric.
pub const SRQS_MAX: u32 = 1 << 14;

/// Words of the map of queue pairs that want the daemon.
pub const ATTENTION_WORDS: usize = (QPS_MAX / 64) as usize;

/// The head of device memory.
#[repr(C)]
#[derive(Debug)]
pub struct Header {
    /// [`MAGIC`].
    pub magic: U64,
    /// 1 while the daemon lives; 0 ends every wait.
    pub alive: U32,
    /// How many ports there are.
    pub port_count: U32,
    /// No queue pair was ever in the table from here on.
    pub qps_end: U32,
    /// Held for an atomic operation on memory that cannot be mapped.
    pub atomics: Lock,
    /// Held by who finishes steps of a process that has died.
    pub mending: Lock,
    /// 1 while the daemon sleeps, and wants to be woken when it is given attention.
    pub asleep: U32,
    /// Queue pairs that want the daemon, a bit each.
    pub attention: [U64; ATTENTION_WORDS],
    /// Shared receive queues with receives that somebody waits for, a bit each.
    pub srq_attention: [U64; (SRQS_MAX / 64) as usize],
    /// The ports.
    pub ports: [Port; PORTS_MAX as usize],
    /// 1 for each (from, to) whose packets go through the daemon.
    pub paths: [[U32; PORTS_MAX as usize]; PORTS_MAX as usize],
    /// Which port has a LID: its index + 1.
    pub lids: [U32; 1 << 16],
    /// Multicast groups.
    pub groups: [Group; GROUPS_MAX as usize],
    /// Numbers of the users, no two alike ever; 0: free.
    pub processes: [U32; PROCESSES_MAX as usize],
    /// Their process identifiers.
    pub pids: [U32; PROCESSES_MAX as usize],
}

impl Header {
    /// Whether a port's link works.
    #[inline]
    pub fn is_up(&self, port: u32) -> bool {
        let port = self.ports.get(port as usize);
        port.is_some_and(|port| port.up.get() != 0)
    }

    /// The multicast group with this GID.
    pub fn group(&self, gid: Gid) -> Option<&Group> {
        let words = gid_words(gid);
        let has_it =
            |group: &&Group| group.gid[0].get() == words[0] && group.gid[1].get() == words[1];
        self.groups.iter().find(has_it)
    }

    /// Whether messages from a port to a port go whole, not packet by packet through the daemon.
    #[inline]
    pub fn is_clean(&self, from: u32, to: u32) -> bool {
        let paths = self.paths.get(from as usize);
        paths
            .and_then(|to_ports| to_ports.get(to as usize))
            .is_some_and(|slow| slow.get() == 0)
    }
}

const fn after(at: usize, size: usize) -> usize {
    (at + size).next_multiple_of(1 << 16)
}

const KEYS_AT: usize = after(0, size_of::<Header>());
const QPS_AT: usize = after(KEYS_AT, KEYS_MAX as usize * size_of::<Key>());
const CQS_AT: usize = after(QPS_AT, QPS_MAX as usize * size_of::<Qp>());
const SRQS_AT: usize = after(CQS_AT, CQS_MAX as usize * size_of::<Cq>());
/// Where rings begin.
pub const HEAP_AT: u64 = after(SRQS_AT, SRQS_MAX as usize * size_of::<Srq>()) as u64;
/// Bytes for rings.
pub const HEAP_BYTES: u64 = 16 << 30;
/// Bytes of all device memory.
pub const DEVICE_BYTES: u64 = HEAP_AT + HEAP_BYTES;

/// A mapping of device memory.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: all that is reached through it are atomic words; the creator of the mapping vouches that
// it stays.
unsafe impl Send for Memory {}
// SAFETY: threads that share it only load and store atomic words, in memory that the creator of the mapping vouches
// stays.
unsafe impl Sync for Memory {}

impl Memory {
    /// Device memory that is mapped at `base`.
    ///
    /// # Safety
    /// `bytes` from `base`, which is aligned to a page, stay mapped, readable and writable, for as
    /// long as this or a copy of it is used, and are only ever accessed as atomic words.
    pub unsafe fn new(base: NonNull<u8>, bytes: usize) -> Option<Self> {
        (bytes as u64 > HEAP_AT && base.as_ptr().addr().is_multiple_of(4096))
            .then_some(Self { base, bytes })
    }

    /// Where it is mapped.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// A table's entry, if the whole of it is inside.
    #[inline]
    fn entry<T>(&self, table_at: usize, index: u32, count: u32) -> Option<&T> {
        const { assert!(align_of::<T>() <= 64) };
        if index >= count {
            return None;
        }
        let at = table_at + index as usize * size_of::<T>();
        // SAFETY: tables end before HEAP_AT, which is inside; entries hold atomic words alone, whose
        // every bit pattern is a value; tables are aligned to 64 KiB.
        Some(unsafe { self.base.byte_add(at).cast::<T>().as_ref() })
    }

    /// The head.
    #[inline]
    pub fn header(&self) -> &Header {
        // SAFETY: the head is the first thing in memory that is at least a table long and aligned to a page; it holds
        // atomic words alone, whose every bit pattern is a value.
        unsafe { self.base.cast::<Header>().as_ref() }
    }

    /// A memory key's entry.
    #[inline]
    pub fn key(&self, index: u32) -> Option<&Key> {
        self.entry(KEYS_AT, index, KEYS_MAX)
    }

    /// A queue pair.
    #[inline]
    pub fn qp(&self, index: u32) -> Option<&Qp> {
        self.entry(QPS_AT, index, QPS_MAX)
    }

    /// A completion queue.
    #[inline]
    pub fn cq(&self, index: u32) -> Option<&Cq> {
        self.entry(CQS_AT, index, CQS_MAX)
    }

    /// A shared receive queue.
    #[inline]
    pub fn srq(&self, index: u32) -> Option<&Srq> {
        self.entry(SRQS_AT, index, SRQS_MAX)
    }

    /// `count` words from byte `at`, in the heap.
    #[inline]
    pub fn words(&self, at: u64, count: usize) -> Option<&[U64]> {
        let end = at.checked_add(count.checked_mul(8)? as u64)?;
        if at < HEAP_AT || !at.is_multiple_of(8) || end > self.bytes as u64 {
            return None;
        }
        let first = self.base.as_ptr().wrapping_add(at as usize).cast::<U64>();
        // SAFETY: inside the mapping, aligned, atomic words.
        Some(unsafe { std::slice::from_raw_parts(first, count) })
    }

    /// Which port has this LID.
    #[inline]
    pub fn port_of_lid(&self, lid: u16) -> Option<(u32, &Port)> {
        let header = self.header();
        let index = header.lids[lid as usize].get().checked_sub(1)?;
        Some((index, header.ports.get(index as usize)?))
    }
}
