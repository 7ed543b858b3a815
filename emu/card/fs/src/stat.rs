//! What stat(2) tells.

use crate::meta::{Meta, Timestamp};

/// What `st_blocks` counts.
pub const BLOCK: u64 = 512;

/// An inode's own type, for `st_mode`, and the rest that stat(2) tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    /// Inode number.
    pub ino: u64,
    /// Type and permission bits.
    pub mode: u32,
    /// Links.
    pub nlink: u64,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes.
    pub size: u64,
    /// Blocks of 512 bytes that it has.
    pub blocks: u64,
    /// Device number of a device.
    pub rdev: u64,
    /// Times: last read, last change of what is in it, last change at all, beginning.
    pub times: [Timestamp; 4],
}

impl Stat {
    /// Of something of this type.
    pub fn of(meta: &Meta, kind: u32) -> Self {
        let attributes = meta.lock();
        Self {
            ino: meta.number,
            mode: kind | attributes.mode,
            nlink: attributes.nlink,
            uid: attributes.uid,
            gid: attributes.gid,
            times: [
                attributes.atime,
                attributes.mtime,
                attributes.ctime,
                attributes.btime,
            ],
            ..Self::default()
        }
    }

    /// `struct stat` (x86-64).
    pub fn bytes(&self) -> [u8; 144] {
        let mut bytes = [0; 144];
        let mut put = |at: usize, value: u64| {
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        };
        put(0, 1);
        put(8, self.ino);
        put(16, self.nlink);
        put(24, u64::from(self.mode) | u64::from(self.uid) << 32);
        put(32, self.gid.into());
        put(40, self.rdev);
        put(48, self.size);
        put(56, 4096);
        put(64, self.blocks);
        for (at, time) in [72, 88, 104].into_iter().zip(self.times) {
            put(at, time.seconds as u64);
            put(at + 8, time.nanos.into());
        }
        bytes
    }

    /// `struct statx` (statx(2)).
    pub fn statx_bytes(&self) -> [u8; 256] {
        /// All that is in a `struct stat`, and STATX_BTIME.
        const MASK: u32 = 0xfff;
        let mut bytes = [0; 256];
        let mut put = |at: usize, value: &[u8]| {
            bytes[at..at + value.len()].copy_from_slice(value);
        };
        put(0, &MASK.to_le_bytes());
        put(4, &4096_u32.to_le_bytes());
        put(16, &(self.nlink as u32).to_le_bytes());
        put(20, &self.uid.to_le_bytes());
        put(24, &self.gid.to_le_bytes());
        put(28, &(self.mode as u16).to_le_bytes());
        put(32, &self.ino.to_le_bytes());
        put(40, &self.size.to_le_bytes());
        put(48, &self.blocks.to_le_bytes());
        let [read, modified, changed, began] = self.times;
        for (at, time) in [64, 80, 96, 112]
            .into_iter()
            .zip([read, began, changed, modified])
        {
            put(at, &time.seconds.to_le_bytes());
            put(at + 8, &time.nanos.to_le_bytes());
        }
        put(128, &((self.rdev >> 8) as u32).to_le_bytes());
        put(132, &((self.rdev & 0xff) as u32).to_le_bytes());
        put(140, &1_u32.to_le_bytes());
        bytes
    }
}
