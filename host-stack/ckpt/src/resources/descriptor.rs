//! What /proc says of a descriptor, and what it is; or why it cannot be saved. All of it can be seen while the process
//! runs.

use std::{
    fs::{self, Metadata},
    os::unix::{
        ffi::OsStrExt,
        fs::{FileTypeExt, MetadataExt},
    },
    path::PathBuf,
};

use libc::pid_t;

use crate::error::{Error, Result};

/// Major numbers of devices: memory, terminals (tty, ptmx), slaves of pseudoterminals.
const MEMORY: u32 = 1;
const TERMINALS: u32 = 5;
const SLAVES: u32 = 136;

/// Protocols of sockets that can be saved, as the kernel calls them.
const PROTOCOLS: [&str; 9] = [
    "UNIX",
    "UNIX-STREAM",
    "TCP",
    "TCPv6",
    "MPTCP",
    "MPTCPv6",
    "UDP",
    "UDPv6",
    "NETLINK",
];
/// Of statfs(2): where mq_open(3) has its queues (MQUEUE_MAGIC).
const MESSAGE_QUEUES: i64 = 0x1980_0202;

/// What /proc/PID/fdinfo/FD says.
pub struct Info {
    /// Where reading and writing go on.
    pub offset: u64,
    /// F_GETFL, and O_CLOEXEC.
    pub flags: i32,
    fields: Vec<(String, String)>,
}

impl Info {
    fn read(pid: pid_t, fd: i32) -> Result<Self> {
        let path = format!("/proc/{pid}/fdinfo/{fd}");
        let text = fs::read_to_string(&path).map_err(|source| Error::io(path, source))?;
        // Some lines have no colon behind their key: "inotify wd:1 ino:..."
        let divided = |line: &str| match line.strip_prefix("inotify ") {
            Some(rest) => Some(("inotify".to_owned(), rest.to_owned())),
            None => line
                .split_once(':')
                .map(|(key, value)| (key.trim().to_owned(), value.trim().to_owned())),
        };
        let mut info = Self {
            offset: 0,
            flags: 0,
            fields: text.lines().filter_map(divided).collect(),
        };
        info.offset = info.number("pos").unwrap_or(0);
        let flags = info.get("flags");
        info.flags = flags
            .and_then(|text| i32::from_str_radix(text, 8).ok())
            .unwrap_or(0);
        Ok(info)
    }

    /// The first line with a key.
    pub fn get(&self, key: &str) -> Option<&str> {
        let found = self.fields.iter().find(|(name, _)| name == key);
        found.map(|(_, value)| &**value)
    }

    /// All lines with a key.
    pub fn all<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        let found = self.fields.iter().filter(move |(name, _)| name == key);
        found.map(|(_, value)| &**value)
    }

    /// A line that is a number.
    pub fn number(&self, key: &str) -> Option<u64> {
        self.get(key)?.parse().ok()
    }
}

/// A descriptor.
pub struct Seen {
    /// Who has it.
    pub pid: pid_t,
    /// Its number.
    pub fd: i32,
    /// What it is called.
    pub name: PathBuf,
    /// What stat(2) says of it.
    pub metadata: Metadata,
    /// More of it.
    pub info: Info,
}

/// What a descriptor is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Class {
    /// A file, directory or device without a state, by its name.
    Path,
    /// A file of /proc/PID: of whom, and the rest of its name.
    Proc(pid_t, Vec<u8>),
    /// A memfd of that name.
    Memory(Vec<u8>),
    /// A pipe or FIFO.
    Pipe,
    Socket,
    /// A side of a terminal.
    Terminal,
    Event,
    Epoll,
    Signal,
    Timer,
    Inotify,
    /// A pidfd; -1: of one that is gone.
    Pid(pid_t),
}

impl Seen {
    /// Looks at a descriptor.
    pub fn look(pid: pid_t, fd: i32) -> Result<Self> {
        let path = format!("/proc/{pid}/fd/{fd}");
        let failed = |source| Error::io(path.clone(), source);
        Ok(Self {
            pid,
            fd,
            name: fs::read_link(&path).map_err(failed)?,
            metadata: fs::metadata(&path).map_err(failed)?,
            info: Info::read(pid, fd)?,
        })
    }

    /// Where its file can be opened, whatever has become of its name.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/fd/{}", self.pid, self.fd))
    }

    /// It cannot be saved.
    pub fn refused(&self, why: &str) -> Error {
        let (name, fd) = (self.name.display(), self.fd);
        let what = format!("it has {name} open as descriptor {fd}: {why}");
        Error::refused(self.pid, what)
    }

    /// It stands for a name alone (O_PATH).
    pub fn is_name(&self) -> bool {
        self.info.flags & libc::O_PATH != 0
    }

    /// Its name, if it has lost it.
    pub fn lost_name(&self) -> Option<&[u8]> {
        let name = self.name.as_os_str().as_bytes();
        name.strip_suffix(b" (deleted)")
            .filter(|_| self.metadata.nlink() == 0)
    }

    /// What it is; `is_ours` says whether a process is of the tree.
    pub fn class(&self, is_ours: impl Fn(pid_t) -> bool) -> Result<Class> {
        let name = self.name.as_os_str().as_bytes();
        if let Some(kind) = name.strip_prefix(b"anon_inode:") {
            return self.anonymous(kind, is_ours);
        }
        if name.starts_with(b"pidfd:") {
            return self.pidfd(is_ours);
        }
        if let Some(memory) = name.strip_prefix(b"/memfd:") {
            let memory = memory.strip_suffix(b" (deleted)").unwrap_or(memory);
            return Ok(Class::Memory(memory.to_vec()));
        }
        if name == b"/secretmem (deleted)" {
            return Err(self.refused("secret memory can be read by nobody else"));
        }
        if let Some((pid, rest)) = of_process(name) {
            return self.proc(pid, rest, is_ours);
        }
        if !name.starts_with(b"/") && !name.starts_with(b"pipe:") && !name.starts_with(b"socket:") {
            return Err(self.refused("an object of the kernel that cannot be saved"));
        }
        let kind = self.metadata.file_type();
        if self.is_name() {
            return self.by_name();
        }
        if kind.is_fifo() {
            return Ok(Class::Pipe);
        }
        if kind.is_socket() {
            return self.socket();
        }
        if kind.is_char_device() {
            return self.device();
        }
        if kind.is_block_device() {
            return Err(self.refused("a device"));
        }
        self.by_name()
    }

    /// A socket of a kind that can be saved, as far as its protocol's name tells: before anything stops.
    fn socket(&self) -> Result<Class> {
        let mut name = [0; 32];
        let read = rustix::fs::getxattr(self.path(), "system.sockprotoname", &mut name);
        let name = String::from_utf8_lossy(&name[..read.unwrap_or(0)]);
        let name = name.trim_end_matches('\0');
        match name.is_empty() || PROTOCOLS.contains(&name) {
            true => Ok(Class::Socket),
            false => {
                Err(self.refused(&format!("a socket of a kind that cannot be saved ({name})")))
            }
        }
    }

    /// A file whose name must lead to it, or nowhere.
    fn by_name(&self) -> Result<Class> {
        let system = rustix::fs::statfs(self.path());
        if system.is_ok_and(|system| system.f_type == MESSAGE_QUEUES) {
            return Err(self.refused("a POSIX message queue"));
        }
        let is_it = |other: &Metadata| {
            (other.dev(), other.ino()) == (self.metadata.dev(), self.metadata.ino())
        };
        match self.lost_name() {
            Some(_) if !self.is_name() && self.metadata.is_file() => Ok(Class::Path),
            Some(_) => Err(self.refused("it has been removed")),
            None => match fs::symlink_metadata(&self.name).is_ok_and(|other| is_it(&other)) {
                true => Ok(Class::Path),
                false => Err(self.refused("its name is another file's now, or gone")),
            },
        }
    }

    fn device(&self) -> Result<Class> {
        let number = self.metadata.rdev();
        match (libc::major(number), libc::minor(number)) {
            // null, zero, full, random, urandom: opened again they are what they were.
            (MEMORY, 3 | 5 | 7 | 8 | 9) => Ok(Class::Path),
            // tty and ptmx.
            (TERMINALS, 0 | 2) | (SLAVES, _) => Ok(Class::Terminal),
            _ => Err(self.refused("a device, whose state is known to its driver alone")),
        }
    }

    fn anonymous(&self, kind: &[u8], is_ours: impl Fn(pid_t) -> bool) -> Result<Class> {
        Ok(match kind {
            b"[eventfd]" => Class::Event,
            b"[eventpoll]" => Class::Epoll,
            b"[signalfd]" => Class::Signal,
            b"[timerfd]" => Class::Timer,
            b"inotify" => Class::Inotify,
            b"[pidfd]" => return self.pidfd(is_ours),
            _ => return Err(self.refused("an object of the kernel that cannot be saved")),
        })
    }

    fn pidfd(&self, is_ours: impl Fn(pid_t) -> bool) -> Result<Class> {
        /// PIDFD_THREAD.
        const OF_THREAD: i32 = libc::O_EXCL;
        let pid = self.info.get("Pid").and_then(|pid| pid.parse().ok());
        match pid {
            _ if self.info.flags & OF_THREAD != 0 => Err(self.refused("a thread's pidfd")),
            Some(pid) if pid == -1 || is_ours(pid) => Ok(Class::Pid(pid)),
            _ => Err(self.refused(&format!(
                "the pidfd of process {}, which is outside",
                pid.unwrap_or(0)
            ))),
        }
    }

    fn proc(&self, pid: pid_t, rest: &[u8], is_ours: impl Fn(pid_t) -> bool) -> Result<Class> {
        let thread = rest.strip_prefix(b"/task/").map(|rest| {
            let digits = rest.split(|byte| *byte == b'/').next();
            digits.and_then(number)
        });
        match thread {
            _ if !is_ours(pid) => Err(self.refused("of a process outside")),
            Some(tid) if tid != Some(pid) => Err(self.refused("of a thread")),
            _ => Ok(Class::Proc(pid, rest.to_vec())),
        }
    }
}

/// `/proc/123/status`: whose, and the rest.
fn of_process(name: &[u8]) -> Option<(pid_t, &[u8])> {
    let rest = name.strip_prefix(b"/proc/")?;
    let end = rest.iter().position(|byte| *byte == b'/');
    let (digits, rest) = rest.split_at(end.unwrap_or(rest.len()));
    Some((number(digits)?, rest))
}

fn number(digits: &[u8]) -> Option<pid_t> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}
