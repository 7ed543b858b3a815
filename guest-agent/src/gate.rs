//! A gate around a critical region (paper section 4.1, cases 1, 2 and 4): those who use the
//! channel pass through it, pause closes it and waits until nobody is inside, resume opens it.
//!
//! Not a mutex, because pause and resume are different calls, and perhaps different threads.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// The gate, open at first.
#[derive(Default)]
pub struct Gate {
    inner: Mutex<Inner>,
    changed: Condvar,
}

#[derive(Default)]
struct Inner {
    closed: bool,
    inside: usize,
}

/// Somebody is inside.
pub struct Pass<'a>(&'a Gate);

impl Gate {
    /// Waits until the gate is open, and goes in.
    pub fn enter(&self) -> Pass<'_> {
        let mut inner = self.lock();
        while inner.closed {
            inner = self
                .changed
                .wait(inner)
                .unwrap_or_else(PoisonError::into_inner);
        }
        inner.inside += 1;
        Pass(self)
    }

    /// Closes the gate and waits until everybody has left.
    pub fn close(&self) {
        let mut inner = self.lock();
        inner.closed = true;
        while inner.inside > 0 {
            inner = self
                .changed
                .wait(inner)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Opens it.
    pub fn open(&self) {
        self.lock().closed = false;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        self.0.lock().inside -= 1;
        self.0.changed.notify_all();
    }
}
