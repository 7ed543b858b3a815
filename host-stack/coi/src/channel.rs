//! Messages on a connection that a restore may replace by another one.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use serde::{Serialize, de::DeserializeOwned};
use snaprig_scif::client::{Endpoint, ScifError};
use snaprig_wire::frame;

/// Sends one message.
pub fn send<T: Serialize>(to: &Endpoint, message: &T) -> Result<(), ScifError> {
    to.send(&frame::encode_framed(message))
}

/// Receives one message.
pub fn receive<T: DeserializeOwned>(from: &Endpoint) -> Result<T, ScifError> {
    let mut prefix = [0; 4];
    from.recv_exact(&mut prefix)?;
    let broken = || ScifError {
        call: "scif_recv",
        errno: libc::EPROTO,
    };
    let mut body = vec![0; frame::frame_len(prefix).map_err(|_| broken())?];
    from.recv_exact(&mut body)?;
    frame::decode(&body).map_err(|_| broken())
}

/// The connection and its successors.
pub struct Channel {
    endpoint: Mutex<Arc<Endpoint>>,
    changed: Condvar,
}

impl Channel {
    /// A channel over its first endpoint.
    pub fn new(endpoint: Endpoint) -> Self {
        Self {
            endpoint: Mutex::new(Arc::new(endpoint)),
            changed: Condvar::new(),
        }
    }

    /// The endpoint of now.
    pub fn endpoint(&self) -> Arc<Endpoint> {
        self.lock().clone()
    }

    /// The endpoint after a restore.
    pub fn replace(&self, endpoint: Endpoint) {
        *self.lock() = Arc::new(endpoint);
        self.changed.notify_all();
    }

    /// Those who wait for a successor look again whether there will be one.
    pub fn look_again(&self) {
        let _held = self.lock();
        self.changed.notify_all();
    }

    /// The next message. As long as `paused` says so, a broken connection is waited out.
    pub fn receive<T: DeserializeOwned>(&self, paused: impl Fn() -> bool) -> Result<T, ScifError> {
        loop {
            let endpoint = self.endpoint();
            let error = match receive(&endpoint) {
                Ok(message) => return Ok(message),
                Err(error) => error,
            };
            let mut now = self.lock();
            while Arc::ptr_eq(&now, &endpoint) {
                if !paused() {
                    return Err(error);
                }
                now = self
                    .changed
                    .wait(now)
                    .unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Arc<Endpoint>> {
        self.endpoint.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
