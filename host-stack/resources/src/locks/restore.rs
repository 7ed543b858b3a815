//! What is held through open files: locks, leases, watches, and who is told of what happens to them.
//!
//! ```text
//! all files open            locks of descriptions; of others it is found out whether they can be had
//! processes have their own  locks of processes, leases, O_ASYNC: by a process, at its number
//! everything is there       owners, inotify's watches, seals
//! ```

use std::{io, mem::offset_of, os::fd::RawFd};

use snaprig_tracee::remote::{Call, call};

use crate::{
    calls::check,
    error::{Error, Result},
    opened::Opened,
    state::{Body, Kind, Lock, LockedBy, OpenFile, Owner, Process, Tree},
};

/// fcntl(2).
const F_SETSIG: i32 = 10;

const F_SETOWN_EX: i32 = 15;

/// Takes the locks that belong to open files, and refuses those that somebody else has meanwhile.
pub fn lock(tree: &Tree, opened: &Opened) -> Result<()> {
    for (file, fd) in tree.files.iter().zip(&opened.files) {
        for lock in &file.locks {
            let got = match lock.by {
                LockedBy::Flock => flock(*fd, lock),
                LockedBy::Description => {
                    let wanted = region(lock);
                    // SAFETY: F_OFD_SETLK reads a struct flock, which is a variable of this function.
                    check(unsafe { libc::fcntl(*fd, libc::F_OFD_SETLK, &raw const wanted) })
                        .map(drop)
                }
                LockedBy::Process(_) => is_free(*fd, lock),
                LockedBy::Lease => Ok(()),
            };
            got.map_err(|source| held(file, lock, source))?;
        }
    }
    Ok(())
}

fn flock(fd: RawFd, lock: &Lock) -> io::Result<()> {
    let how = if lock.write {
        libc::LOCK_EX
    } else {
        libc::LOCK_SH
    };
    // SAFETY: flock(2) takes numbers alone and no address, so the kernel reads and writes no memory of this process.
    check(unsafe { libc::flock(fd, how | libc::LOCK_NB) }).map(drop)
}

/// Whether a process could have a lock.
fn is_free(fd: RawFd, lock: &Lock) -> io::Result<()> {
    let mut wanted = region(lock);
    // SAFETY: F_GETLK reads and writes a struct flock, which is a variable of this function.
    check(unsafe { libc::fcntl(fd, libc::F_GETLK, &raw mut wanted) })?;
    match i32::from(wanted.l_type) {
        libc::F_UNLCK => Ok(()),
        _ => Err(io::ErrorKind::WouldBlock.into()),
    }
}

fn region(lock: &Lock) -> libc::flock {
    // SAFETY: the structure has numbers alone, for which zero is a value.
    let mut region: libc::flock = unsafe { std::mem::zeroed() };
    region.l_type = kind(lock) as i16;
    region.l_whence = libc::SEEK_SET as i16;
    region.l_start = lock.start as i64;
    // 0: to wherever the end will be.
    region.l_len = lock
        .end
        .map_or(0, |end| end.wrapping_sub(lock.start).wrapping_add(1) as i64);
    region
}

fn kind(lock: &Lock) -> i32 {
    match lock.write {
        true => libc::F_WRLCK,
        false => libc::F_RDLCK,
    }
}

fn held(file: &OpenFile, lock: &Lock, source: io::Error) -> Error {
    let name = match &file.kind {
        Kind::Path { path, .. } => String::from_utf8_lossy(path).into_owned(),
        other => format!("{other:?}"),
    };
    let part = match (lock.start, lock.end) {
        (0, None) => String::new(),
        (start, None) => format!(" from byte {start}"),
        (start, Some(end)) => format!(", bytes {start} to {end}"),
    };
    let is_taken = [Some(libc::EAGAIN), Some(libc::EACCES)].contains(&source.raw_os_error())
        || source.kind() == io::ErrorKind::WouldBlock;
    match is_taken {
        true => Error::Missing {
            what: format!("the program's lock on {name}{part} is somebody else's by now"),
        },
        false => Error::io(format!("the lock on {name}{part}"), source),
    }
}

/// A call that a process makes for what is its own, and what to say if it fails.
pub struct Step<'a> {
    pub call: Call,
    /// `struct flock`, whose address the last argument is to be.
    pub data: Option<Vec<u8>>,
    file: &'a OpenFile,
    lock: Option<Lock>,
}

impl Step<'_> {
    /// It failed.
    pub fn failed(&self, pid: i32, source: io::Error) -> Error {
        match &self.lock {
            Some(lock) => held(self.file, lock, source),
            None => Error::Process {
                pid,
                what: "O_ASYNC".into(),
                source,
            },
        }
    }
}

/// What a process has to do at the numbers that it has files at.
pub fn steps<'a>(tree: &'a Tree, process: &Process, body: &Body) -> Vec<Step<'a>> {
    let mut steps = Vec::new();
    for (number, file) in tree.files.iter().enumerate() {
        let Some(fd) = number_of(body, number) else {
            continue;
        };
        let is_first = first(tree, number) == Some(process.pid);
        for lock in &file.locks {
            let (call, data) = match lock.by {
                LockedBy::Process(pid) if pid == process.pid => {
                    let set = [fd as u64, libc::F_SETLK as u64, 0];
                    (call(libc::SYS_fcntl, set), Some(bytes(&region(lock))))
                }
                LockedBy::Lease if is_first => {
                    let set = [fd as u64, libc::F_SETLEASE as u64, kind(lock) as u64];
                    (call(libc::SYS_fcntl, set), None)
                }
                _ => continue,
            };
            steps.push(Step {
                call,
                data,
                file,
                lock: Some(*lock),
            });
        }
        if is_first && file.flags & libc::O_ASYNC != 0 {
            let set = [fd as u64, libc::F_SETFL as u64, file.flags as u64];
            steps.push(Step {
                call: call(libc::SYS_fcntl, set),
                data: None,
                file,
                lock: None,
            });
        }
    }
    steps
}

fn number_of(body: &Body, file: usize) -> Option<i32> {
    let mut descriptors = body.descriptors.iter();
    let found = descriptors.find(|one| one.file as usize == file);
    found.map(|one| one.fd)
}

/// The first process that has a file.
fn first(tree: &Tree, file: usize) -> Option<i32> {
    let mut processes = tree.processes.iter();
    let has = |process: &&Process| {
        let body = process.body.as_ref();
        body.is_some_and(|body| number_of(body, file).is_some())
    };
    processes.find(has).map(|process| process.pid)
}

fn bytes(region: &libc::flock) -> Vec<u8> {
    let mut bytes = vec![0; size_of::<libc::flock>()];
    let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
    put(
        offset_of!(libc::flock, l_type),
        &region.l_type.to_ne_bytes(),
    );
    put(
        offset_of!(libc::flock, l_whence),
        &region.l_whence.to_ne_bytes(),
    );
    put(
        offset_of!(libc::flock, l_start),
        &region.l_start.to_ne_bytes(),
    );
    put(offset_of!(libc::flock, l_len), &region.l_len.to_ne_bytes());
    put(offset_of!(libc::flock, l_pid), &region.l_pid.to_ne_bytes());
    bytes
}

/// When all processes have all that they had: who is told of what happens to files.
pub fn own_all(tree: &Tree, opened: &Opened) -> Result<()> {
    for (file, fd) in tree.files.iter().zip(&opened.files) {
        if let (Some(owner), 0..) = (&file.owner, *fd) {
            own(*fd, owner)?;
        }
    }
    Ok(())
}

fn own(fd: RawFd, owner: &Owner) -> Result<()> {
    let of = [owner.kind, owner.id];
    // SAFETY: F_SETSIG takes a number, and F_SETOWN_EX reads a struct f_owner_ex, which is two ints, as `of` is.
    let set = unsafe {
        check(libc::fcntl(fd, F_SETSIG, owner.signal))
            .and_then(|_| check(libc::fcntl(fd, F_SETOWN_EX, of.as_ptr())))
    };
    match set {
        // A group that has not been the tree's: nobody is told.
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
        set => set
            .map(drop)
            .map_err(|source| Error::io("F_SETOWN", source)),
    }
}
