//! What stat(2) tells.

use std::time::Duration;

use super::{Open, RegularFile, regular::Directory};
use crate::kernel::file::Description;

/// An inode's own type, for `st_mode`, and the rest that stat(2) tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    /// Inode number.
    pub ino: u64,
    /// Type and permission bits.
    pub mode: u32,
    /// Links.
    pub nlink: u64,
    /// Bytes.
    pub size: u64,
    /// Device number of a device.
    pub rdev: u64,
    /// Time of the last change, since the epoch.
    pub mtime: Duration,
}

/// What an open file knows of itself beyond `File`: for fstat(2).
pub fn stat_of(open: &Open) -> Stat {
    if let Some(file) = open.file.as_any().downcast_ref::<RegularFile>() {
        return file.inode().stat();
    }
    if let Some(directory) = open.file.as_any().downcast_ref::<Directory>() {
        return Stat {
            ino: directory.node(),
            mode: libc::S_IFDIR | 0o755,
            nlink: 2,
            ..Stat::default()
        };
    }
    let mode = match open.file.describe() {
        Description::Pipe { .. } => libc::S_IFIFO | 0o600,
        Description::Socket => libc::S_IFSOCK | 0o777,
        Description::Console | Description::Device { .. } => libc::S_IFCHR | 0o620,
        _ => 0o600,
    };
    Stat {
        ino: 1,
        mode,
        nlink: 1,
        ..Stat::default()
    }
}

impl Stat {
    /// `struct stat` (x86-64).
    pub fn bytes(&self) -> [u8; 144] {
        let mut bytes = [0; 144];
        let mut put = |at: usize, value: u64| {
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        };
        put(0, 1);
        put(8, self.ino);
        put(16, self.nlink);
        put(24, self.mode.into());
        put(40, self.rdev);
        put(48, self.size);
        put(56, 4096);
        put(64, self.size.div_ceil(512));
        for at in [72, 88, 104] {
            put(at, self.mtime.as_secs());
            put(at + 8, self.mtime.subsec_nanos().into());
        }
        bytes
    }

    /// `struct statx` (statx(2)).
    pub fn statx_bytes(&self) -> [u8; 256] {
        const BASIC: u32 = 0x7ff;
        let mut bytes = [0; 256];
        bytes[..4].copy_from_slice(&BASIC.to_le_bytes());
        bytes[4..8].copy_from_slice(&4096_u32.to_le_bytes());
        bytes[16..20].copy_from_slice(&(self.nlink as u32).to_le_bytes());
        bytes[28..30].copy_from_slice(&(self.mode as u16).to_le_bytes());
        bytes[32..40].copy_from_slice(&self.ino.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.size.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.size.div_ceil(512).to_le_bytes());
        for at in [64, 80, 96, 112] {
            bytes[at..at + 8].copy_from_slice(&self.mtime.as_secs().to_le_bytes());
            bytes[at + 8..at + 12].copy_from_slice(&self.mtime.subsec_nanos().to_le_bytes());
        }
        bytes
    }
}
