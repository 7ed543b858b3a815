//! How many files are open at once: whoever opens one more waits for his turn.

use std::sync::{Condvar, Mutex, PoisonError};

/// Most files of a kind that are open at once; each has memory of its own.
pub const STREAMS_MAX: usize = 4;

/// Who may have a file open.
pub struct Turns {
    taken: Mutex<usize>,
    freed: Condvar,
}

/// One of them may, until this is dropped.
pub struct Turn(&'static Turns);

impl Turns {
    pub const fn new() -> Self {
        Self {
            taken: Mutex::new(0),
            freed: Condvar::new(),
        }
    }

    /// Waits for one.
    pub fn take(&'static self) -> Turn {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let free = self.freed.wait_while(taken, |taken| *taken == STREAMS_MAX);
        *free.unwrap_or_else(PoisonError::into_inner) += 1;
        Turn(self)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        *self.0.taken.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.0.freed.notify_one();
    }
}
