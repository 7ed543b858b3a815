//! What a supervisor has open for a restarted tree: each file once, at numbers that no process of the tree uses; processes
//! inherit them.
//!
//! What must stay true: nothing of the file system is written to when files are opened but what is new and has no name
//! yet, or goes away again if the restart fails (`files/restore.rs`).

use std::{
    collections::BTreeMap,
    ffi::{CString, OsStr},
    fs, io,
    os::{
        fd::{AsFd, FromRawFd, IntoRawFd, OwnedFd, RawFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
};

use rustix::{
    fs::{Mode, OFlags, SeekFrom, fcntl_setfl},
    io::{Errno, fcntl_dupfd_cloexec},
    process::{Resource, Rlimit, getrlimit, setrlimit},
};

use serde::{Deserialize, Serialize};

use crate::{
    clocks::Clocks,
    error::{Error, Result},
    state::{FileId, OpenFile, Tree},
};

/// Open flags that make, and do not describe; and one that the process sets itself, which its signals name.
pub const MAKING: i32 =
    libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC | libc::O_NOCTTY | libc::O_ASYNC;
/// Open flags that are about the name: F_GETFL tells them and F_SETFL does not set them. With them open(2) refuses a
/// link of /proc, or opens the link itself (O_PATH).
pub const OF_NAME: i32 = libc::O_NOFOLLOW | libc::O_TMPFILE;

/// What comes along with a tree as it is, by what the image calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Item {
    /// A socket, by inode.
    Socket(u64),
    /// Shared memory, by its space.
    Memory(u32),
    /// A regular file, by its number in the image.
    File(u32),
}

/// What has come along.
pub type Carried = BTreeMap<Item, OwnedFd>;

/// All that is open for a tree.
#[derive(Debug)]
pub struct Opened {
    /// The lowest number.
    pub base: RawFd,
    /// Its files, by number in the image; -1: not open yet, or only by the processes that have them.
    pub files: Vec<RawFd>,
    /// Its shared memory, by number in the image: to be filled, and to be mapped.
    pub shared: Vec<(RawFd, RawFd)>,
    /// Sockets and memory that are there still, if they have come along: they are not made again.
    pub carried: Option<Carried>,
    /// What the clocks of the tree showed when it stood still, if they go on from there; without, a timer has what was left of it.
    pub clocks: Option<Clocks>,
    /// What is mapped: by name, and whether it is written to.
    mapped: BTreeMap<(Vec<u8>, bool), RawFd>,
    next: RawFd,
}

impl Opened {
    /// Nothing yet; there may be as many as a tree needs.
    pub fn new(tree: &Tree) -> Self {
        let (base, enough) = numbers(tree);
        raise_limit(enough);
        Self {
            base,
            files: vec![-1; tree.files.len()],
            shared: Vec::new(),
            carried: None,
            clocks: None,
            mapped: BTreeMap::new(),
            next: base,
        }
    }

    /// Opens those files for which `open` does so, and sets their flags. What has come along is open.
    pub fn each(
        &mut self,
        tree: &Tree,
        mut open: impl FnMut(&mut Self, &OpenFile) -> Result<Option<OwnedFd>>,
    ) -> Result<()> {
        for (number, file) in tree.files.iter().enumerate() {
            if self.files[number] >= 0 {
                continue;
            }
            if let Some(fd) = open(self, file)? {
                if file.flags & libc::O_PATH == 0 {
                    set_flags(&fd, file.flags)?;
                }
                self.files[number] = self.keep(fd)?;
            }
        }
        Ok(())
    }

    /// The descriptor of what is mapped of a file.
    pub fn mapped(&self, file: &FileId, write: bool) -> Option<RawFd> {
        self.mapped.get(&(file.path.clone(), write)).copied()
    }

    /// What has come along.
    pub fn carried(&mut self, item: Item) -> Option<OwnedFd> {
        self.carried.as_mut()?.remove(&item)
    }

    /// Files that have come along: their numbers in the image.
    pub fn carried_files(&self) -> Vec<u32> {
        let items = self.carried.iter().flat_map(BTreeMap::keys);
        let files = items.filter_map(|item| match item {
            Item::File(number) => Some(*number),
            _ => None,
        });
        files.collect()
    }

    /// What is to be mapped of a file is one that is open.
    pub fn map_open(&mut self, path: &[u8], number: u32) {
        let fd = self.files[number as usize];
        self.mapped.insert((path.to_owned(), true), fd);
    }

    /// What is to be mapped of a file.
    pub fn add_mapped(&mut self, file: &FileId, write: bool, fd: OwnedFd) -> Result<()> {
        let fd = self.keep(fd)?;
        self.mapped.insert((file.path.clone(), write), fd);
        Ok(())
    }

    /// Moves a descriptor to where no process of the tree has one.
    pub fn keep(&mut self, fd: OwnedFd) -> Result<RawFd> {
        let kept = fcntl_dupfd_cloexec(&fd, self.next).map_err(|source| {
            let what = "more open files than there may be (ulimit -n)";
            Error::io(what, source)
        })?;
        let kept = kept.into_raw_fd();
        self.next = kept + 1;
        Ok(kept)
    }

    /// The number behind all of these.
    pub fn end(&self) -> RawFd {
        self.next
    }

    /// Closes all of them: the tree has its own.
    pub fn close(self) {
        // SAFETY: `keep` has given this value all numbers from the base to the end, and it ends here, so nobody refers to
        // them any more.
        unsafe { libc::syscall(libc::SYS_close_range, self.base as u32, self.next as u32, 0) };
    }
}

/// The file system's name of bytes.
pub fn path_of(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

/// An image that says what cannot be.
pub fn damaged(what: &str) -> Error {
    Error::Missing {
        what: format!("the image names {what}"),
    }
}

/// A file that cannot be opened.
pub fn missing(path: &Path, error: &io::Error) -> Error {
    Error::Missing {
        what: format!("{} cannot be opened: {error}", path.display()),
    }
}

/// Opens what is there, with flags as F_GETFL says them.
pub fn reopen(path: &Path, flags: i32) -> Result<OwnedFd> {
    let name =
        CString::new(path.as_os_str().as_bytes()).map_err(|_| damaged("a name with a zero"))?;
    let flags = flags & !MAKING | libc::O_CLOEXEC | libc::O_NOCTTY;
    let flags = OFlags::from_bits_retain(flags as u32);
    rustix::fs::open(name, flags, Mode::empty()).map_err(|error| missing(path, &error.into()))
}

/// Opens what is open once more, but for flags that are about a name.
pub fn open_again(fd: RawFd, flags: i32) -> Result<OwnedFd> {
    let link = format!("/proc/self/fd/{fd}");
    reopen(Path::new(&link), flags & !OF_NAME)
}

/// lseek(2), where there is something to seek.
pub fn seek(fd: &OwnedFd, offset: u64) -> Result<()> {
    match rustix::fs::seek(fd, SeekFrom::Start(offset)) {
        Ok(_) | Err(Errno::SPIPE) => Ok(()),
        Err(error) => Err(Error::io("lseek", error)),
    }
}

/// fcntl(2), F_SETFL.
pub fn set_flags(fd: &impl AsFd, flags: i32) -> Result<()> {
    let flags = OFlags::from_bits_retain((flags & !MAKING) as u32);
    fcntl_setfl(fd, flags).map_err(|source| Error::io("F_SETFL", source))
}

/// A copy of a descriptor of this process.
pub fn duplicate(fd: RawFd) -> Result<OwnedFd> {
    // SAFETY: F_DUPFD_CLOEXEC takes a number, so fcntl(2) reads and writes no memory of this process.
    owned(
        unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3) },
        "a standard descriptor is closed",
    )
}

/// The result of a call that opens something.
pub fn owned(fd: i32, what: &str) -> Result<OwnedFd> {
    match fd {
        fd if fd < 0 => Err(Error::io(what, io::Error::last_os_error())),
        // SAFETY: the callers pass what a call that opens something has just returned, so nobody else owns it.
        fd => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
    }
}

/// Has the kernel make room for all that will be open for a tree, as long as the calling process has one thread: with
/// more, each time that room grows it waits until no processor can be looking at the old one (`expand_fdtable`), which takes
/// milliseconds.
pub fn make_room(tree: &Tree) -> io::Result<()> {
    let (base, enough) = numbers(tree);
    raise_limit(enough);
    // Of areas, most are not of files, and those of one file count once.
    let last = (base as u64 + 2 * tree.files.len() as u64).min(enough);
    let (open, _) = io::pipe()?;
    fcntl_dupfd_cloexec(open, last as RawFd)?;
    Ok(())
}

/// The lowest number for what is open for a tree, and one that is most likely higher than needed.
fn numbers(tree: &Tree) -> (RawFd, u64) {
    let bodies = tree.processes.iter().filter_map(|it| it.body.as_ref());
    let descriptors = bodies.clone().flat_map(|body| &body.descriptors);
    let used = descriptors.map(|one| one.fd).max();
    let mapped = bodies.map(|body| body.areas.len()).sum::<usize>();
    let base = used.unwrap_or(2).max(2) + 64;
    let others = 2 * (tree.files.len() + tree.shared.len() + tree.terminals.len()) + mapped;
    (base, base as u64 + others as u64 + 64)
}

/// So many files that most likely fewer are needed: many areas are of one file. Who may not have them has as many as may
/// be, and is told if they are too few.
pub fn raise_limit(enough: u64) {
    let limit = getrlimit(Resource::Nofile);
    // None is no limit.
    let raised = Rlimit {
        current: limit.current.map(|most| most.max(enough)),
        maximum: limit.maximum.map(|most| most.max(enough)),
    };
    if setrlimit(Resource::Nofile, raised).is_err() {
        let current = limit.maximum;
        let _ = setrlimit(Resource::Nofile, Rlimit { current, ..limit });
    }
}

/// Whether a directory entry is there, whatever it leads to.
pub fn is_there(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}
