//! What a supervisor hears from the kernel.

use std::{
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
};

use snaprig_resources::error::{Error, Result};

/// SIGCHLD and what ends a supervisor, as a descriptor.
pub struct Signals {
    /// Readable when one has come.
    pub fd: OwnedFd,
    /// The mask that programs are to have.
    pub before: libc::sigset_t,
}

impl Signals {
    /// Blocks them, and has them read.
    pub fn block() -> Result<Self> {
        // SAFETY: a set has numbers alone, for which zero is a value; the calls read and write sets of this frame, and
        // the descriptor that signalfd(2) returns is new, so nobody else owns it.
        unsafe {
            let (mut set, mut before) = std::mem::zeroed::<(libc::sigset_t, libc::sigset_t)>();
            for signal in [
                libc::SIGCHLD,
                libc::SIGTERM,
                libc::SIGHUP,
                libc::SIGINT,
                libc::SIGQUIT,
                // A file that is too large is an error, not the end.
                libc::SIGXFSZ,
            ] {
                libc::sigaddset(&raw mut set, signal);
            }
            libc::sigprocmask(libc::SIG_BLOCK, &raw const set, &raw mut before);
            match libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) {
                fd if fd < 0 => Err(Error::io("signalfd", io::Error::last_os_error())),
                fd => Ok(Self {
                    fd: OwnedFd::from_raw_fd(fd),
                    before,
                }),
            }
        }
    }

    /// The next one that has come.
    pub fn next(&self) -> Option<i32> {
        // SAFETY: the structure has numbers alone, for which zero is a value; read(2) writes at most as many bytes as
        // it has.
        unsafe {
            let mut info: libc::signalfd_siginfo = std::mem::zeroed();
            let bytes = size_of_val(&info);
            let read = libc::read(self.fd.as_raw_fd(), (&raw mut info).cast(), bytes);
            (read == bytes as isize).then_some(info.ssi_signo as i32)
        }
    }
}
