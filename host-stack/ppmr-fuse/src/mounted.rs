//! A file system that is mounted until it is dropped, and what both of ours answer alike.

use std::{
    ffi::OsStr,
    io,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use fuser::{
    BackgroundSession, Config, FileAttr, FileType, Filesystem, INodeNo, InitFlags, KernelConfig,
    MountOption, ReplyDirectory,
};
use rustix::mount::UnmountFlags;

/// How much is read or written at once. More means fewer switches between processes.
pub const REQUEST_MAX: u32 = 1 << 20;
/// Names and sizes change without the kernel: it asks every time.
pub const TTL: Duration = Duration::ZERO;

/// A mount. Dropped, it is gone; who has a file open there keeps that until it is closed.
#[derive(Debug)]
pub struct Mounted {
    session: Option<BackgroundSession>,
    at: PathBuf,
}

impl Mounted {
    /// Mounts it.
    pub fn new(system: impl Filesystem, at: &Path, more: &[MountOption]) -> io::Result<Self> {
        let mut config = Config::default();
        config.mount_options = vec![
            MountOption::FSName("ppmr".into()),
            MountOption::Subtype("snaprig".into()),
            MountOption::DefaultPermissions,
            MountOption::NoDev,
            MountOption::NoSuid,
        ];
        config.mount_options.extend_from_slice(more);
        let named = |error: io::Error| {
            let text = format!("{}: cannot be mounted on: {error}", at.display());
            io::Error::new(error.kind(), text)
        };
        // Before it is mounted: after that, it is we who are asked.
        let place = at.canonicalize().map_err(named)?;
        let session = fuser::spawn_mount(system, &place, &config).map_err(named)?;
        Ok(Self {
            session: Some(session),
            at: place,
        })
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let Some(session) = self.session.take() else {
            return;
        };
        // Busy: it goes when the last file is closed, and nobody finds it before that.
        let ended = session.umount_and_join();
        if ended.is_err_and(|error| error.kind() == io::ErrorKind::ResourceBusy) {
            let _ = rustix::mount::unmount(&self.at, UnmountFlags::DETACH);
        }
    }
}

/// What is agreed on with the kernel.
pub fn agree(config: &mut KernelConfig, flags: InitFlags) {
    // A kernel that cannot do it does without.
    let _ = config.set_max_write(REQUEST_MAX);
    let _ = config.add_capabilities(flags & config.capabilities());
}

/// What there is to say of a file.
pub fn file(ino: INodeNo, size: u64, mode: u32, owner: (u32, u32), time: SystemTime) -> FileAttr {
    FileAttr {
        ino,
        size,
        blocks: size.div_ceil(512),
        atime: time,
        mtime: time,
        ctime: time,
        crtime: time,
        kind: FileType::RegularFile,
        perm: mode as u16,
        nlink: 1,
        uid: owner.0,
        gid: owner.1,
        rdev: 0,
        blksize: REQUEST_MAX,
        flags: 0,
    }
}

/// What there is to say of the directory.
pub fn directory(mode: u32, time: SystemTime) -> FileAttr {
    let owner = (
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    );
    FileAttr {
        kind: FileType::Directory,
        nlink: 2,
        ..file(INodeNo::ROOT, 0, mode, owner, time)
    }
}

/// Lists the directory from an offset on.
pub fn list<'a>(
    files: impl Iterator<Item = (INodeNo, &'a OsStr)>,
    offset: u64,
    mut reply: ReplyDirectory,
) {
    let dots = [".", ".."].map(|name| (INodeNo::ROOT, FileType::Directory, OsStr::new(name)));
    let files = files.map(|(ino, name)| (ino, FileType::RegularFile, name));
    let all = dots.into_iter().chain(files).zip(1..);
    for ((ino, kind, name), next) in all.skip(offset as usize) {
        if reply.add(ino, next, kind, name) {
            break;
        }
    }
    reply.ok();
}
