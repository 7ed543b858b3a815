//! Opens the files of a tree again, each once, at numbers that no process of the tree uses; processes inherit them.

use std::{
    collections::BTreeMap,
    ffi::{CString, OsStr},
    fs::{self, File},
    io::{self, Write},
    os::{
        fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd},
        unix::{ffi::OsStrExt, fs::OpenOptionsExt},
    },
    path::Path,
};

use super::{plugins, sockets};
use crate::{
    dump::modified,
    error::{Error, Result},
    state::{Backing, FileId, Kind, OpenFile, SharedMemory, Tree},
};

/// Open flags that make, and do not describe.
const MAKING: i32 = libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC | libc::O_NOCTTY;

/// All that is open for a tree.
pub struct Opened {
    /// The lowest number.
    pub base: RawFd,
    /// Its files, by number in the image.
    pub files: Vec<RawFd>,
    /// Its shared memory, by number in the image.
    pub shared: Vec<RawFd>,
    /// What is mapped: by name, and whether it is written to.
    mapped: BTreeMap<(Vec<u8>, bool), RawFd>,
    /// Spaces of the image that are contents of files; those whose files have not changed are not needed.
    pub contents: BTreeMap<u32, Option<RawFd>>,
    /// The supervisor's ends of its connections to plugins, by file.
    channels: BTreeMap<u32, RawFd>,
    next: RawFd,
}

impl Opened {
    /// Opens everything.
    pub fn open(tree: &Tree) -> Result<Self> {
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
        let needed = base as u64 + (tree.files.len() + tree.shared.len() + mapped) as u64 + 64;
        raise_limit(needed)?;
        let mut opened = Self {
            base,
            files: vec![-1; tree.files.len()],
            shared: Vec::new(),
            mapped: BTreeMap::new(),
            contents: BTreeMap::new(),
            channels: BTreeMap::new(),
            next: base,
        };
        for shared in &tree.shared {
            let memory = memory(shared)?;
            let memory = opened.keep(memory)?;
            opened.shared.push(memory);
        }
        for number in 0..tree.files.len() {
            let is_socket = matches!(tree.files[number].kind, Kind::Socket(_));
            if opened.files[number] < 0 && !is_socket {
                opened.file(tree, number)?;
            }
        }
        let lost = sockets::open(tree, &mut opened)?;
        sockets::refill(tree, &opened, lost)?;
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
        Ok(opened)
    }

    /// The descriptor of what is mapped of a file.
    pub fn mapped(&self, file: &FileId, write: bool) -> Option<RawFd> {
        self.mapped.get(&(file.path.clone(), write)).copied()
    }

    /// Moves a descriptor to where no process of the tree has one.
    pub fn keep(&mut self, fd: OwnedFd) -> Result<RawFd> {
        // SAFETY: no memory is involved.
        let kept = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, self.next) };
        if kept < 0 {
            return Err(Error::io("too many files", io::Error::last_os_error()));
        }
        self.next = kept + 1;
        Ok(kept)
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
            unchanged(file)?;
        }
        let fd = self.keep(opened.into())?;
        self.mapped.insert(key, fd);
        Ok(())
    }

    fn file(&mut self, tree: &Tree, number: usize) -> Result<()> {
        let file = &tree.files[number];
        let fd = match &file.kind {
            Kind::Stdio(own) => duplicate(*own)?,
            Kind::Path { .. } => self.path(file)?,
            Kind::Memory { shared, offset } => {
                let memory = self.shared.get(*shared as usize).copied();
                let memory = memory.ok_or_else(|| damaged("shared memory without a number"))?;
                // An open file of its own, with an offset of its own.
                let path = format!("/proc/self/fd/{memory}");
                let opened = reopen(Path::new(&path), file.flags)?;
                seek(&opened, *offset)?;
                opened
            }
            Kind::Pipe { pipe, .. } => return self.pipe(tree, *pipe),
            Kind::Event { count, semaphore } => {
                let flags = if *semaphore { libc::EFD_SEMAPHORE } else { 0 };
                // SAFETY: no memory is involved; checked below.
                let event = owned(unsafe { libc::eventfd(0, flags) }, "eventfd")?;
                (&File::from(event.try_clone().map_err(|e| Error::io("eventfd", e))?))
                    .write_all(&count.to_ne_bytes())
                    .map_err(|source| Error::io("eventfd", source))?;
                event
            }
            // SAFETY: no memory is involved; checked.
            Kind::Epoll { .. } => owned(unsafe { libc::epoll_create1(0) }, "epoll_create1")?,
            Kind::Signal { mask } => {
                // SAFETY: the mask is as long as it says.
                let fd = unsafe { libc::syscall(libc::SYS_signalfd4, -1, &raw const *mask, 8, 0) };
                owned(fd as i32, "signalfd")?
            }
            Kind::Timer { clock, setting, .. } => timer(*clock, setting)?,
            Kind::Plugin(_) => plugins::hung_up()?,
            Kind::Supervisor => self.channel(number)?,
            _ => {
                return Err(damaged(
                    "a file of a kind that this version does not restore",
                ));
            }
        };
        set_flags(&fd, file.flags)?;
        self.files[number] = self.keep(fd)?;
        Ok(())
    }

    /// Both ends of a pipe, with what was in it.
    fn pipe(&mut self, tree: &Tree, inode: u64) -> Result<()> {
        let (reader, mut writer) = io::pipe().map_err(|source| Error::io("pipe", source))?;
        let mut ends = Vec::new();
        for (number, file) in tree.files.iter().enumerate() {
            let Kind::Pipe {
                pipe,
                reads,
                capacity,
                bytes,
                ..
            } = &file.kind
            else {
                continue;
            };
            if *pipe != inode {
                continue;
            }
            ends.push((number, *reads, file.flags));
            if !bytes.is_empty() {
                // SAFETY: no memory is involved.
                unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_SETPIPE_SZ, *capacity) };
                set_flags(&writer, libc::O_NONBLOCK)?;
                writer
                    .write_all(bytes)
                    .map_err(|source| Error::io("a pipe's contents", source))?;
            }
        }
        for (number, reads, flags) in ends {
            let end = duplicate(if reads {
                reader.as_raw_fd()
            } else {
                writer.as_raw_fd()
            })?;
            set_flags(&end, flags)?;
            self.files[number] = self.keep(end)?;
        }
        Ok(())
    }

    fn path(&mut self, file: &OpenFile) -> Result<OwnedFd> {
        let Kind::Path {
            path,
            offset,
            file: id,
            contents,
            unlinked,
            mode,
            ..
        } = &file.kind
        else {
            return Err(damaged("a file without a name"));
        };
        let path = path_of(path);
        if *unlinked {
            return self.nameless(path, file, *mode, *offset);
        }
        if let Some(contents) = contents {
            let same = id.as_ref().is_some_and(is_unchanged);
            let target = match same {
                true => None,
                false => {
                    let target = File::options()
                        .write(true)
                        .create(true)
                        .truncate(false)
                        .mode(*mode)
                        .open(path);
                    let target =
                        target.map_err(|source| Error::io(path.display().to_string(), source))?;
                    target
                        .set_len(0)
                        .and_then(|()| target.set_len(contents.size))
                        .map_err(|source| Error::io(path.display().to_string(), source))?;
                    Some(self.keep(target.into())?)
                }
            };
            self.contents.insert(contents.space, target);
        } else if let Some(id) = id {
            unchanged(id)?;
        }
        let opened = reopen(path, file.flags)?;
        seek(&opened, *offset)?;
        Ok(opened)
    }

    /// A file that has lost its name: a new one in the same directory, which loses its own.
    fn nameless(
        &mut self,
        path: &Path,
        file: &OpenFile,
        mode: u32,
        offset: u64,
    ) -> Result<OwnedFd> {
        let Kind::Path {
            contents: Some(contents),
            ..
        } = &file.kind
        else {
            return Err(damaged("a file that had no name any more"));
        };
        let directory = path.parent().filter(|parent| parent.is_dir());
        let directory = directory.map_or_else(std::env::temp_dir, Path::to_owned);
        let made = tempfile::Builder::new()
            .prefix(".snaprig-")
            .tempfile_in(&directory);
        let made = made.map_err(|source| Error::io(directory.display().to_string(), source))?;
        let failed = |source| Error::io(made.path().display().to_string(), source);
        let permissions: fs::Permissions = std::os::unix::fs::PermissionsExt::from_mode(mode);
        made.as_file().set_len(contents.size).map_err(failed)?;
        let opened = reopen(made.path(), file.flags)?;
        seek(&opened, offset)?;
        made.as_file()
            .set_permissions(permissions)
            .map_err(failed)?;
        let target = made.into_file();
        let target = self.keep(target.into())?;
        self.contents.insert(contents.space, Some(target));
        Ok(opened)
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

fn missing(path: &Path, error: &io::Error) -> Error {
    Error::Missing {
        what: format!("{} cannot be opened: {error}", path.display()),
    }
}

fn is_unchanged(file: &FileId) -> bool {
    let metadata = fs::metadata(path_of(&file.path));
    metadata.is_ok_and(|now| now.len() == file.size && modified(&now) == file.modified_nanos)
}

/// Refuses a file that is not what it was: the same size and modification time, or the same bytes.
fn unchanged(file: &FileId) -> Result<()> {
    if is_unchanged(file) {
        return Ok(());
    }
    let path = path_of(&file.path);
    let now = fs::metadata(path).map_err(|error| missing(path, &error))?;
    let is_same = file.hash != 0
        && now.len() == file.size
        && crate::dump::hash(path).is_ok_and(|hash| hash == file.hash);
    match is_same {
        true => Ok(()),
        false => Err(Error::Missing {
            what: format!("{} has changed since the checkpoint", path.display()),
        }),
    }
}

fn reopen(path: &Path, flags: i32) -> Result<OwnedFd> {
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

fn seek(fd: &OwnedFd, offset: u64) -> Result<()> {
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

fn duplicate(fd: RawFd) -> Result<OwnedFd> {
    // SAFETY: no memory is involved; checked.
    owned(
        unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3) },
        "a standard descriptor is closed",
    )
}

fn owned(fd: i32, what: &str) -> Result<OwnedFd> {
    match fd {
        fd if fd < 0 => Err(Error::io(what, io::Error::last_os_error())),
        // SAFETY: it is open and ours.
        fd => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
    }
}

fn memory(shared: &SharedMemory) -> Result<OwnedFd> {
    let name = shared.name.clone().unwrap_or_else(|| b"snaprig".to_vec());
    let name = CString::new(name).map_err(|_| damaged("a name with a zero"))?;
    // SAFETY: the name ends with a zero.
    let fd =
        unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    let memory = owned(fd, "memfd_create")?;
    let file = File::from(memory);
    file.set_len(shared.size)
        .map_err(|source| Error::io("memfd", source))?;
    // SAFETY: what was a file's is ours.
    Ok(unsafe { OwnedFd::from_raw_fd(file.into_raw_fd()) })
}

fn timer(clock: i32, setting: &[u64; 4]) -> Result<OwnedFd> {
    // SAFETY: no memory is involved; checked.
    let fd = owned(
        unsafe { libc::timerfd_create(clock, libc::TFD_CLOEXEC) },
        "timerfd_create",
    )?;
    let [interval, interval_nanos, value, value_nanos] = setting.map(|word| word as i64);
    let spec = libc::itimerspec {
        it_interval: libc::timespec {
            tv_sec: interval,
            tv_nsec: interval_nanos,
        },
        // What is left, whatever it was set to be.
        it_value: libc::timespec {
            tv_sec: value,
            tv_nsec: value_nanos,
        },
    };
    // SAFETY: `spec` is valid to read.
    let set =
        unsafe { libc::timerfd_settime(fd.as_raw_fd(), 0, &raw const spec, std::ptr::null_mut()) };
    match set {
        0 => Ok(fd),
        _ => Err(Error::io("timerfd_settime", io::Error::last_os_error())),
    }
}

fn raise_limit(needed: u64) -> Result<()> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is valid to write to and read.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
        if limit.rlim_cur >= needed {
            return Ok(());
        }
        limit.rlim_cur = needed;
        limit.rlim_max = limit.rlim_max.max(needed);
        match libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) {
            0 => Ok(()),
            _ => Err(Error::io(
                format!("{needed} open files (ulimit -n)"),
                io::Error::last_os_error(),
            )),
        }
    }
}
