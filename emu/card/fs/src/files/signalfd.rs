//! Descriptors that signals are read from (signalfd(2)).
//!
//! Which signals those are depends on who looks, so each call that asks for readiness first tells the
//! caller's descriptors what is pending for the caller.

use std::{
    any::Any,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use snaprig_card_driver::{
    file::{Description, File, PollMask},
    signals::SigSet,
};

/// A descriptor that signals are read from.
pub struct SignalFd {
    mask: AtomicU64,
    /// What is pending for whoever makes the call.
    pending: AtomicU64,
}

impl SignalFd {
    /// One for the signals in `mask`.
    pub fn new(mask: SigSet) -> Arc<Self> {
        Arc::new(Self {
            mask: AtomicU64::new(mask.blockable().0),
            pending: AtomicU64::new(0),
        })
    }

    /// The signals that are read from it.
    pub fn mask(&self) -> SigSet {
        SigSet(self.mask.load(Ordering::Relaxed))
    }

    /// Other signals are read from it from now on.
    pub fn set_mask(&self, mask: SigSet) {
        self.mask.store(mask.blockable().0, Ordering::Relaxed);
    }

    /// Tells it what is pending for whoever makes the next call.
    pub fn tell_pending(&self, pending: SigSet) {
        self.pending.store(pending.0, Ordering::Relaxed);
    }
}

impl File for SignalFd {
    fn poll(&self) -> PollMask {
        match self.pending.load(Ordering::Relaxed) & self.mask().0 {
            0 => 0,
            _ => libc::POLLIN,
        }
    }

    fn describe(&self) -> Description {
        Description::Signals { mask: self.mask() }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
