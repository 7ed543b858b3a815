//! A connect(2) that is on its way out of the card.

use std::{
    net::SocketAddrV4,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use snaprig_card_driver::{errno::Errno, wait::Channel};

use super::Doorbell;
use crate::files::socket::{Listener, Stream};

/// What became of it: the connection, or why there is none.
pub type Outcome = Result<Arc<Stream>, Errno>;

/// A connect(2) that is on its way.
pub struct Attempt {
    /// The family of its socket.
    pub domain: i32,
    /// The port that its socket is bound to; 0: any.
    pub from: u16,
    /// Where to.
    pub to: SocketAddrV4,
    /// What its socket is bound to.
    pub bound: Option<Arc<Listener>>,
    /// Woken when it has come to its end.
    pub channel: Channel,
    outcome: Mutex<Option<Outcome>>,
    is_given_up: AtomicBool,
    doorbell: OnceLock<Doorbell>,
}

impl Attempt {
    /// One of a socket of `domain`.
    pub fn new(
        domain: i32,
        from: u16,
        to: SocketAddrV4,
        bound: Option<Arc<Listener>>,
        channel: Channel,
    ) -> Arc<Self> {
        Arc::new(Self {
            domain,
            from,
            to,
            bound,
            channel,
            outcome: Mutex::default(),
            is_given_up: AtomicBool::new(false),
            doorbell: OnceLock::new(),
        })
    }

    pub(super) fn is_known_as(&self, doorbell: Doorbell) {
        self.doorbell.get_or_init(|| doorbell);
    }

    /// Its socket is closed.
    pub fn give_up(&self) {
        self.is_given_up.store(true, Ordering::Relaxed);
        if let Some(doorbell) = self.doorbell.get() {
            doorbell.ring();
        }
    }

    pub(super) fn is_given_up(&self) -> bool {
        self.is_given_up.load(Ordering::Relaxed)
    }

    /// What became of it, told once.
    pub fn take(&self) -> Option<Outcome> {
        self.lock().take()
    }

    pub(super) fn finish(&self, outcome: Outcome) {
        *self.lock() = Some(outcome);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Outcome>> {
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
