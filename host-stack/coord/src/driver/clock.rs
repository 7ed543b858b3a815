//! Time as a machine has it.
//!
//! What must stay true: nobody is found silent in a time in which this thread did not run. It was stopped (SIGSTOP), or the
//! machine that it runs on was: what peers have sent meanwhile has not been read, and what would have had them answer was not
//! sent.

use std::time::{Duration, Instant};

use rustix::{
    event::{PollFd, Timespec, poll},
    io::Result,
};

use crate::Ns;

/// How late a thread may wake up and still have run.
const LATE_MAX: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Clock {
    start: Instant,
    /// In which it did not run.
    lost: Duration,
}

impl Clock {
    pub(super) fn new() -> Self {
        Self {
            start: Instant::now(),
            lost: Duration::ZERO,
        }
    }

    pub(super) fn now(&self) -> Ns {
        self.start.elapsed().saturating_sub(self.lost).as_nanos() as Ns
    }

    /// Waits until something comes, or until a time (poll(2)).
    pub(super) fn poll(&mut self, fds: &mut [PollFd<'_>], due: Option<Ns>) -> Result<usize> {
        let at_most = due.map(|due| Duration::from_nanos(due.saturating_sub(self.now())));
        let timeout = at_most.map(|at_most| Timespec {
            tv_sec: at_most.as_secs() as i64,
            tv_nsec: at_most.subsec_nanos().into(),
        });
        let begun = Instant::now();
        let ready = poll(fds, timeout.as_ref());
        if let Some(at_most) = at_most {
            self.waited(begun.elapsed(), at_most);
        }
        ready
    }

    fn waited(&mut self, took: Duration, at_most: Duration) {
        self.lost += took.saturating_sub(at_most).saturating_sub(LATE_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_that_was_slept_through_does_not_pass() {
        let mut clock = Clock::new();
        let day = Duration::from_secs(24 * 60 * 60);
        clock.start -= day;
        assert!(clock.now() >= day.as_nanos() as Ns);
        clock.waited(day, Duration::from_secs(5));
        let passed = Duration::from_nanos(clock.now());
        assert!(passed >= Duration::from_secs(6) && passed < Duration::from_secs(3600));
        let before = clock.lost;
        clock.waited(Duration::from_secs(6), Duration::from_secs(5));
        assert_eq!(clock.lost, before, "it was late, and no more");
    }
}
