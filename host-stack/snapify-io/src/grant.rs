//! Which files of the host a card may name.
//!
//! A card is hostile until shown otherwise, so the daemon serves nothing but what a process of the
//! host has granted. A grant is a file in the rig's directory that holds the path of a directory,
//! and that its owner keeps locked (flock(2)): the kernel drops the lock when the owner dies, so a
//! grant never outlives it, and a file that is not locked grants nothing.

use std::{
    ffi::OsStr,
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::ffi::OsStrExt,
    },
    path::{Component, Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use rustix::fs::{FlockOperation, flock};

use crate::sums::{StoreError, io_error};

/// The directory of grants in the rig's directory.
const GRANTS: &str = "snapify-io";
/// Longest path that a grant may hold (PATH_MAX), with its end.
const PATH_BYTES_MAX: u64 = 4096;

/// How files of snapshots are written that cards bring. Its number ends the path in a grant, so that half of one, read while it
/// is written, grants nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Writing {
    /// As they are; they have their names when they are on the disk.
    #[default]
    Plain = 0,
    /// Compressed ([`crate::packed`]).
    Compressed = 1,
    /// As they are, and not for long: nobody needs them after a crash of the machine.
    Passing = 2,
}

impl Writing {
    fn of(end: u8) -> Option<Self> {
        let all = [Self::Plain, Self::Compressed, Self::Passing];
        all.into_iter().find(|one| *one as u8 == end)
    }
}

/// Cards' permission to read and write below a directory, for as long as this value lives.
#[derive(Debug)]
pub struct Grant {
    path: PathBuf,
    directory: PathBuf,
    /// Keeps the lock.
    lock: File,
}

impl Grant {
    /// Grants `directory`, which must exist, to the cards of the rig.
    pub fn new(rig: &Path, directory: &Path) -> Result<Self, StoreError> {
        Self::with(rig, directory, Writing::Plain)
    }

    /// The same; this is how files of snapshots are written there.
    pub fn with(rig: &Path, directory: &Path, writing: Writing) -> Result<Self, StoreError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let directory = directory.canonicalize().map_err(io_error(directory))?;
        let grants = rig.join(GRANTS);
        // The rig's directory itself is not made again: if it is gone, so is the rig.
        match fs::create_dir(&grants) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(io_error(&grants)(error));
            }
            _ => {}
        }
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = grants.join(format!("{}-{number}", std::process::id()));
        let make = || {
            let mut lock = OpenOptions::new()
                .create(true)
                .write(true)
                .truncate(true)
                .open(&path)?;
            flock(&lock, FlockOperation::LockExclusive)?;
            lock.write_all(directory.as_os_str().as_bytes())?;
            lock.write_all(&[writing as u8])?;
            Ok(lock)
        };
        let lock = make().map_err(io_error(&path))?;
        Ok(Self {
            path,
            directory,
            lock,
        })
    }

    /// What keeps it granted.
    pub fn lock(&self) -> BorrowedFd<'_> {
        self.lock.as_fd()
    }

    /// The directory by the name that cards must use: absolute, free of symbolic links.
    pub fn directory(&self) -> &Path {
        &self.directory
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        // If it cannot be removed, the lock that goes now has ended it all the same.
        let _ = fs::remove_file(&self.path);
    }
}

/// Whether a card may name `path`: plain, absolute, below a granted directory, and with no symbolic
/// link on the way (the card cannot make one; whoever can has a better way in). Says how snapshots are written there.
pub fn check(rig: &Path, path: &Path) -> Result<Writing, StoreError> {
    let refused = |errno| io_error(path)(io::Error::from_raw_os_error(errno));
    let plain = path
        .components()
        .all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    let Some(parent) = path
        .parent()
        .filter(|_| plain && path.is_absolute() && path.file_name().is_some())
    else {
        return Err(refused(libc::EINVAL));
    };
    let granted = granted(rig);
    let of_path = granted.iter().filter(|(root, _)| parent.starts_with(root));
    // The innermost says.
    let of_path = of_path.max_by_key(|(root, _)| root.as_os_str().len());
    let Some((_, writing)) = of_path else {
        return Err(refused(libc::EACCES));
    };
    if parent.canonicalize().map_err(io_error(path))? != parent || path.is_symlink() {
        return Err(refused(libc::ELOOP));
    }
    Ok(*writing)
}

/// The directories whose grants are alive, and how snapshots are written there.
fn granted(rig: &Path) -> Vec<(PathBuf, Writing)> {
    let entries = fs::read_dir(rig.join(GRANTS)).into_iter().flatten();
    // One that ends at this moment is gone, and no reason to refuse the others.
    entries
        .flatten()
        .filter_map(|entry| read(&entry.path()).ok().flatten())
        .collect()
}

fn read(grant: &Path) -> io::Result<Option<(PathBuf, Writing)>> {
    let file = File::open(grant)?;
    if flock(&file, FlockOperation::NonBlockingLockShared).is_ok() {
        return Ok(None);
    }
    let mut text = Vec::new();
    file.take(PATH_BYTES_MAX).read_to_end(&mut text)?;
    let parts = text.split_last();
    Ok(parts.and_then(|(&end, directory)| {
        let directory = PathBuf::from(OsStr::from_bytes(directory));
        Writing::of(end).map(|writing| (directory, writing))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errno(rig: &Path, path: &Path) -> Option<i32> {
        match check(rig, path) {
            Ok(_) => None,
            Err(StoreError::Io { source, .. }) => source.raw_os_error(),
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn only_granted_directories_are_served_and_only_while_granted() {
        let (rig, files) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let grant = Grant::new(rig.path(), files.path()).unwrap();
        let file = grant.directory().join("image");
        assert_eq!(errno(rig.path(), &file), None);
        let etc = Path::new("/etc/passwd");
        assert_eq!(errno(rig.path(), etc), Some(libc::EACCES));
        drop(grant);
        assert_eq!(errno(rig.path(), &file), Some(libc::EACCES));
        let compressed = Writing::Compressed;
        let _outer = Grant::with(rig.path(), files.path(), compressed).unwrap();
        assert_eq!(check(rig.path(), &file).unwrap(), compressed);
        fs::create_dir(files.path().join("in")).unwrap();
        for writing in [Writing::Plain, Writing::Passing] {
            let inner = Grant::with(rig.path(), &files.path().join("in"), writing).unwrap();
            let file = inner.directory().join("image");
            assert_eq!(check(rig.path(), &file).unwrap(), writing);
        }
    }

    #[test]
    fn a_grant_of_a_dead_process_counts_for_nothing() {
        let rig = tempfile::tempdir().unwrap();
        fs::create_dir(rig.path().join(GRANTS)).unwrap();
        let stale = rig.path().join(GRANTS).join("1-0");
        let etc = Path::new("/etc/passwd");
        fs::write(&stale, "/etc\0").unwrap();
        assert_eq!(errno(rig.path(), etc), Some(libc::EACCES));
        // The same file is a grant as soon as somebody holds it, but never half of it.
        let owner = File::options().write(true).open(&stale).unwrap();
        flock(&owner, FlockOperation::LockExclusive).unwrap();
        assert_eq!(errno(rig.path(), etc), None);
        owner.set_len(1).unwrap();
        assert_eq!(errno(rig.path(), etc), Some(libc::EACCES));
    }

    #[test]
    fn no_way_leads_out() {
        let (rig, files) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let grant = Grant::new(rig.path(), files.path()).unwrap();
        let root = grant.directory();
        std::os::unix::fs::symlink("/etc", root.join("link")).unwrap();
        for (path, expected) in [
            (root.join("../etc/passwd"), libc::EINVAL),
            (PathBuf::from("relative"), libc::EINVAL),
            (PathBuf::from("/"), libc::EINVAL),
            (root.join("link/passwd"), libc::ELOOP),
            (root.join("link"), libc::ELOOP),
            (root.join("no/file"), libc::ENOENT),
        ] {
            assert_eq!(errno(rig.path(), &path), Some(expected), "{path:?}");
        }
    }
}
