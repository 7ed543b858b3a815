//! Opens the files of a tree again, each once, at numbers that no process of the tree uses; processes inherit them.
//!
//! What must stay true: nothing of the file system is written to here but what is new and has no name yet, or goes
//! away again if the restart fails ([`super::paths`]).

use std::{
    collections::BTreeMap,
    ffi::{CString, OsStr},
    fs::{self, File},
    io,
    os::{
        fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd},
        unix::{ffi::OsStrExt, net::UnixStream},
    },
    path::Path,
};

use super::{
    counters::restore as made,
    files::restore::{self as paths, Staged},
    locks::restore as held,
    pipes::restore as pipes,
    plugins::restore as plugins,
    sockets::{refill, restore as sockets},
    terminals::restore as terminals,
};
use crate::{
    board::Board,
    error::{Error, Result},
    state::{Backing, FileId, Kind, Tree},
};

/// Open flags that make, and do not describe; and one that the process sets itself, which its signals name.
const MAKING: i32 = libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC | libc::O_NOCTTY | libc::O_ASYNC;

/// All that is open for a tree.
pub struct Opened {
    /// The lowest number.
    pub base: RawFd,
    /// Its files, by number in the image; -1: they are opened by the processes that have them ([`is_late`]).
    pub files: Vec<RawFd>,
    /// Its shared memory, by number in the image: to be filled, and to be mapped.
    pub shared: Vec<(RawFd, RawFd)>,
    /// Its terminals, by number in the image: master, and slave if anybody has opened that.
    pub terminals: Vec<(RawFd, Option<RawFd>)>,
    /// What is mapped: by name, and whether it is written to.
    mapped: BTreeMap<(Vec<u8>, bool), RawFd>,
    /// Spaces of the image that are contents of files; those whose files have not changed are not needed.
    pub contents: BTreeMap<u32, Option<RawFd>>,
    /// The supervisor's ends of its connections to plugins, by file.
    channels: BTreeMap<u32, RawFd>,
    /// Contents that take their files' place when all is well.
    pub staged: Vec<Staged>,
    next: RawFd,
}

/// Whether a file can only be opened when the processes of the tree are there.
pub fn is_late(kind: &Kind) -> bool {
    matches!(kind, Kind::Proc { .. } | Kind::Pid(1..))
}

impl Opened {
    /// Opens everything; in a job, together with other trees.
    pub fn open(tree: &Tree, board: Option<&Board>) -> Result<Self> {
        let bodies = tree
            .processes
            .iter()
            .filter_map(|process| process.body.as_ref());
        let used = bodies
            .clone()
            .flat_map(|body| &body.descriptors)
            .map(|one| one.fd)
            .max();
        let mapped = bodies.clone().map(|body| body.areas.len()).sum::<usize>();
        let base = used.unwrap_or(2).max(2) + 64;
        let others = 2 * (tree.files.len() + tree.shared.len() + tree.terminals.len()) + mapped;
        raise_limit(base as u64 + others as u64 + 64);
        let mut opened = Self {
            base,
            files: vec![-1; tree.files.len()],
            shared: Vec::new(),
            terminals: Vec::new(),
            mapped: BTreeMap::new(),
            contents: BTreeMap::new(),
            channels: BTreeMap::new(),
            staged: Vec::new(),
            next: base,
        };
        for shared in &tree.shared {
            let memory = made::memory(shared)?;
            opened.shared.push(memory);
        }
        for (memory, view) in &mut opened.shared {
            let next = &mut opened.next;
            *memory = keep_at(next, *memory)?;
            *view = keep_at(next, *view)?;
        }
        pipes::open(tree, &mut opened)?;
        terminals::open(tree, &mut opened)?;
        for number in 0..tree.files.len() {
            opened.file(tree, number)?;
        }
        let lost = sockets::open(tree, &mut opened, board)?;
        refill::refill(tree, &opened, lost, board)?;
        for area in bodies.flat_map(|body| &body.areas) {
            if let Backing::File { file, write, .. } = &area.backing {
                opened.map(file, *write)?;
            }
        }
        for process in &tree.processes {
            if let Some(body) = &process.body {
                opened.map(&body.exe, false)?;
            }
        }
        held::lock(tree, &opened)?;
        Ok(opened)
    }

    /// The descriptor of what is mapped of a file.
    pub fn mapped(&self, file: &FileId, write: bool) -> Option<RawFd> {
        self.mapped.get(&(file.path.clone(), write)).copied()
    }

    /// Moves a descriptor to where no process of the tree has one.
    pub fn keep(&mut self, fd: OwnedFd) -> Result<RawFd> {
        keep_at(&mut self.next, fd.into_raw_fd())
    }

    /// Closes all of them: the tree has its own.
    pub fn close(self) {
        // SAFETY: what is at and behind the base is this one's.
        unsafe { libc::close_range(self.base as u32, self.next as u32, 0) };
    }

    /// A connection of a process to the supervisor, which keeps the other end.
    fn channel(&mut self, number: usize) -> Result<OwnedFd> {
        let (theirs, ours) = plugins::channel()?;
        let ours = self.keep(ours)?;
        self.channels.insert(number as u32, ours);
        Ok(theirs)
    }

    /// The supervisor's ends, and whose the others are; they are not closed with the rest.
    pub fn channels(&self, tree: &Tree) -> Result<Vec<(i32, OwnedFd)>> {
        plugins::outlive(tree, &self.channels, self.next)
    }

    fn map(&mut self, file: &FileId, write: bool) -> Result<()> {
        let key = (file.path.clone(), write);
        if self.mapped.contains_key(&key) {
            return Ok(());
        }
        let path = path_of(&file.path);
        let opened = File::options().read(true).write(write).open(path);
        let opened = opened.map_err(|error| missing(path, &error))?;
        if !write {
            paths::unchanged(file)?;
        }
        let fd = self.keep(opened.into())?;
        self.mapped.insert(key, fd);
        Ok(())
    }

    fn file(&mut self, tree: &Tree, number: usize) -> Result<()> {
        let file = &tree.files[number];
        let fd = match &file.kind {
            Kind::Stdio(own) => {
                let fd = given(*own, file.flags)?;
                self.files[number] = self.keep(fd)?;
                return Ok(());
            }
            Kind::Path { .. } => paths::open(self, file)?,
            Kind::Memory { shared, offset } => {
                let memory = self.shared.get(*shared as usize).copied();
                let (memory, _) =
                    memory.ok_or_else(|| damaged("shared memory without a number"))?;
                // An open file of its own, with an offset of its own.
                let opened = reopen(&path_to(memory), file.flags)?;
                seek(&opened, *offset)?;
                opened
            }
            Kind::Event { count, semaphore } => made::event(*count, *semaphore)?,
            // SAFETY: no memory is involved; checked.
            Kind::Epoll { .. } => owned(unsafe { libc::epoll_create1(0) }, "epoll_create1")?,
            Kind::Signal { mask } => {
                // SAFETY: the mask is as long as it says.
                let fd = unsafe { libc::syscall(libc::SYS_signalfd4, -1, &raw const *mask, 8, 0) };
                owned(fd as i32, "signalfd")?
            }
            Kind::Timer {
                clock,
                settings,
                ticks,
                setting,
            } => made::timer(*clock, *settings, *ticks, setting)?,
            Kind::Inotify(notices) => held::inotify(notices)?,
            Kind::Console => terminals::console(file.flags)?,
            Kind::Plugin(_) => plugins::hung_up()?,
            Kind::Supervisor => self.channel(number)?,
            Kind::Pid(-1) => made::ended()?,
            // Others have opened them, or will.
            Kind::Pipe(_) | Kind::Terminal { .. } | Kind::Socket(_) => return Ok(()),
            kind if is_late(kind) => return Ok(()),
            _ => {
                return Err(damaged(
                    "a file of a kind that this version does not restore",
                ));
            }
        };
        if file.flags & libc::O_PATH == 0 {
            set_flags(&fd, file.flags)?;
        }
        self.files[number] = self.keep(fd)?;
        Ok(())
    }
}

fn keep_at(next: &mut RawFd, fd: RawFd) -> Result<RawFd> {
    // SAFETY: it is open, and not used again.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: no memory is involved.
    let kept = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, *next) };
    if kept < 0 {
        return Err(Error::io(
            "more open files than there may be (ulimit -n)",
            io::Error::last_os_error(),
        ));
    }
    *next = kept + 1;
    Ok(kept)
}

/// The file system's name of bytes.
pub fn path_of(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

/// By which an open file can be opened once more.
pub fn path_to(fd: RawFd) -> std::path::PathBuf {
    format!("/proc/self/fd/{fd}").into()
}

/// An image that says what cannot be.
pub fn damaged(what: &str) -> Error {
    Error::Missing {
        what: format!("the image names {what}"),
    }
}

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
    // SAFETY: the name ends with a zero; the result is checked.
    let fd = unsafe { libc::open(name.as_ptr(), flags) };
    match fd {
        fd if fd < 0 => Err(missing(path, &io::Error::last_os_error())),
        // SAFETY: it is open and ours.
        fd => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
    }
}

/// lseek(2), where there is something to seek.
pub fn seek(fd: &OwnedFd, offset: u64) -> Result<()> {
    // SAFETY: no memory is involved.
    let moved = unsafe { libc::lseek(fd.as_raw_fd(), offset as i64, libc::SEEK_SET) };
    match moved < 0 && io::Error::last_os_error().raw_os_error() != Some(libc::ESPIPE) {
        true => Err(Error::io("lseek", io::Error::last_os_error())),
        false => Ok(()),
    }
}

/// fcntl(2), F_SETFL.
pub fn set_flags(fd: &impl AsRawFd, flags: i32) -> Result<()> {
    // SAFETY: no memory is involved.
    match unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags & !MAKING) } {
        0 => Ok(()),
        _ => Err(Error::io("F_SETFL", io::Error::last_os_error())),
    }
}

/// What whoever restarts has at a number that the tree was given a file at; it is only made to block or not. Of pipes
/// and sockets beside the standard ones, an end without another will do.
fn given(number: RawFd, flags: i32) -> Result<OwnedFd> {
    // SAFETY: no memory is involved.
    let is_passed_on = unsafe { libc::fcntl(number, libc::F_GETFD) } == 0;
    if number > 2 && !is_passed_on {
        eprintln!(
            "snaprig: nothing is at descriptor {number}, which the program was launched with"
        );
        return lonely(flags);
    }
    let fd = duplicate(number)?;
    // SAFETY: no memory is involved.
    let own = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) };
    set_flags(&fd, own & !libc::O_NONBLOCK | flags & libc::O_NONBLOCK)?;
    Ok(fd)
}

/// An end of a pipe or connection whose other end has been closed.
fn lonely(flags: i32) -> Result<OwnedFd> {
    let failed = |source| Error::io("pipe", source);
    let (reader, writer) = io::pipe().map_err(failed)?;
    let fd = match flags & libc::O_ACCMODE {
        libc::O_RDONLY => reader.into(),
        libc::O_WRONLY => writer.into(),
        _ => UnixStream::pair().map_err(failed)?.0.into(),
    };
    set_flags(&fd, flags)?;
    Ok(fd)
}

/// A copy of a descriptor of this process.
pub fn duplicate(fd: RawFd) -> Result<OwnedFd> {
    // SAFETY: no memory is involved; checked.
    owned(
        unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3) },
        "a standard descriptor is closed",
    )
}

/// The result of a call that opens something.
pub fn owned(fd: i32, what: &str) -> Result<OwnedFd> {
    match fd {
        fd if fd < 0 => Err(Error::io(what, io::Error::last_os_error())),
        // SAFETY: it is open and ours.
        fd => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
    }
}

/// So many files that most likely fewer are needed: many areas are of one file. Who may not have them has as many as may
/// be, and is told if they are too few.
fn raise_limit(enough: u64) {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is valid to write to and read.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
        let raised = libc::rlimit {
            rlim_cur: limit.rlim_cur.max(enough),
            rlim_max: limit.rlim_max.max(enough),
        };
        if libc::setrlimit(libc::RLIMIT_NOFILE, &raw const raised) != 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        }
    }
}

/// Whether a directory entry is there, whatever it leads to.
pub fn is_there(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}
