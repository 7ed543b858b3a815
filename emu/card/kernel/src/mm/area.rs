//! A range of a process's addresses with one rule.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use snaprig_card_driver::device::DeviceMemory;
use snaprig_card_fs::Inode;
use snaprig_card_memory::paging::Access;

/// What an area's pages come from.
#[derive(Clone)]
pub enum Backing {
    /// Zero pages of its own.
    Anonymous,
    /// A file's pages, shared with it or copied from it, from this byte offset on.
    File {
        /// The file.
        inode: Arc<Inode>,
        /// Its path, for /proc/self/maps and for snapshots.
        path: String,
        /// Offset of the area's start in the file.
        offset: u64,
    },
    /// What a device shows, from this byte offset on. A child has none of it.
    Device {
        /// The device's path, for /proc/self/maps.
        path: String,
        /// The mapping, of which this is all or a part.
        memory: Arc<DeviceMemory>,
        /// Offset of the area's start in the mapping.
        offset: u64,
    },
    /// What a device showed before a restore: nothing is there any more.
    Gone,
}

/// A range of addresses with one rule.
#[derive(Clone)]
pub struct Area {
    /// First address behind it.
    pub end: u64,
    /// `PROT_*` bits.
    pub prot: i32,
    /// `MAP_SHARED`.
    pub shared: bool,
    /// Where its pages come from.
    pub backing: Backing,
    /// What else is true of it.
    pub traits: Traits,
}

/// What is true of an area beside its protection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traits {
    /// Its file was opened for reading alone: it can never be written.
    pub read_only: bool,
    /// mlock(2).
    pub locked: bool,
    /// A child does not have it (MADV_DONTFORK).
    pub not_forked: bool,
    /// A child finds zeros in it (MADV_WIPEONFORK).
    pub wiped_on_fork: bool,
}

impl Area {
    /// How its pages are entered.
    pub(super) fn access(&self) -> Access {
        Access {
            write: self.prot & libc::PROT_WRITE != 0,
            execute: self.prot & libc::PROT_EXEC != 0,
            none: self.prot & (libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC) == 0,
            copied: false,
        }
    }

    /// The same area as seen from `by` bytes further on.
    pub(super) fn advanced(&self, by: u64) -> Self {
        let mut area = self.clone();
        if let Backing::File { offset, .. } | Backing::Device { offset, .. } = &mut area.backing {
            *offset += by;
        }
        area
    }
}
