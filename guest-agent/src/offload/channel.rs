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
    endpoint: Mutex<Arc<Endpoint>>,
    replaced: Condvar,
}

impl Channel {
    /// A channel over its first endpoint.
    pub fn new(endpoint: Endpoint) -> Self {
        Self {
            endpoint: Mutex::new(Arc::new(endpoint)),
            replaced: Condvar::new(),
        }
    }

    /// The endpoint of now.
    pub fn endpoint(&self) -> Arc<Endpoint> {
        self.lock().clone()
    }

    /// The endpoint after a restore.
    pub fn replace(&self, endpoint: Endpoint) {
        *self.lock() = Arc::new(endpoint);
        self.replaced.notify_all();
    }

    /// Those who wait for a successor look again whether there will be one.
    pub fn look_again(&self) {
        let _held = self.lock();
        self.replaced.notify_all();
    }

    /// The next message. While the process is paused a broken connection is waited out.
    pub fn receive<T: DeserializeOwned>(&self, runtime: &Runtime) -> io::Result<T> {
        loop {
            if let Some(received) = self.receive_from(runtime, &self.endpoint()) {
                return received;
            }
        }
    }

    /// The next message on this endpoint; `None` if it has a successor meanwhile.
    pub fn receive_from<T: DeserializeOwned>(
        &self,
        runtime: &Runtime,
        endpoint: &Arc<Endpoint>,
    ) -> Option<io::Result<T>> {
        match frames::receive(endpoint) {
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
        let mut endpoint = self.lock();
        while Arc::ptr_eq(&endpoint, broken) {
            if !runtime.lock().machine.is_quiet() {
                return false;
            }
            endpoint = self
                .replaced
                .wait(endpoint)
                .unwrap_or_else(PoisonError::into_inner);
        }
        true
    }

    fn lock(&self) -> MutexGuard<'_, Arc<Endpoint>> {
        self.endpoint.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
