//! How a system call waits: it does not. It says what it waits for and ends; when that happens,
//! it is run again from the start.
//!
//! So a thread that waits holds no kernel state but its registers at the entry of the call, the
//! call's deadline and how many bytes it has moved, which is what makes it possible to capture it,
//! restore it elsewhere and let it restart the call (or return that count). A request that a call
//! has posted belongs to the file, keyed by thread.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use super::errno::Errno;

/// Something that threads wait for: each waitable object makes one and wakes it when its state
/// changes. Unique in the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Channel(u64);

impl Channel {
    /// A channel that nobody else has.
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

impl Default for Channel {
    fn default() -> Self {
        Self::new()
    }
}

/// What a call waits for: any of the channels, or the deadline.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wait {
    /// Waking any of these runs the call again.
    pub channels: Vec<Channel>,
    /// `CLOCK_MONOTONIC` time of the host at which it is run again anyway.
    pub deadline: Option<Duration>,
}

/// How a call ends other than with a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// It failed.
    Errno(Errno),
    /// Run it again when this happens. A signal ends the wait as signal(7) says.
    Wait(Wait),
}

impl Stop {
    /// Wait for one channel, for ever.
    pub fn wait(channel: Channel) -> Self {
        Self::Wait(Wait {
            channels: vec![channel],
            deadline: None,
        })
    }
}

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Self {
        Self::Errno(errno)
    }
}

/// The result of a system call, or of a step of one.
pub type SysResult<T = u64> = Result<T, Stop>;
