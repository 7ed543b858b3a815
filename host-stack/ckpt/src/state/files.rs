//! What an image says of open files.

use serde::{Deserialize, Serialize};

use super::{FileId, Socket};

/// An open file description.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct OpenFile {
    /// What fcntl(F_GETFL) says.
    pub flags: i32,
    /// What it is.
    pub kind: Kind,
    /// Who gets its signals.
    pub owner: Option<Owner>,
    /// Locks and leases that are held through it.
    pub locks: Vec<Lock>,
}

/// Who gets the signals of an open file (F_SETOWN_EX, F_SETSIG).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// F_OWNER_: thread, process or group.
    pub kind: i32,
    /// Its number; 0: nobody.
    pub id: i32,
    /// Which signal; 0: SIGIO.
    pub signal: i32,
}

/// A lock on a file, or a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lock {
    /// What it was made with.
    pub by: LockedBy,
    /// It keeps readers out as well.
    pub write: bool,
    /// First byte.
    pub start: u64,
    /// Last byte; none: whatever there will be.
    pub end: Option<u64>,
}

/// What a lock was made with, and so who owns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LockedBy {
    /// flock(2): the description.
    Flock,
    /// F_OFD_SETLK: the description.
    Description,
    /// F_SETLK: the process of this number.
    Process(i32),
    /// F_SETLEASE: the description.
    Lease,
}

/// What an open file is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Kind {
    /// Standard input, output or error of the supervisor, or another pipe or socket that whoever launched it has passed on.
    Stdio(i32),
    /// A file or directory, or a device that has no state.
    Path {
        /// Absolute name.
        path: Vec<u8>,
        /// Offset.
        offset: u64,
        /// What it must still be, for regular files.
        file: Option<FileId>,
        /// XXH3 of the end of it ([`crate::dump::tail`]): who has the same there, and more, has grown.
        tail: u64,
        /// Its contents, if the program may write to it: a space of the image, and how long it is.
        contents: Option<Contents>,
        /// It has no name any more.
        unlinked: bool,
        /// Permissions.
        mode: u32,
    },
    /// A file or directory of /proc/PID: of which process, and what follows its number.
    Proc {
        /// The process.
        pid: i32,
        /// The rest of the name.
        path: Vec<u8>,
        /// Offset.
        offset: u64,
    },
    /// memfd_create(2), or what is mapped of one.
    Memory {
        /// Number in [`super::Tree::shared`].
        shared: u32,
        /// Offset.
        offset: u64,
    },
    /// One end of a pipe or FIFO, or both: number in [`super::Tree::pipes`].
    Pipe(u32),
    /// eventfd(2).
    Event {
        /// Count.
        count: u64,
        /// EFD_SEMAPHORE.
        semaphore: bool,
    },
    /// epoll(7).
    Epoll {
        /// Descriptor, events, data, and which file it was.
        watched: Vec<Watch>,
    },
    /// signalfd(2).
    Signal {
        /// The mask.
        mask: u64,
    },
    /// timerfd_create(2).
    Timer {
        /// Clock.
        clock: i32,
        /// Flags of timerfd_settime(2).
        settings: i32,
        /// Expirations that have not been read.
        ticks: u64,
        /// Interval and rest: seconds, nanoseconds each. The rest is a time if the clock is that of the day and the
        /// flags say so (TFD_TIMER_ABSTIME).
        setting: [u64; 4],
    },
    /// inotify(7).
    Inotify(Vec<Notice>),
    /// pidfd_open(2): a process of the tree, its supervisor, or, -1, one that has ended and been waited for.
    Pid(i32),
    /// socket(2).
    Socket(Box<Socket>),
    /// A side of a pseudoterminal.
    Terminal {
        /// Number in [`super::Tree::terminals`].
        terminal: u32,
        /// The master's side.
        master: bool,
    },
    /// The terminal that the tree was on with its supervisor.
    Console,
    /// userfaultfd, perf and the like, by the name of their kind: a plugin's, if it says so.
    Plugin(String),
}

/// One file that an epoll instance watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watch {
    /// Descriptor that it was added as.
    pub fd: i32,
    /// Number in [`super::Tree::files`].
    pub file: u32,
    /// EPOLL bits.
    pub events: u32,
    /// The program's.
    pub data: u64,
}

/// One file that an inotify instance watches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notice {
    /// Absolute name.
    pub path: Vec<u8>,
    /// IN_ bits.
    pub mask: u32,
    /// The watch descriptor.
    pub wd: i32,
}

/// The bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contents {
    /// Space of the image; several open files can be of one file.
    pub space: u32,
    /// Bytes.
    pub size: u64,
}

/// A pipe.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Pipe {
    /// A FIFO's name.
    pub fifo: Option<Fifo>,
    /// Bytes that it holds at most.
    pub capacity: u32,
    /// What is in it.
    pub contents: Vec<Part>,
    /// There are no writers any more, and readers know that there were some.
    pub hung_up: bool,
}

/// A FIFO of the file system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fifo {
    /// Absolute name.
    pub path: Vec<u8>,
    /// Permissions.
    pub mode: u32,
    /// It has no name any more.
    pub unlinked: bool,
}

/// Bytes in a pipe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// One read gets no more than these (O_DIRECT of pipe2(2)).
    pub is_packet: bool,
}

/// A pseudoterminal (pty(7)).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Terminal {
    /// N of /dev/pts/N.
    pub number: u32,
    /// Settings and size.
    pub look: Look,
    /// TIOCPKT.
    pub packets: bool,
    /// TIOCSPTLCK.
    pub locked: bool,
    /// TIOCEXCL.
    pub exclusive: bool,
    /// The slave has been open, and is not any more.
    pub hung_up: bool,
    /// The session that it controls, and its foreground group.
    pub session: Option<(i32, i32)>,
    /// What the slave has not read: lines, and what is not yet one.
    pub input: Vec<Line>,
    /// What the master has not read.
    pub output: Vec<u8>,
}

/// What can be read at once of a terminal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// It can be read, though it does not end with a newline (VEOF).
    pub is_pushed: bool,
}

/// Settings of a terminal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Look {
    /// `struct termios2`.
    pub settings: Vec<u8>,
    /// Rows, columns, and both in pixels.
    pub size: [u16; 4],
}

/// The terminal that a tree was on with its supervisor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Console {
    /// Settings and size.
    pub look: Look,
    /// The foreground group.
    pub group: i32,
}
