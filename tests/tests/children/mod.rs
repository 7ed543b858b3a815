//! Processes that tests start, and wait for no longer than they should.

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, pidfd_open},
};

/// Whether a process ends within so many seconds (pidfd_open(2)).
pub fn ends(pid: Pid, seconds: i64) -> bool {
    let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) else {
        return true;
    };
    let timeout = Timespec {
        tv_sec: seconds,
        tv_nsec: 0,
    };
    let mut fds = [PollFd::new(&pidfd, PollFlags::IN)];
    poll(&mut fds, Some(&timeout)).expect("it is a pidfd") > 0
}
