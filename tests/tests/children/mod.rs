//! Processes that tests start, and wait for no longer than they should.

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, pidfd_open},
};

/// Whether a process ends within a minute (pidfd_open(2)).
pub fn ends(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let Ok(pidfd) = pidfd_open(pid.expect("a process"), PidfdFlags::empty()) else {
        return true;
    };
    let timeout = Timespec {
        tv_sec: 60,
        tv_nsec: 0,
    };
    let mut fds = [PollFd::new(&pidfd, PollFlags::IN)];
    poll(&mut fds, Some(&timeout)).expect("it is a pidfd") > 0
}
