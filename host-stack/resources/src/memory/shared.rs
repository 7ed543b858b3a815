//! Memory that several processes can map, as a checkpoint meets it: in the areas of processes, and through descriptors.

use std::{
    collections::HashMap,
    ffi::OsStr,
    fs,
    ops::Range,
    os::unix::{
        ffi::OsStrExt,
        fs::{DirEntryExt, MetadataExt},
    },
    path::{Path, PathBuf},
};

use libc::pid_t;
use procfs::process::MemoryMap;

use crate::huge::pages;

/// Memory that several can map, as it is met.
#[derive(Debug, Default)]
pub struct Shared {
    /// Device and inode of each.
    pub met: Vec<SharedObject>,
    /// Where System V shared memory is.
    pub attachments: Vec<Attachment>,
    /// Files that have lost the name that they were mapped by, and what else they are called.
    names: HashMap<(u64, u64), Option<PathBuf>>,
    /// Who maps private huge pages of a file, by that and where it would begin.
    reserved: HashMap<(u64, u64, u64), pid_t>,
    /// Devices, and bytes of the huge pages of what is on them, or 0.
    sizes: HashMap<u64, u64>,
}

/// Memory that several can map.
#[derive(Debug)]
pub struct SharedObject {
    /// Device and inode.
    pub id: (u64, u64),
    /// A memfd's name; none: anonymous, or without a name.
    pub name: Option<Vec<u8>>,
    /// Bytes that are known to be there: as far as somebody maps it.
    pub size: u64,
    /// F_GET_SEALS.
    pub seals: i32,
    /// Who maps which part of it where; those first who share it.
    pub mapped: Vec<Mapping>,
    /// Bytes of its huge pages; 0: ordinary ones.
    pub huge_bytes: u64,
    /// A descriptor of it: process and number.
    pub open: Option<(pid_t, i32)>,
}

/// A part of an object that a process maps.
#[derive(Debug)]
pub struct Mapping {
    /// The process, as one of its threads is known.
    pub pid: pid_t,
    /// First address.
    pub start: u64,
    /// Of the object.
    pub part: Range<u64>,
    /// MAP_SHARED.
    pub is_shared: bool,
}

impl Shared {
    /// What a file is called that has lost a name, if it has another one beside it: sem_open(3) maps what it makes before
    /// that has its name, and whoever opens it later has it by that.
    pub fn other_name(&mut self, id: (u64, u64), gone: &[u8]) -> Option<PathBuf> {
        let name = self.names.entry(id).or_insert_with(|| {
            let directory = Path::new(OsStr::from_bytes(gone)).parent()?;
            let entries = fs::read_dir(directory).ok()?.flatten();
            let mut files = entries.filter(|entry| entry.ino() == id.1);
            let is_it = |entry: &fs::DirEntry| entry.metadata().is_ok_and(|it| id_of(&it) == id);
            files.find(is_it).map(|entry| entry.path())
        });
        name.clone()
    }

    /// The number of an object.
    pub fn meet(&mut self, id: (u64, u64), name: Option<Vec<u8>>, huge_bytes: u64) -> usize {
        if let Some(at) = self.met.iter().position(|object| object.id == id) {
            return at;
        }
        self.met.push(SharedObject {
            id,
            name,
            size: 0,
            seals: 0,
            mapped: Vec::new(),
            huge_bytes,
            open: None,
        });
        self.met.len() - 1
    }

    /// Bytes of the huge pages of what is on a device; 0: ordinary ones.
    pub fn huge_bytes(&mut self, device: u64) -> u64 {
        let known = self.sizes.entry(device);
        *known.or_insert_with(|| pages::of_device(device))
    }

    /// Whether private huge pages are reserved for a relative, of whom the process has them since fork(2): no child has
    /// any reserved for it.
    pub fn is_reserved_for_another(&mut self, pid: pid_t, map: &MemoryMap) -> bool {
        let base = map.address.0.wrapping_sub(map.offset);
        let id = (dev(map.dev), map.inode, base);
        *self.reserved.entry(id).or_insert(pid) != pid
    }
}

/// The number of a device.
pub fn dev((major, minor): (i32, i32)) -> u64 {
    libc::makedev(major as u32, minor as u32)
}

/// Device and inode of a file.
pub fn id_of(metadata: &fs::Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

/// A segment's area in a process.
#[derive(Clone, Copy, Debug)]
pub struct Attachment {
    /// The number of the segment.
    pub id: i32,
    /// The process.
    pub pid: pid_t,
    /// First address.
    pub start: u64,
    /// Offset in the segment.
    pub offset: u64,
    /// Bytes of the area.
    pub bytes: u64,
    /// Bytes of its huge pages; 0: ordinary ones.
    pub huge_bytes: u64,
}
