//! The host's eventfd for the interrupt vector, signalled without waiting.
//!
//! The host shares the eventfd's file description: it may take `O_NONBLOCK` away and fill the
//! counter at any time, and write(2) would then wait for ever. The kernel never waits when it
//! signals an eventfd itself, and that it does whenever an operation of an io_uring completes
//! (`IORING_REGISTER_EVENTFD`, io_uring_register(2)). So every signal is an operation that does
//! nothing.

use std::{
    io,
    os::fd::{AsRawFd, OwnedFd},
};

use io_uring::{IoUring, opcode};

/// `IORING_REGISTER_EVENTFD` and `IORING_UNREGISTER_EVENTFD` (io_uring_register(2)).
const EVENTFDS: [u8; 2] = [4, 5];

/// Where interrupts are signalled: an eventfd, or nowhere.
pub(super) struct Vector {
    ring: Option<IoUring>,
    event: Option<OwnedFd>,
    registered: bool,
}

impl Default for Vector {
    fn default() -> Self {
        Self {
            ring: snaprig_dma::restrict::ring(1, &[opcode::Nop::CODE], &EVENTFDS).ok(),
            event: None,
            registered: false,
        }
    }
}

impl Vector {
    /// Signals go to this eventfd from now on.
    pub(super) fn set(&mut self, event: Option<OwnedFd>) {
        if let Some(ring) = &self.ring {
            // Fails if none is registered.
            let _ = ring.submitter().unregister_eventfd();
            let register = |event: &OwnedFd| ring.submitter().register_eventfd(event.as_raw_fd());
            self.registered = event.as_ref().is_some_and(|event| register(event).is_ok());
        }
        self.event = event;
    }

    /// Signals. Without io_uring this is write(2), and a hostile host can hold the card up.
    pub(super) fn signal(&mut self) {
        if !self.registered || self.complete().is_err() {
            let event = self.event.as_ref();
            // Full means that a signal waits already.
            event.map(|event| rustix::io::write(event, &1u64.to_ne_bytes()));
        }
    }

    fn complete(&mut self) -> io::Result<()> {
        let ring = self.ring.as_mut().ok_or(io::ErrorKind::Unsupported)?;
        ring.completion().for_each(drop);
        // Full means that an operation waits to be submitted already.
        // SAFETY: an operation that does nothing (IORING_OP_NOP) refers to no memory.
        let _ = unsafe { ring.submission().push(&opcode::Nop::new().build()) };
        ring.submit().map(drop)
    }
}
