//! What an image says of open files.

use serde::{Deserialize, Serialize};

use crate::state::{Lock, Notice, Owner, Socket, Watch};

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
        /// XXH3 of the end of it ([`crate::files::named::tail`]): who has the same there, and more, has grown.
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
        /// Number in [`crate::state::Tree::shared`].
        shared: u32,
        /// Offset.
        offset: u64,
    },
    /// One end of a pipe or FIFO, or both: number in [`crate::state::Tree::pipes`].
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
        /// Number in [`crate::state::Tree::terminals`].
        terminal: u32,
        /// The master's side.
        master: bool,
    },
    /// The terminal that the tree was on with its supervisor.
    Console,
    /// The plugin's of this name.
    Plugin(String),
    /// A process's connection to its supervisor, for its plugins.
    Supervisor,
}

/// The bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contents {
    /// Space of the image; several open files can be of one file.
    pub space: u32,
    /// Bytes.
    pub size: u64,
}

/// A file by its name, and what it must still be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileId {
    /// Absolute.
    pub path: Vec<u8>,
    /// Bytes.
    pub size: u64,
    /// Last modification, nanoseconds.
    pub modified_nanos: i64,
    /// XXH3 of its bytes, or 0: only size and modification count.
    pub hash: u64,
}
