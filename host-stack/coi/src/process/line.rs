//! A connection whose messages a thread receives, unless somebody waits for one: who waits receives it, since to be woken by
//! that thread takes longer than most run functions.
//!
//! ```text
//!  thread:  receive soon --nothing, or somebody waits--> sleep until it is readable --> receive soon ...
//!  waiter:  receive soon --nothing--> sleep until the thread has it
//! ```
//! A sender rings only for a connection that nobody looks at. So the thread sleeps on while a waiter receives.
//!
//! What must stay true: what is not received by a waiter is received by the thread; at most one message is under way, so that
//! it does not matter which of the two handles it.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use serde::de::DeserializeOwned;
use snaprig_scif::client::{Endpoint, ScifError};

/// The connection, and who waits for its next message.
pub(crate) struct Line {
    pub endpoint: Arc<Endpoint>,
    /// It has no lanes: the thread alone receives.
    is_plain: bool,
    waiting: AtomicUsize,
}

impl Line {
    pub fn new(endpoint: Endpoint) -> Arc<Self> {
        Arc::new(Self {
            is_plain: !endpoint.has_lanes(),
            endpoint: Arc::new(endpoint),
            waiting: AtomicUsize::new(0),
        })
    }

    /// The next message, for the thread.
    pub fn receive<T: DeserializeOwned>(&self) -> Result<T, ScifError> {
        if self.is_plain {
            return self.endpoint.receive_message();
        }
        let gives_way = || self.waiting.load(Ordering::Relaxed) > 0;
        loop {
            if let Some(message) = self.endpoint.receive_soon(gives_way)? {
                return Ok(message);
            }
            self.endpoint.wait_readable()?;
        }
    }

    /// For who waits until it is `done`: what comes before that, if it comes soon, goes to `handle`.
    pub fn receive_until<T: DeserializeOwned>(
        &self,
        done: impl Fn() -> bool,
        mut handle: impl FnMut(T),
    ) -> Result<(), ScifError> {
        if self.is_plain {
            return Ok(());
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let received = loop {
            match self.endpoint.receive_soon(&done) {
                Ok(Some(message)) => handle(message),
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        received
    }
}
