//! Which file system a directory is of: how fast an image comes by a file depends on that more than on anything else.

use std::{fmt, path::Path};

use procfs::process::{MountInfo, Process};
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use serde::{Deserialize, Serialize};

/// A file system that is mounted, as /proc/PID/mountinfo has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileSystem {
    /// Its type: `ext4`, `nfs4`, `fuse.glusterfs`.
    pub kind: String,
    /// What is mounted: a device, a server's export.
    pub source: String,
}

impl FileSystem {
    /// That of a directory. None: it is not there, or /proc does not have it.
    pub fn of(directory: &Path) -> Option<Self> {
        let found = statx(CWD, directory, AtFlags::empty(), StatxFlags::MNT_ID).ok()?;
        let mounts = Process::myself().and_then(|me| me.mountinfo()).ok()?;
        let mut mounts = mounts.into_iter();
        let is_it = |mount: &MountInfo| u64::try_from(mount.mnt_id) == Ok(found.stx_mnt_id);
        let mount = mounts.find(is_it)?;
        Some(Self {
            kind: mount.fs_type,
            source: mount.mount_source.unwrap_or_default(),
        })
    }
}

impl fmt::Display for FileSystem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}, {}", self.kind, self.source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_of_the_file_system_that_is_mounted_there() {
        let proc = FileSystem::of(Path::new("/proc/self")).unwrap();
        assert_eq!(proc.to_string(), "proc, proc");
        assert_eq!(FileSystem::of(Path::new("/none")), None);
    }
}
