//! Memory keys: regions and windows, and what may be done through them.
//!
//! A key is its place in the table and a tag of 8 bits that changes with each use of the place, so
//! that a key that was given back is not mistaken for its successor. Local and remote key are the
//! same number. Rules: ibv_reg_mr(3), ibv_bind_mw(3); InfiniBand Architecture 1, 10.6.

use crate::{
    Memory,
    cell::{U32, U64},
    types::Access,
};

/// A free place in the table.
pub const FREE: u32 = 0;
/// A memory region.
pub const REGION: u32 = 1;
/// A memory window of type 1, bound to a region if its length is not 0.
pub const WINDOW_1: u32 = 2;
/// A memory window of type 2, bound to a region and a queue pair if its length is not 0.
pub const WINDOW_2: u32 = 3;
/// A region that reads as zeroes and forgets what is written.
pub const NULL_REGION: u32 = 4;

/// An entry of the table of keys.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Key {
    /// Which of the kinds above.
    pub kind: U32,
    /// The tag of the key that is valid.
    pub tag: U32,
    /// HCA.
    pub hca: U32,
    /// Protection domain.
    pub pd: U32,
    /// Owner's slot in the table of processes.
    pub process: U32,
    /// What it allows.
    pub access: U32,
    /// First address as work requests name it.
    pub start: U64,
    /// Bytes.
    pub length: U64,
    /// First address in the owner's memory.
    pub address: U64,
    /// 1 if the pages are in the owner's pool, where everybody can map them.
    pub pooled: U32,
    /// Of a window: the region's place + 1.
    pub region: U32,
    /// Of a window of type 2: the queue pair's number.
    pub qp: U32,
    /// Of a region: how many windows are bound to it.
    pub windows: U32,
}

/// Some bytes of a process's memory that a key was checked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The owner's slot in the table of processes; [`NOBODY`] for a null region.
    pub process: u32,
    /// Whether the bytes are in the owner's pool.
    pub pooled: bool,
    /// Address in the owner's memory.
    pub address: u64,
    /// Bytes.
    pub length: u64,
}

/// The owner of a null region's segments.
pub const NOBODY: u32 = u32::MAX;

impl Segment {
    /// Nothing.
    pub const EMPTY: Self = Self {
        process: NOBODY,
        pooled: false,
        address: 0,
        length: 0,
    };

    /// The part of it that starts at `at` and has up to `length` bytes.
    #[inline]
    pub fn part(self, at: u64, length: u64) -> Self {
        let at = at.min(self.length);
        Self {
            address: self.address.wrapping_add(at),
            length: length.min(self.length - at),
            ..self
        }
    }
}

/// Who uses a key.
#[derive(Clone, Copy, Debug)]
pub struct Scope {
    /// HCA.
    pub hca: u32,
    /// Protection domain of the queue pair.
    pub pd: u32,
    /// Number of the queue pair.
    pub qp: u32,
}

/// Why a key does not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyError {
    /// There is no such key here.
    Unknown,
    /// It belongs to another protection domain or queue pair.
    Domain,
    /// The range is not all inside.
    Bounds,
    /// It forbids the access.
    Access,
}

/// The key of a place and a tag.
pub fn key_number(place: u32, tag: u32) -> u32 {
    place << 8 | tag & 0xff
}

/// The place of a key.
#[inline]
pub fn place(key: u32) -> u32 {
    key >> 8
}

impl Memory {
    /// The entry of a valid key of this HCA.
    #[inline]
    pub fn valid_key(&self, key: u32, hca: u32) -> Result<&Key, KeyError> {
        let entry = self.key(place(key)).ok_or(KeyError::Unknown)?;
        let valid = entry.kind.acquire() != FREE
            && entry.tag.get() & 0xff == key & 0xff
            && entry.hca.get() == hca;
        if valid {
            Ok(entry)
        } else {
            Err(KeyError::Unknown)
        }
    }

    /// Checks that `key` allows `access` to `length` bytes at `address`, and says where they are.
    #[inline]
    pub fn locate(
        &self,
        key: u32,
        scope: Scope,
        address: u64,
        length: u64,
        access: Access,
    ) -> Result<Segment, KeyError> {
        let entry = self.valid_key(key, scope.hca)?;
        if entry.pd.get() != scope.pd {
            return Err(KeyError::Domain);
        }
        let kind = entry.kind.get();
        if kind == WINDOW_2 && entry.qp.get() != scope.qp {
            return Err(KeyError::Domain);
        }
        if matches!(kind, WINDOW_1 | WINDOW_2) && entry.region.get() == 0 {
            return Err(KeyError::Unknown);
        }
        if !Access::from_bits_truncate(entry.access.get()).contains(access) {
            return Err(KeyError::Access);
        }
        if kind == NULL_REGION {
            return Ok(Segment {
                length,
                ..Segment::EMPTY
            });
        }
        let at = address.wrapping_sub(entry.start.get());
        let fits = at
            .checked_add(length)
            .is_some_and(|end| end <= entry.length.get());
        if address < entry.start.get() || !fits {
            return Err(KeyError::Bounds);
        }
        Ok(Segment {
            process: entry.process.get(),
            pooled: entry.pooled.get() != 0,
            address: entry.address.get().wrapping_add(at),
            length,
        })
    }
}
