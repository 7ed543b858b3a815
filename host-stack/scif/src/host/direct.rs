//! Connections of programs that use libscif whose bytes do not go by the node: it gives them the memory of their lanes, and
//! sees to their descriptors for who cannot, and to the end.
//!
//! ```text
//! program A                     node                      program B
//!   Direct -------------------->  makes the lanes
//!     <-- memory, sockets of A and B
//!                                   <-------------------- Direct
//!                                   memory, sockets ----->
//!   messages <==================== lanes =====================> messages
//!   closes, or dies ----------->  B: live = 0, shutdown --->  reads the rest, then ECONNRESET
//!
//! program A                     node                      card: driver, program B
//!   connects, or accepts ------->  Connect, Accepted: the card's driver has laid lanes in its memory
//!   Direct -------------------->
//!     <-- BAR0, where in it, socket of A
//!   messages <===================== lanes =============================> messages
//!   Ring ---------------------->  Body::Ring ------------>  B is woken
//!   A's descriptor <------------        <---- Body::Ring --- B: ioctl
//! ```
//!
//! What must stay true: whether a connection is direct is known when it is made, by who its ends are, so that
//! no message is on both ways; the node reads and writes these lanes' state, and waits for nothing in them.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
};

use snaprig_scif_lanes::{host::Place, lanes::Lanes};
use snaprig_wire::scif::{Bell, Extent};

use super::State;
use crate::node::EndpointId;

/// An end of a direct connection.
pub(super) struct Direct {
    lanes: Arc<Lanes>,
    side: usize,
    peer: Peer,
}

/// The other end, and where the lanes are.
enum Peer {
    /// A program of this host: in a file of their own.
    Here(EndpointId, Arc<OwnedFd>),
    /// A program of a card, in whose memory they are. Its file is opened when it is asked for: there may be few descriptors, and
    /// many connections.
    OnCard(Extent),
}

impl State {
    /// What an endpoint's connection is made of: the file of its lanes, the other end of its descriptor, and the other end of
    /// its peer's, if that is here; `None` if messages go through the node.
    pub(super) fn direct(
        &mut self,
        endpoint: EndpointId,
    ) -> Result<Option<(Place, Vec<OwnedFd>)>, i32> {
        if !self.direct.contains_key(&endpoint) {
            self.node.check_connected(endpoint)?;
            if !self.meet_card(endpoint)? && !self.meet_twin(endpoint)? {
                return Ok(None);
            }
        }
        let direct = self.direct.get(&endpoint).ok_or(libc::EBADF)?;
        let own = self.ready.get(&endpoint).ok_or(libc::EBADF)?;
        let copy = |fd: BorrowedFd<'_>| fd.try_clone_to_owned().map_err(|_| libc::ENOMEM);
        let (at, fds) = match &direct.peer {
            Peer::Here(peer, file) => {
                // Of a peer that is gone nobody makes anything ready.
                let peer = self.ready.get(peer).unwrap_or(own);
                let fds = [file.as_fd(), own.socket(), peer.socket()].map(copy);
                (0, fds.into_iter().collect::<Result<_, _>>()?)
            }
            Peer::OnCard(extent) => {
                let (file, at) = self.lanes_file(endpoint, *extent).ok_or(libc::ECONNRESET)?;
                (at, vec![file, copy(own.socket())?])
            }
        };
        let place = Place {
            side: direct.side as u8,
            at,
            has_peer: matches!(direct.peer, Peer::Here(..)),
        };
        Ok(Some((place, fds)))
    }

    /// Lanes to another program of this host; false if there is none at the other end.
    fn meet_twin(&mut self, endpoint: EndpointId) -> Result<bool, i32> {
        let peer = self.node.twin(endpoint);
        let peer = peer.filter(|peer| self.ready.contains_key(peer));
        let Some(peer) = peer.filter(|_| self.ready.contains_key(&endpoint)) else {
            return Ok(false);
        };
        let (lanes, file) = Lanes::create().map_err(|_| libc::ENOMEM)?;
        let (lanes, file) = (Arc::new(lanes), Arc::new(file));
        for (side, (id, peer)) in [(endpoint, peer), (peer, endpoint)].into_iter().enumerate() {
            let (lanes, file) = (lanes.clone(), file.clone());
            let direct = Direct {
                lanes,
                side,
                peer: Peer::Here(peer, file),
            };
            self.direct.insert(id, direct);
        }
        Ok(true)
    }

    /// Lanes to a program of a card, which has laid them; false if there are none.
    fn meet_card(&mut self, endpoint: EndpointId) -> Result<bool, i32> {
        let Some(laid) = self.node.lanes(endpoint) else {
            return Ok(false);
        };
        let (file, at) = self
            .lanes_file(endpoint, laid.extent)
            .ok_or(libc::ECONNRESET)?;
        let lanes = Lanes::map(file.as_fd(), at).map_err(|_| libc::ENOMEM)?;
        let direct = Direct {
            lanes: Arc::new(lanes),
            side: laid.side.into(),
            peer: Peer::OnCard(laid.extent),
        };
        self.direct.insert(endpoint, direct);
        Ok(true)
    }

    /// A program of a card rings: the descriptor of an endpoint is to show what its lanes have.
    pub(super) fn rung(&mut self, endpoint: EndpointId, bell: Bell) {
        if !self.direct.contains_key(&endpoint) && self.meet_card(endpoint) != Ok(true) {
            return;
        }
        let Some(direct) = self.direct.get(&endpoint) else {
            return;
        };
        if let Some(ready) = self.ready.get(&endpoint) {
            ready.show(bell);
        }
        let (lanes, side) = (&direct.lanes, direct.side);
        match bell {
            Bell::Readable => lanes.lane(side + 1).readable().rang(),
            Bell::Writable => lanes.lane(side).writable().rang(),
        }
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
