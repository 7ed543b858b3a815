//! Signals that a command waits for, in place of being ended by them.

use std::{io, mem, ptr, time::Duration};

/// Those that there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGINT.
    Interrupt,
    /// SIGTERM.
    Terminate,
    /// SIGUSR1.
    User,
}

/// Signals that have a command end in order.
pub const ENDS: [Signal; 2] = [Signal::Interrupt, Signal::Terminate];

impl Signal {
    const ALL: [Self; 3] = [Self::Interrupt, Self::Terminate, Self::User];

    fn number(self) -> libc::c_int {
        match self {
            Self::Interrupt => libc::SIGINT,
            Self::Terminate => libc::SIGTERM,
            Self::User => libc::SIGUSR1,
        }
    }
}

/// Signals that wait.
pub struct Blocked(libc::sigset_t);

/// They wait from now on, in this thread and in those that it starts.
pub fn block(signals: &[Signal]) -> io::Result<Blocked> {
    // SAFETY: all zeros are a valid set, which sigemptyset makes an empty one; it is this function's alone while the calls
    // write to it or read it.
    unsafe {
        let mut set: libc::sigset_t = mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in signals {
            libc::sigaddset(&raw mut set, signal.number());
        }
        match libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, ptr::null_mut()) {
            0 => Ok(Blocked(set)),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }
}

impl Blocked {
    /// Waits for one of them.
    pub fn wait(&self) {
        let mut signal = 0;
        // SAFETY: both are valid for the call. It fails only for a set that is none.
        unsafe { libc::sigwait(&raw const self.0, &raw mut signal) };
    }

    /// Waits for one of them, for so long; none: there was none.
    pub fn wait_at_most(&self, time_max: Duration) -> Option<Signal> {
        let time = libc::timespec {
            tv_sec: time_max.as_secs().try_into().unwrap_or(libc::time_t::MAX),
            tv_nsec: time_max.subsec_nanos().into(),
        };
        // SAFETY: set and time are valid for the call; nobody wants to know more of the signal (sigtimedwait(2)).
        let signal =
            unsafe { libc::sigtimedwait(&raw const self.0, ptr::null_mut(), &raw const time) };
        Signal::ALL.into_iter().find(|one| one.number() == signal)
    }
}
