//! Which nodes a packet is for, and which packets of other nodes are taken.
//!
//! ```text
//!   sender's daemon                          every other daemon
//!     | packet for a port: its node ------------> |  members of the group that are here get it
//!     | packet for a group: one to each node ---> |  (Hca::deliver); nobody hands it on
//!     '-- and to its own members
//! ```
//!
//! What is for a group goes to every node that can be sent to, and each gives it to its own members: nobody is told who has
//! joined what. So a member has its datagrams from the moment that ibv_attach_mcast(3) returns, as behind one switch, and no
//! node has to be believed, waited for or told again when it comes back. It costs a packet to a node without members, which
//! a switch would not send: nodes are few, and a group of a job has members on most of them.
//!
//! What must stay true: a datagram for a group is sent to each other node once, and what came from one is sent to none, so
//! that each member gets it once. A packet is taken only if it is from a port of the node that sends it, and for a port that
//! is here, or for a group.

use snaprig_hca::{Packet, Transport};

/// Whom a packet is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whom {
    /// Somebody of this node.
    Here,
    /// Somebody of another one.
    There(u32),
    /// The members of a group, here and on all other nodes.
    All,
}

/// Where ports are, as one node sees it. `node_of` says whose a port is; there may be none such.
#[derive(Clone, Copy, Debug)]
pub struct Places<F> {
    /// This node.
    pub own: u32,
    /// The node that has a port.
    pub node_of: F,
}

impl<F: Fn(u32) -> Option<u32>> Places<F> {
    /// Whom a packet of this node is for. One to a port that is nowhere stays here, where it is dropped.
    pub fn whom(&self, packet: &Packet<'_>) -> Whom {
        if is_to_group(packet) {
            return Whom::All;
        }
        match (self.node_of)(packet.route.to_port) {
            Some(node) if node != self.own => Whom::There(node),
            _ => Whom::Here,
        }
    }

    /// Whether a packet that a node sends is taken.
    pub fn takes(&self, sender: u32, packet: &Packet<'_>) -> bool {
        let route = &packet.route;
        let is_its = (self.node_of)(route.from_port) == Some(sender);
        let is_here = match is_to_group(packet) {
            // Which is its place for such a packet.
            true => route.to_port == route.from_port,
            false => (self.node_of)(route.to_port) == Some(self.own),
        };
        is_its && is_here
    }
}

/// Whether it is for a group: datagrams alone are.
fn is_to_group(packet: &Packet<'_>) -> bool {
    packet.transport == Transport::Ud && packet.route.is_multicast()
}
