//! Makes writers of a range wait for a moment: userfaultfd(2), write protection.
//!
//! What must stay true: there is a [`Freeze`] only where writers really wait; but for system calls that write to the range, such as
//! another thread's read(2), which fail with EFAULT where the process may not have them wait ([`Userfault::of_all`]). No handler of a
//! signal runs on the thread that has it, which would wait for itself. Where the kernel has no userfaultfd(2) for
//! this process (containers often refuse it), or somebody else tracks the range by one (a supervisor that takes
//! checkpoints does), or for memory that it is not for (private pages of files, such as variables with a value), there is
//! one only if the calling thread is the only one that could write; else there is none, and whoever wants one leaves memory
//! where it is.

use std::{io, marker::PhantomData};

use snaprig_userfault::{Mode, Userfault, features::PROTECT_SHARED};

use crate::{pages::Range, threads};

/// A range whose writers wait until this is dropped.
pub struct Freeze {
    /// Closing it wakes them. None: there is no other writer.
    _userfault: Option<Userfault>,
    /// Handlers run when the writers have been woken.
    _signals: SignalsBlocked,
}

impl Freeze {
    /// Stops the writers of `range`, all of whose pages are there.
    pub fn new(range: Range) -> io::Result<Self> {
        let signals = SignalsBlocked::new();
        let userfault = match protect(range) {
            Ok(userfault) => Some(userfault),
            Err(_) if threads::is_alone() => None,
            Err(error) => return Err(error),
        };
        Ok(Self {
            _userfault: userfault,
            _signals: signals,
        })
    }
}

fn protect(range: Range) -> io::Result<Userfault> {
    let userfault = Userfault::of_all(PROTECT_SHARED)?;
    let area = range.start..range.end;
    userfault.register(&area, Mode::WriteProtect)?;
    userfault.protect(&area)?;
    Ok(userfault)
}

/// All signals wait for the calling thread, until this is dropped in it.
struct SignalsBlocked {
    before: libc::sigset_t,
    /// It is that thread's.
    _not_send: PhantomData<*const ()>,
}

impl SignalsBlocked {
    fn new() -> Self {
        // SAFETY: zeroes are a set of signals; both sets are this function's own, and of the size that libc writes.
        let before = unsafe {
            let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = std::mem::zeroed();
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, &raw mut before);
            before
        };
        Self {
            before,
            _not_send: PhantomData,
        }
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        // SAFETY: a set that pthread_sigmask has filled; nobody wants the one before.
        unsafe {
            libc::pthread_sigmask(
                libc::SIG_SETMASK,
                &raw const self.before,
                std::ptr::null_mut(),
            );
        }
    }
}
