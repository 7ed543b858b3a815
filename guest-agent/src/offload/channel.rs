//! A connection to the host that may be replaced by another one after a restore.

use std::{
    io,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
};

use serde::{Serialize, de::DeserializeOwned};

use super::Runtime;
use crate::{frames, scif::Endpoint};

/// The connection and its successors.
pub struct Channel {
    state: Mutex<State>,
    replaced: Condvar,
}

struct State {
    endpoint: Arc<Endpoint>,
    /// Somebody waits for its successor. There are hundreds of channels, and each call to wake
    /// nobody is a system call.
    awaited: bool,
}

impl Channel {
    /// A channel over its first endpoint.
    pub fn new(endpoint: Endpoint) -> Self {
        let state = State {
            endpoint: Arc::new(endpoint),
            awaited: false,
        };
        Self {
            state: Mutex::new(state),
            replaced: Condvar::new(),
        }
    }

    /// The endpoint of now.
    pub fn endpoint(&self) -> Arc<Endpoint> {
        self.lock().endpoint.clone()
    }

    /// The endpoint after a restore.
    pub fn replace(&self, endpoint: Endpoint) {
        self.lock().endpoint = Arc::new(endpoint);
        self.look_again();
    }

    /// Those who wait for a successor look again whether there will be one.
    pub fn look_again(&self) {
        let mut state = self.lock();
        if std::mem::take(&mut state.awaited) {
            self.replaced.notify_all();
        }
    }

    /// The next message. While the process is paused a broken connection is waited out.
    pub fn receive<T: DeserializeOwned>(&self, runtime: &Runtime) -> io::Result<T> {
        loop {
            if let Some(received) = self.receive_by(runtime, &self.endpoint(), frames::receive) {
                return received;
            }
        }
    }

    /// What this receives on this endpoint; `None` if it has a successor meanwhile.
    pub fn receive_by<T>(
        &self,
        runtime: &Runtime,
        endpoint: &Arc<Endpoint>,
        receive: impl FnOnce(&Endpoint) -> io::Result<T>,
    ) -> Option<io::Result<T>> {
        match receive(endpoint) {
            Err(_) if self.wait_for_successor(runtime, endpoint) => None,
            received => Some(received),
        }
    }

    /// Sends a message. Nobody sends while the process is paused.
    pub fn send<T: Serialize>(&self, message: &T) -> io::Result<()> {
        frames::send(&self.endpoint(), message)
    }

    /// False if the connection is simply lost: nobody is about to replace it.
    fn wait_for_successor(&self, runtime: &Runtime, broken: &Arc<Endpoint>) -> bool {
        let mut state = self.lock();
        while Arc::ptr_eq(&state.endpoint, broken) {
            if !runtime.lock().machine.is_quiet() {
                return false;
            }
            state.awaited = true;
            let woken = self.replaced.wait(state);
            state = woken.unwrap_or_else(PoisonError::into_inner);
        }
        true
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
