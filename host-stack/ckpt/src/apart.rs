//! Work of a process of its own, which goes on to its end if this one is killed, whatever signals its terminal sends.

use std::{io, mem::MaybeUninit, ptr};

use libc::pid_t;

use crate::socket::check;

/// A process that works.
#[derive(Debug)]
pub struct Apart(pid_t);

impl Apart {
    /// Begins; `work` makes calls that need nothing of other threads, of which the process has none.
    pub fn begin(work: impl FnOnce()) -> io::Result<Self> {
        let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: the sets are valid to write to, and then to read.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        }
        // SAFETY: the child does its work, and ends.
        let child = check(unsafe { libc::fork() });
        if matches!(child, Ok(0)) {
            work();
            // SAFETY: nothing of this process is needed any more.
            unsafe { libc::_exit(0) };
        }
        // SAFETY: the set was written to above.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut()) };
        child.map(Self)
    }

    /// Waits until it is done.
    pub fn wait(self) {
        // SAFETY: the status is not asked for. Whoever else waits for children may have been told.
        unsafe { libc::waitpid(self.0, ptr::null_mut(), 0) };
    }
}
