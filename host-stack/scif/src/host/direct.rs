//! Connections between two programs of this host that use libscif: the node gives both the same memory,
//! and the descriptors by which each makes the other's ready; then it only says when it is over.
//!
//! ```text
//! program A                     node                      program B
//!   Direct -------------------->  makes the lanes
//!     <-- memory, sockets of A and B
//!                                   <-------------------- Direct
//!                                   memory, sockets ----->
//!   messages <==================== lanes =====================> messages
//!   closes, or dies ----------->  B: ended, shutdown ---->  reads the rest, then ECONNRESET
//! ```
//!
//! What must stay true: whether a connection is direct is known when it is made, by who its ends are, so that
//! no message is on both ways; the node reads and writes these lanes' state, and waits for nothing in them.

use std::{
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use super::{State, lanes::Lanes};
use crate::node::EndpointId;

/// An end of a direct connection.
pub(super) struct Direct {
    lanes: Arc<Lanes>,
    file: Arc<OwnedFd>,
    side: usize,
    peer: EndpointId,
}

impl State {
    /// The memory of an endpoint's connection, its own socket and the peer's, and which side it is; `None` if
    /// messages go through the node.
    pub(super) fn direct(
        &mut self,
        endpoint: EndpointId,
    ) -> Result<Option<(u8, Vec<OwnedFd>)>, i32> {
        if !self.direct.contains_key(&endpoint) {
            self.node.check_connected(endpoint)?;
            let peer = self.node.twin(endpoint);
            let peer = peer.filter(|peer| self.ready.contains_key(peer));
            let Some(peer) = peer.filter(|_| self.ready.contains_key(&endpoint)) else {
                return Ok(None);
            };
            let (lanes, file) = Lanes::create().map_err(|_| libc::ENOMEM)?;
            let (lanes, file) = (Arc::new(lanes), Arc::new(file));
            for (side, (id, peer)) in [(endpoint, peer), (peer, endpoint)].into_iter().enumerate() {
                let (lanes, file) = (lanes.clone(), file.clone());
                let direct = Direct {
                    lanes,
                    file,
                    side,
                    peer,
                };
                self.direct.insert(id, direct);
            }
        }
        let direct = self.direct.get(&endpoint).ok_or(libc::EBADF)?;
        let own = self.ready.get(&endpoint).ok_or(libc::EBADF)?;
        // Of a peer that is gone nobody makes anything ready.
        let peer = self.ready.get(&direct.peer).unwrap_or(own);
        let fds = [direct.file.as_fd(), own.socket(), peer.socket()];
        let fds: Result<Vec<_>, _> = fds.iter().map(|fd| fd.try_clone_to_owned()).collect();
        Ok(Some((direct.side as u8, fds.map_err(|_| libc::ENOMEM)?)))
    }

    /// What poll would say of an endpoint.
    pub(super) fn mask(&self, endpoint: EndpointId) -> i16 {
        let mask = self.node.poll(endpoint);
        match self.direct.get(&endpoint) {
            Some(direct) if mask & libc::POLLNVAL == 0 => {
                mask & !(libc::POLLIN | libc::POLLOUT) | direct.lanes.mask(direct.side)
            }
            _ => mask,
        }
    }

    /// What poll would say of an endpoint has changed.
    pub(super) fn refresh(&mut self, endpoint: EndpointId) {
        let mask = self.node.poll(endpoint);
        let direct = self.direct.get(&endpoint);
        if let Some(direct) = direct.filter(|_| mask & (libc::POLLHUP | libc::POLLNVAL) != 0) {
            // Before the descriptor says so.
            direct.lanes.end(direct.side);
        }
        if let Some(ready) = self.ready.get_mut(&endpoint) {
            ready.set(mask);
        }
    }
}
