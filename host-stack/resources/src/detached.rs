//! Work of a process of its own, which goes on to its end if this one is killed, whatever signals its terminal sends.
//!
//! What must stay true: nobody takes it for the supervisor. So it has no descriptors but those of its work: the socket
//! on which the supervisor listens would answer for a dead one, and keep the next one from listening.

use std::{io, mem::MaybeUninit, os::fd::RawFd, ptr};

use libc::pid_t;

use crate::calls::check;

/// A process that works.
#[derive(Debug)]
pub struct Detached(pid_t);

impl Detached {
    /// Begins; `work` makes calls that need nothing of other threads, of which the process has none, nor descriptors
    /// but these.
    pub fn begin(mut keeps: Vec<RawFd>, work: impl FnOnce()) -> io::Result<Self> {
        keeps.sort_unstable();
        let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: sigfillset(3) writes all of the first set before pthread_sigmask(3) reads it, and that writes all of
        // the second.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        }
        // SAFETY: the child has one thread, all signals blocked, and a copy of this process's memory; `work` makes
        // calls that need nothing of other threads, as this function asks, and _exit(2) follows.
        let child = check(unsafe { libc::fork() });
        if matches!(child, Ok(0)) {
            close_but(&keeps);
            work();
            // SAFETY: _exit(2) takes a number, and runs nothing of this process's.
            unsafe { libc::_exit(0) };
        }
        // SAFETY: pthread_sigmask(3) has written the set above.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut()) };
        child.map(Self)
    }

    /// Waits until it is done.
    pub fn wait(self) {
        // SAFETY: with a null pointer waitpid(2) writes no status. The child is this value's own; if somebody else has
        // waited for it, it is an error.
        unsafe { libc::waitpid(self.0, ptr::null_mut(), 0) };
    }
}

/// Closes all descriptors but these, which ascend. By syscall(2): the C library of Debian 11 has no close_range(2).
fn close_but(keeps: &[RawFd]) {
    let mut first = 0;
    for keep in keeps.iter().map(|fd| *fd as u32) {
        if first < keep {
            // SAFETY: this runs in the child alone, whose work uses no descriptor but those that are kept; owners of
            // others in its copy of the memory are never dropped, for it ends by _exit(2).
            unsafe { libc::syscall(libc::SYS_close_range, first, keep - 1, 0) };
        }
        first = keep + 1;
    }
    // SAFETY: this runs in the child alone, whose work uses no descriptor but those that are kept; owners of others in
    // its copy of the memory are never dropped, for it ends by _exit(2).
    unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, 0) };
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        net::{TcpListener, TcpStream},
        os::{fd::AsRawFd, unix::net::UnixStream},
    };

    use super::*;

    #[test]
    fn nobody_takes_it_for_who_began_it() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (mut ours, mut its) = UnixStream::pair().unwrap();
        let apart = Detached::begin(vec![its.as_raw_fd()], || {
            its.write_all(b"begun").unwrap();
            its.read_exact(&mut [0]).unwrap();
        });
        drop(its);
        ours.read_exact(&mut [0; 5]).unwrap();
        drop(listener);
        let answers = TcpStream::connect(address).is_ok();
        ours.write_all(b".").unwrap();
        apart.unwrap().wait();
        assert!(!answers);
        assert_eq!(ours.read(&mut [0]).unwrap(), 0);
    }
}
