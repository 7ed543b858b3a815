//! Memory that is opened by a name, and has none afterwards: files that have lost theirs, as shm_open(3) and shm_unlink(3)
//! leave them.
//!
//! Some flags of open(2) go with a name alone ([`OF_NAME`]), and no memfd has one. What was opened with them becomes a file
//! of a tmpfs that is mounted nowhere (fsmount(2)), and ends with the last of its files.

use std::{
    collections::BTreeMap,
    ffi::CStr,
    fs::File,
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
};

use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags, fchmod, linkat, mkdirat, openat, unlinkat},
    mount::{
        FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount,
        fsopen,
    },
};

use crate::{
    error::{Error, Result},
    opened::{MAKING, OF_NAME, duplicate},
    state::{Kind, SharedMemory, Tree},
};

/// Where they are in it: another restart may look for a directory of the same name.
const DIRECTORY: &CStr = c"tmp";

/// Shared memory that is opened by a name, by number in the image; and flags with which it was made without one
/// (O_TMPFILE). Huge pages take a hugetlbfs, which users cannot mount: theirs are opened without flags of names.
pub fn by_name(tree: &Tree) -> BTreeMap<u32, Option<i32>> {
    let mut by_name = BTreeMap::new();
    for file in tree.files.iter().filter(|it| it.flags & OF_NAME != 0) {
        let Kind::Memory { shared, .. } = file.kind else {
            continue;
        };
        let is_huge = |it: &SharedMemory| it.huge_bytes != 0;
        if tree.shared.get(shared as usize).is_none_or(is_huge) {
            continue;
        }
        let made = by_name.entry(shared).or_default();
        if is_temporary(file.flags) {
            *made = Some(file.flags);
        }
    }
    by_name
}

fn is_temporary(flags: i32) -> bool {
    flags & libc::O_TMPFILE == libc::O_TMPFILE
}

/// The tmpfs; names in it are numbers of shared memory, and go when this does.
pub struct Unlinked {
    directory: OwnedFd,
    /// Those whose making is their opening, until they are opened.
    temporary: BTreeMap<u32, OwnedFd>,
    made: Vec<u32>,
}

impl Unlinked {
    /// Makes it, in a mount namespace of one's own.
    pub fn mount() -> Result<Self> {
        let mount = || {
            let context = fsopen(c"tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
            // Memfds have no limit, either (tmpfs(5)).
            fsconfig_set_string(context.as_fd(), c"size", c"0")?;
            fsconfig_create(context.as_fd())?;
            let (flags, attributes) = (FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty());
            let root = fsmount(context.as_fd(), flags, attributes)?;
            mkdirat(&root, DIRECTORY, Mode::RWXU)?;
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            openat(&root, DIRECTORY, flags, Mode::empty())
        };
        let directory = mount().map_err(|errno| Error::io("a tmpfs for shared memory", errno))?;
        Ok(Self {
            directory,
            temporary: BTreeMap::new(),
            made: Vec::new(),
        })
    }

    /// Makes memory to be filled, and a descriptor of it to be mapped. `temporary`: flags with which a program has made it.
    pub fn make(
        &mut self,
        shared: u32,
        bytes: u64,
        temporary: Option<i32>,
    ) -> Result<(OwnedFd, OwnedFd)> {
        let made = self.file(shared, temporary).and_then(|file| {
            // As a memfd.
            fchmod(&file, Mode::from_raw_mode(0o777))?;
            let file = File::from(file);
            file.set_len(bytes)?;
            Ok(file)
        });
        let file = made.map_err(failed)?;
        let view = duplicate(file.as_raw_fd())?;
        Ok((file.into(), view))
    }

    fn file(&mut self, shared: u32, temporary: Option<i32>) -> io::Result<OwnedFd> {
        let name = shared.to_string();
        self.made.push(shared);
        let Some(flags) = temporary else {
            let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
            return openat(&self.directory, name, flags_of(flags), Mode::RWXU).map_err(Into::into);
        };
        let flags = flags_of(flags & !MAKING);
        let temporary = openat(&self.directory, c".", flags, Mode::RWXU)?;
        // As openat(2) says under O_TMPFILE.
        let link = format!("/proc/self/fd/{}", temporary.as_raw_fd());
        linkat(CWD, link, &self.directory, &name, AtFlags::SYMLINK_FOLLOW)?;
        self.temporary.insert(shared, temporary);
        openat(&self.directory, name, flags_of(libc::O_RDWR), Mode::empty()).map_err(Into::into)
    }

    /// Opens memory that was made, with flags as F_GETFL says them.
    pub fn open(&mut self, shared: u32, flags: i32) -> Result<OwnedFd> {
        if is_temporary(flags)
            && let Some(temporary) = self.temporary.remove(&shared)
        {
            return Ok(temporary);
        }
        // One alone has made it. No file of memory is a directory (O_DIRECTORY, a part of O_TMPFILE).
        let flags = flags & !(MAKING | libc::O_TMPFILE);
        let (name, flags) = (shared.to_string(), flags_of(flags));
        let opened = openat(&self.directory, name, flags, Mode::empty());
        opened.map_err(|errno| failed(errno.into()))
    }
}

impl Drop for Unlinked {
    fn drop(&mut self) {
        for shared in &self.made {
            // It is there, unless it could not be made.
            let _ = unlinkat(&self.directory, shared.to_string(), AtFlags::empty());
        }
    }
}

fn flags_of(flags: i32) -> OFlags {
    OFlags::from_bits_retain((flags | libc::O_CLOEXEC) as u32)
}

fn failed(source: io::Error) -> Error {
    Error::io("shared memory in a tmpfs", source)
}
