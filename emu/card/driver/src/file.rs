//! Open files: what a descriptor refers to.
//!
//! Everything a descriptor can name implements [`File`]: regular files and directories of the RAM
//! file system, pipes, sockets, eventfds, epolls, character devices, the console. Methods run
//! under the kernel lock and never block the host thread: they return `Stop::Wait` instead.

use std::{any::Any, time::Duration};

use serde::{Deserialize, Serialize};

use super::{
    device::{DeviceMemory, UserMemory, Waker},
    errno::Errno,
    signals::SigSet,
    wait::{Channel, SysResult},
};

/// Readiness, as poll(2) has it.
pub type PollMask = i16;

/// `bit` if `on`.
pub fn mask(on: bool, bit: PollMask) -> PollMask {
    if on { bit } else { 0 }
}

/// Who does something: process, user and group (`struct ucred`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The process.
    pub pid: i32,
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
}

impl Identity {
    /// Nobody who is known (unix(7)).
    pub const NOBODY: Self = Self {
        pid: 0,
        uid: u32::MAX,
        gid: u32::MAX,
    };
}

/// What a method of a file is given of the calling thread.
pub struct Cx<'a> {
    /// The calling thread's id: the key under which a call keeps what it must remember between
    /// attempts.
    pub tid: i32,
    /// The calling process's id.
    pub pid: i32,
    /// Who the caller is to others.
    pub identity: Identity,
    /// The caller's memory.
    pub memory: &'a mut dyn UserMemory,
    /// Wakes other threads. (From inside a method use this one, never a `Waker` kept elsewhere:
    /// the kernel lock is held.)
    pub wake: &'a mut dyn FnMut(Channel),
    /// For objects that must wake threads later, from outside.
    pub waker: &'a Waker,
    /// The caller asked for no waiting (`O_NONBLOCK`, `MSG_DONTWAIT`).
    pub nonblock: bool,
    /// Writes go to the end (`O_APPEND`).
    pub append: bool,
    /// `CLOCK_MONOTONIC` time of the host.
    pub now: Duration,
}

/// An open file description (open(2)).
pub trait File: Any + Send + Sync {
    /// Reads at the current position (or from the stream), at most `max` bytes. Empty: end of file.
    fn read(&self, _cx: &mut Cx, _max: usize) -> SysResult<Vec<u8>> {
        Err(Errno::EINVAL.into())
    }

    /// Reads at the current position (or from the stream) into `to`; 0: end of file.
    fn read_into(&self, cx: &mut Cx, to: &mut [u8]) -> SysResult<usize> {
        let bytes = self.read(cx, to.len())?;
        to[..bytes.len()].copy_from_slice(&bytes);
        Ok(bytes.len())
    }

    /// How many bytes a read would take away now: a read with a bad buffer must not.
    fn takes(&self) -> usize {
        0
    }

    /// Writes at the current position (or to the stream); returns the bytes taken, at least one.
    fn write(&self, _cx: &mut Cx, _data: &[u8]) -> SysResult<usize> {
        Err(Errno::EINVAL.into())
    }

    /// ioctl(2). Use `cx.memory` to reach the argument.
    fn ioctl(&self, _cx: &mut Cx, _request: u32, _argument: u64) -> SysResult<i64> {
        Err(Errno::ENOTTY.into())
    }

    /// What a device shows of `len` bytes (whole pages) at `offset`, to be shared (mmap(2)).
    fn map(&self, _cx: &mut Cx, _offset: u64, _len: u64, _prot: i32) -> SysResult<DeviceMemory> {
        Err(Errno::ENODEV.into())
    }

    /// What is ready now, as poll(2) events.
    fn poll(&self) -> PollMask {
        libc::POLLIN | libc::POLLOUT
    }

    /// How often something has happened that may make one of `events` ready: what an edge-triggered
    /// watcher is told of (epoll(7)). A file that does not count reports changes of [`File::poll`].
    fn edges(&self, _events: PollMask) -> u64 {
        0
    }

    /// The channels that are woken when [`File::poll`] may have changed.
    fn channels(&self) -> Vec<Channel> {
        Vec::new()
    }

    /// When [`File::poll`] may change without a wake: the time of a timer, on `CLOCK_MONOTONIC`.
    fn deadline(&self) -> Option<Duration> {
        None
    }

    /// The thread will not repeat the call that last returned `Stop::Wait`: forget its request.
    fn abandon(&self, _tid: i32) {}

    /// The last descriptor is gone.
    fn release(&self, _wake: &mut dyn FnMut(Channel)) {}

    /// What it is.
    fn describe(&self) -> Description;

    /// For code that needs the concrete type (`mmap` of a regular file, `accept` of a socket).
    fn as_any(&self) -> &dyn Any;
}

/// What a file is. Of one that does not depend on others this is all that an image says
/// (that of the file system says the rest), and a restore makes it again from that.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Description {
    /// A regular file or directory.
    Path {
        /// Absolute path.
        path: String,
        /// `O_*` flags of open(2).
        flags: i32,
        /// File position.
        position: u64,
    },
    /// A character device, opened again by path; what it was connected to is gone, and calls on it
    /// fail with `ECONNRESET` until the program opens a new one.
    Device {
        /// Absolute path.
        path: String,
        /// `O_*` flags of open(2).
        flags: i32,
    },
    /// An end of a pipe or FIFO.
    Pipe {
        /// The same number for all ends.
        id: u64,
    },
    /// An eventfd with its counter.
    Event {
        /// The counter.
        count: u64,
        /// `EFD_*` flags.
        flags: i32,
    },
    /// An epoll instance.
    Epoll,
    /// A socket.
    Socket,
    /// Standard input or output of the card's console: taken from the restorer's descriptors.
    Console,
    /// A signalfd.
    Signals {
        /// The signals that are read from it.
        mask: SigSet,
    },
    /// A descriptor of a process.
    Process,
    /// A timerfd.
    Timer {
        /// `CLOCK_*`.
        clock: i32,
        /// Time until it expires next; `None`: it does not.
        left: Option<Duration>,
        /// Time between expirations, or zero.
        interval: Duration,
        /// Expirations that have not been read.
        missed: u64,
    },
}
