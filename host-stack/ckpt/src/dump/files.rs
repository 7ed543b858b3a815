//! The open files of a tree: each once, however many descriptors it has.

use std::{
    collections::{BTreeMap, HashMap},
    fs::{self, File, Metadata},
    io,
    os::{
        fd::{AsRawFd, FromRawFd, OwnedFd},
        unix::{
            ffi::OsStrExt,
            fs::{FileTypeExt, MetadataExt, PermissionsExt},
        },
    },
    path::PathBuf,
};

use libc::pid_t;

use super::{
    areas::{Shared, id_of},
    named::Named,
    sockets::Sockets,
};
use crate::{
    error::{Error, Result},
    state::{Contents, Descriptor, Kind, Message, OpenFile, Watch},
};

/// Files that a program writes to are saved up to so many bytes; of larger ones only what they are is remembered.
pub const CONTENTS_MAX: u64 = 256 << 20;

/// Open files, as they are met.
#[derive(Debug, Default)]
pub struct Files {
    /// What each is.
    pub open: Vec<OpenFile>,
    /// Who has each first: process and descriptor.
    first: Vec<(pid_t, i32)>,
    /// Those that may be the same.
    alike: HashMap<(u64, u64, u64), Vec<u32>>,
    /// Contents to be saved: which file's, and where it can be opened.
    pub contents: Vec<(u32, PathBuf)>,
    /// Epoll instances are resolved when all are known: their lines of fdinfo.
    epolls: Vec<(u32, pid_t, Vec<Target>)>,
    /// Descriptor tables met: who can see what an epoll's numbers mean.
    tables: BTreeMap<(pid_t, i32), u32>,
    /// Sockets.
    pub sockets: Sockets,
    /// Copies of files that no process has.
    pub kept: Vec<OwnedFd>,
}

/// pidfd_open(2), since Linux 6.9.
const PIDFD_THREAD: i32 = libc::O_EXCL;

/// What an epoll instance watches: descriptor, events, data.
type Target = (i32, u32, u64);

/// What /proc/PID/fdinfo/FD says.
struct Info {
    offset: u64,
    flags: i32,
    fields: Vec<(String, String)>,
}

impl Info {
    fn read(pid: pid_t, fd: i32) -> Result<Self> {
        let path = format!("/proc/{pid}/fdinfo/{fd}");
        let text = fs::read_to_string(&path).map_err(|source| Error::io(path, source))?;
        let fields: Vec<(String, String)> = text
            .lines()
            .filter_map(|line| line.split_once(':'))
            .map(|(key, value)| (key.trim().to_owned(), value.trim().to_owned()))
            .collect();
        let mut info = Self {
            offset: 0,
            flags: 0,
            fields,
        };
        info.offset = info
            .get("pos")
            .and_then(|text| text.parse().ok())
            .unwrap_or(0);
        let flags = info
            .get("flags")
            .and_then(|text| i32::from_str_radix(text, 8).ok());
        info.flags = flags.unwrap_or(0);
        Ok(info)
    }

    fn get(&self, key: &str) -> Option<&str> {
        let found = self.fields.iter().find(|(name, _)| name == key);
        found.map(|(_, value)| &**value)
    }

    fn number(&self, key: &str) -> Option<u64> {
        self.get(key)?.parse().ok()
    }
}

impl Files {
    /// The descriptors of a process.
    pub fn of(
        &mut self,
        pid: pid_t,
        shared: &mut Shared,
        named: &mut Named,
    ) -> Result<Vec<Descriptor>> {
        let path = format!("/proc/{pid}/fd");
        let entries = fs::read_dir(&path).map_err(|source| Error::io(path, source))?;
        let names = entries.flatten().map(|entry| entry.file_name());
        let mut numbers: Vec<i32> = names
            .filter_map(|name| name.to_str()?.parse().ok())
            .collect();
        numbers.sort_unstable();
        let mut descriptors = Vec::new();
        for fd in numbers {
            let info = Info::read(pid, fd)?;
            let file = self.meet(pid, fd, &info, shared, named)?;
            self.tables.insert((pid, fd), file);
            descriptors.push(Descriptor {
                fd,
                file,
                close_on_exec: info.flags & libc::O_CLOEXEC != 0,
            });
        }
        Ok(descriptors)
    }

    fn meet(
        &mut self,
        pid: pid_t,
        fd: i32,
        info: &Info,
        shared: &mut Shared,
        named: &mut Named,
    ) -> Result<u32> {
        let path = PathBuf::from(format!("/proc/{pid}/fd/{fd}"));
        let metadata = fs::metadata(&path);
        let metadata = metadata.map_err(|source| Error::io(path.display().to_string(), source))?;
        let alike = (metadata.dev(), metadata.ino(), info.offset);
        let candidates = self.alike.get(&alike).cloned().unwrap_or_default();
        for file in candidates {
            let (other, number) = self.first[file as usize];
            if is_same_file((pid, fd), (other, number)) {
                return Ok(file);
            }
        }
        let number = self.open.len() as u32;
        self.alike.entry(alike).or_default().push(number);
        self.first.push((pid, fd));
        // Its place: epolls may watch themselves in a circle.
        self.open.push(OpenFile {
            flags: info.flags & !libc::O_CLOEXEC,
            kind: Kind::Plugin(String::new()),
            owner: None,
        });
        let kind = self.kind(number, pid, fd, info, &path, &metadata, shared, named)?;
        self.open[number as usize].kind = kind;
        Ok(number)
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "all that is known of a descriptor"
    )]
    fn kind(
        &mut self,
        number: u32,
        pid: pid_t,
        fd: i32,
        info: &Info,
        path: &PathBuf,
        metadata: &Metadata,
        shared: &mut Shared,
        named: &mut Named,
    ) -> Result<Kind> {
        // SAFETY: getpid has no preconditions.
        let me = unsafe { libc::getpid() };
        if let Some(own) = (0..3).find(|own| is_same_file((pid, fd), (me, *own))) {
            return Ok(Kind::Stdio(own));
        }
        let target =
            fs::read_link(path).map_err(|source| Error::io(path.display().to_string(), source))?;
        let name = target.as_os_str().as_bytes();
        let refused = |what: &str| {
            let target = target.display();
            Err(Error::refused(
                pid,
                format!("descriptor {fd} is {what} ({target})"),
            ))
        };
        let kind = metadata.file_type();
        if let Some(anonymous) = name.strip_prefix(b"anon_inode:") {
            return match anonymous {
                b"[eventfd]" => Ok(Kind::Event {
                    count: info.get("eventfd-count").and_then(hex).unwrap_or(0),
                    semaphore: info.number("eventfd-semaphore") == Some(1),
                }),
                b"[eventpoll]" => {
                    self.epolls.push((number, pid, watched(info)));
                    Ok(Kind::Epoll {
                        watched: Vec::new(),
                    })
                }
                b"[signalfd]" => Ok(Kind::Signal {
                    mask: info.get("sigmask").and_then(hex).unwrap_or(0),
                }),
                b"[timerfd]" => {
                    timer(info).map_or_else(|| refused("a timer that is not understood"), Ok)
                }
                b"[pidfd]" => match info.get("Pid").and_then(|pid| pid.parse().ok()) {
                    Some(pid) => Ok(Kind::Pid(pid)),
                    None => refused("of a process outside"),
                },
                _ => refused("of a kind that cannot be saved"),
            };
        }
        if name == b"[pidfd]" || name.starts_with(b"pidfd:") {
            return match info.get("Pid").and_then(|pid| pid.parse().ok()) {
                Some(pid) => Ok(Kind::Pid(pid)),
                None => refused("of a process outside"),
            };
        }
        if kind.is_fifo() && name.starts_with(b"pipe:") {
            return pipe(pid, fd, info, metadata);
        }
        if kind.is_socket() {
            let (mut socket, messages) = self.sockets.meet(number, (pid, fd), metadata.ino())?;
            for message in messages {
                let files = self.passed(message.files, shared, named)?;
                socket.received.push(Message {
                    bytes: message.bytes,
                    files,
                    from: message.from,
                });
            }
            return Ok(Kind::Socket(Box::new(socket)));
        }
        if let Some(memfd) = name.strip_prefix(b"/memfd:") {
            let memfd = memfd.strip_suffix(b" (deleted)").unwrap_or(memfd);
            let object = shared.meet(id_of(metadata), Some(memfd.to_vec()));
            let object_of = &mut shared.met[object];
            object_of.size = metadata.len();
            object_of.open = Some((pid, fd));
            let copy = copy_of(pid, fd)?;
            // SAFETY: no memory is involved.
            object_of.seals = unsafe { libc::fcntl(copy.as_raw_fd(), libc::F_GET_SEALS) }.max(0);
            return Ok(Kind::Memory {
                shared: object as u32,
                offset: info.offset,
            });
        }
        if kind.is_fifo() {
            return refused("a FIFO");
        }
        if kind.is_char_device() && !is_stateless(metadata) {
            return refused("a device");
        }
        if kind.is_block_device() {
            return refused("a device");
        }
        let gone = name
            .strip_suffix(b" (deleted)")
            .filter(|_| metadata.nlink() == 0);
        let is_regular = kind.is_file();
        let writes = info.flags & libc::O_ACCMODE != libc::O_RDONLY;
        let is_saved = is_regular && (gone.is_some() || writes) && metadata.len() <= CONTENTS_MAX;
        if gone.is_some() && is_regular && !is_saved {
            return refused("a large file without a name");
        }
        if is_saved {
            self.contents.push((number, path.clone()));
        }
        Ok(Kind::Path {
            path: gone.unwrap_or(name).to_vec(),
            offset: info.offset,
            file: match is_regular && gone.is_none() {
                true => Some(named.file(pid, &target, false)?),
                false => None,
            },
            contents: is_saved.then_some(Contents {
                space: 0,
                size: metadata.len(),
            }),
            unlinked: gone.is_some(),
            mode: metadata.permissions().mode() & 0o7777,
            lock: 0,
            record_locks: Vec::new(),
        })
    }

    /// Files that are on their way from process to process: they are this process's as well until all is saved.
    fn passed(
        &mut self,
        copies: Vec<OwnedFd>,
        shared: &mut Shared,
        named: &mut Named,
    ) -> Result<Vec<u32>> {
        let mut numbers = Vec::new();
        for copy in copies {
            // SAFETY: getpid has no preconditions.
            let (me, fd) = (unsafe { libc::getpid() }, copy.as_raw_fd());
            self.kept.push(copy);
            let info = Info::read(me, fd)?;
            numbers.push(self.meet(me, fd, &info, shared, named)?);
        }
        Ok(numbers)
    }

    /// Says of epoll instances what they watch, and of sockets who is at their other end, when all files are known.
    pub fn resolve(&mut self) -> Result<()> {
        self.sockets.join(&mut self.open)?;
        for (number, pid, lines) in std::mem::take(&mut self.epolls) {
            let mut found = Vec::new();
            for (fd, events, data) in lines {
                // What it watches may be closed here and open in a child.
                let Some(file) = self.tables.get(&(pid, fd)) else {
                    let what =
                        format!("an epoll instance watches descriptor {fd}, which is closed");
                    return Err(Error::refused(pid, what));
                };
                found.push(Watch {
                    fd,
                    file: *file,
                    events,
                    data,
                });
            }
            self.open[number as usize].kind = Kind::Epoll { watched: found };
        }
        Ok(())
    }
}

/// Whether two descriptors are of one open file (kcmp(2)).
fn is_same_file((pid, fd): (pid_t, i32), (other, number): (pid_t, i32)) -> bool {
    const KCMP_FILE: i32 = 0;
    // SAFETY: no memory is involved.
    unsafe {
        libc::syscall(
            libc::SYS_kcmp,
            pid,
            other,
            KCMP_FILE,
            fd as u64,
            number as u64,
        ) == 0
    }
}

/// A descriptor of this process for the same open file (pidfd_getfd(2)).
pub fn copy_of(pid: pid_t, fd: i32) -> Result<OwnedFd> {
    let failed = || {
        Error::io(
            format!("descriptor {fd} of process {pid}"),
            io::Error::last_os_error(),
        )
    };
    // SAFETY: no memory is involved; the results are checked, and ours.
    unsafe {
        let mut process = libc::syscall(libc::SYS_pidfd_open, pid, 0);
        if process < 0 {
            // A thread: the first one of its process has ended.
            process = libc::syscall(libc::SYS_pidfd_open, pid, PIDFD_THREAD);
        }
        if process < 0 {
            return Err(failed());
        }
        let process = OwnedFd::from_raw_fd(process as i32);
        let copy = libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), fd, 0);
        match copy {
            copy if copy < 0 => Err(failed()),
            copy => Ok(OwnedFd::from_raw_fd(copy as i32)),
        }
    }
}

fn hex(text: &str) -> Option<u64> {
    u64::from_str_radix(text, 16).ok()
}

/// `tfd: 5 events: 19 data: 5 pos:0 ino:61af sdev:7`, one line a descriptor.
fn watched(info: &Info) -> Vec<Target> {
    let lines = info.fields.iter().filter(|(key, _)| key == "tfd");
    lines
        .filter_map(|(_, line)| {
            let mut words = line.split_whitespace();
            let fd = words.next()?.parse().ok()?;
            let events = words
                .nth(1)
                .and_then(|word| u32::from_str_radix(word, 16).ok())?;
            let data = words.nth(1).and_then(hex)?;
            Some((fd, events, data))
        })
        .collect()
}

/// `clockid: 1`, `ticks: 0`, `settime flags: 01`, `it_value: (0, 49406829)`, `it_interval: (1, 0)`.
fn timer(info: &Info) -> Option<Kind> {
    let pair = |key| -> Option<[u64; 2]> {
        let text: &str = info.get(key)?;
        let (seconds, nanos) = text.trim_matches(['(', ')']).split_once(", ")?;
        Some([seconds.parse().ok()?, nanos.parse().ok()?])
    };
    let ([value, value_nanos], [interval, interval_nanos]) =
        (pair("it_value")?, pair("it_interval")?);
    Some(Kind::Timer {
        clock: info.number("clockid")? as i32,
        settings: i32::from_str_radix(info.get("settime flags")?, 8).ok()?,
        ticks: info.number("ticks")?,
        setting: [interval, interval_nanos, value, value_nanos],
    })
}

/// /dev/null, zero, full, random, urandom: opened again they are what they were.
fn is_stateless(metadata: &Metadata) -> bool {
    let number = metadata.rdev();
    libc::major(number) == 1 && [3, 5, 7, 8, 9].contains(&libc::minor(number))
}

/// One end of a pipe. What is in it goes with an end that can be read, and is copied by tee(2).
fn pipe(pid: pid_t, fd: i32, info: &Info, metadata: &Metadata) -> Result<Kind> {
    let end = copy_of(pid, fd)?;
    let reads = info.flags & libc::O_ACCMODE == libc::O_RDONLY;
    let failed = |source| Error::Process {
        pid,
        what: format!("the pipe at descriptor {fd}"),
        source,
    };
    // SAFETY: no memory is involved.
    let capacity = unsafe { libc::fcntl(end.as_raw_fd(), libc::F_GETPIPE_SZ) };
    let bytes = match reads {
        true => peek_pipe(end, capacity).map_err(failed)?,
        false => Vec::new(),
    };
    Ok(Kind::Pipe {
        pipe: metadata.ino(),
        reads,
        capacity: u32::try_from(capacity).unwrap_or(64 << 10),
        bytes,
        packets: Vec::new(),
    })
}

/// What is in a pipe, which stays there.
fn peek_pipe(end: OwnedFd, capacity: i32) -> io::Result<Vec<u8>> {
    let (ours, theirs) = rustix::pipe::pipe()?;
    // SAFETY: no memory is involved.
    unsafe { libc::fcntl(theirs.as_raw_fd(), libc::F_SETPIPE_SZ, capacity) };
    // SAFETY: no memory is involved.
    let moved = unsafe {
        let flags = libc::SPLICE_F_NONBLOCK;
        libc::tee(
            end.as_raw_fd(),
            theirs.as_raw_fd(),
            capacity as usize,
            flags,
        )
    };
    if moved < 0 {
        let error = io::Error::last_os_error();
        return match error.kind() {
            io::ErrorKind::WouldBlock => Ok(Vec::new()),
            _ => Err(error),
        };
    }
    drop(theirs);
    let mut bytes = Vec::with_capacity(moved as usize);
    io::Read::read_to_end(&mut File::from(ours), &mut bytes)?;
    Ok(bytes)
}
