//! Makes writers of a range wait for a moment: userfaultfd(2), write protection.
//!
//! What must stay true: there is a [`Freeze`] only where writers really wait. Where the kernel has no userfaultfd(2) for
//! this process (containers often refuse it), or somebody else tracks the range by one (a supervisor that takes
//! checkpoints does), or for memory that it is not for (private pages of files, such as variables with a value), there is
//! one only if the calling thread is the only one that could write; else there is none, and whoever wants one leaves memory
//! where it is.

use std::{io, marker::PhantomData};

use snaprig_userfault::{Mode, Userfault, features::PROTECT_SHARED};

use crate::{pages::Range, threads};

/// A range whose writers wait until this is dropped.
pub enum Freeze {
    /// Closing it wakes them.
    Waiting { _userfault: Userfault },
    /// There is no other writer, and no handler of a signal runs.
    Alone { _signals: SignalsBlocked },
}

impl Freeze {
    /// Stops the writers of `range`, all of whose pages are there.
    pub fn new(range: Range) -> io::Result<Self> {
        Self::waiting(range).or_else(|error| {
            let signals = SignalsBlocked::new();
            match threads::is_alone() {
                true => Ok(Self::Alone { _signals: signals }),
                false => Err(error),
            }
        })
    }

    fn waiting(range: Range) -> io::Result<Self> {
        let userfault = Userfault::own(PROTECT_SHARED)?;
        let area = range.start..range.end;
        userfault.register(&area, Mode::WriteProtect)?;
        userfault.protect(&area)?;
        Ok(Self::Waiting {
            _userfault: userfault,
        })
    }
}

/// All signals wait for the calling thread, until this is dropped in it.
pub struct SignalsBlocked {
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
