//! The leases of an endpoint: where its peer's windows are, and the memory that they are in.

use std::{
    os::fd::OwnedFd,
    sync::{Mutex, RwLock},
};

use snaprig_scif::{
    copying::{Connection, lease::Lease, peers::Peers},
    host::protocol::{Answer, Call},
};

use super::{
    endpoint::{Endpoint, ask, tell},
    lock,
    memory::Claimed,
};
use crate::ffi::Result;

/// Memory of peers, of all endpoints: they have one node.
pub(super) static PEERS: RwLock<Peers<Claimed>> = RwLock::new(Peers::new());

pub(super) struct Leased {
    process: u32,
    _claimed: Claimed,
    pub(super) lease: Lease,
    pub(super) channel: Channel,
}

/// Of its own: its end tells the node of this process's.
pub(super) struct Channel(Mutex<Option<OwnedFd>>);

impl Leased {
    pub(super) fn new(channel: OwnedFd) -> Result<Self> {
        let channel = Channel(Mutex::new(Some(channel)));
        let lease = Lease::new(&channel)?;
        Ok(Self {
            process: std::process::id(),
            _claimed: lease.range().into(),
            lease,
            channel,
        })
    }

    /// A child of fork(2) has its parent's.
    pub(super) fn is_own(&self) -> bool {
        self.process == std::process::id()
    }

    /// The endpoint is closed.
    pub(super) fn close(&self) {
        drop(lock(&self.channel.0).take());
    }
}

impl Connection for Channel {
    fn ask(&self, call: Call) -> Result<(Answer, Option<OwnedFd>)> {
        let channel = lock(&self.0);
        ask(channel.as_ref().ok_or(libc::EBADF)?, call, None, false)
    }

    fn tell(&self, call: Call) {
        if let Some(channel) = &*lock(&self.0) {
            // A node that is gone waits for nothing.
            let _ = tell(channel, call, None);
        }
    }
}

impl Connection for Endpoint {
    fn ask(&self, call: Call) -> Result<(Answer, Option<OwnedFd>)> {
        self.call_with(call, None, false)
    }

    fn tell(&self, call: Call) {
        if let Ok(channel) = self.take_channel() {
            let _ = tell(&channel, call, None);
            self.put_channel(channel);
        }
    }
}
