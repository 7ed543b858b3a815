//! When a run must be over, whatever it is at.

use std::{
    os::fd::AsFd,
    time::{Duration, Instant},
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::Error;

/// When everything must be over.
#[derive(Clone, Copy)]
pub struct Deadline(Instant);

impl Deadline {
    /// So long from now.
    pub fn after(time: Duration) -> Self {
        Self(Instant::now() + time)
    }

    /// What is left.
    pub fn left(self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }

    /// Waits until there is something to read, or for a process to end (pidfd_open(2)).
    pub fn wait_for(self, what: &str, fd: impl AsFd) -> Result<(), Error> {
        let mut fds = [PollFd::new(&fd, PollFlags::IN)];
        let left = self.left();
        let timeout = Timespec {
            tv_sec: left.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        };
        if poll(&mut fds, Some(&timeout))? == 0 {
            return Err(Self::passed(what));
        }
        Ok(())
    }

    /// What is said when it has passed.
    pub(crate) fn passed(what: &str) -> Error {
        Error::TimedOut { what: what.into() }
    }
}
