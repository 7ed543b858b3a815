//! Connections whose bytes go by lanes: what a card's driver does for a program that sleeps in its calls, with the very lanes
//! that programs have.

use std::{collections::BTreeMap, sync::Arc};

use snaprig_scif::node::{BackingId, EndpointId, Input, Op, RequestId, Value};
use snaprig_scif_lanes::lanes::{Lanes, Over};
use snaprig_wire::scif::{Bell, Extent, LANES_BYTES, NodeId};

use super::{invariants, run::World};
use crate::links::Network as _;

/// Request of a program that says that it takes lanes.
pub const WILLING: RequestId = 0;
/// Request of who rings.
const RING: RequestId = u64::MAX;

/// Whether the answer to a request is for nobody.
pub fn is_of_driver(request: RequestId) -> bool {
    [WILLING, RING].contains(&request)
}

/// A call that waits for lanes.
struct Waiting {
    node: NodeId,
    endpoint: EndpointId,
    what: Moving,
}

enum Moving {
    /// So much of it went; its program wants to know how much.
    Send {
        data: Vec<u8>,
        sent: usize,
        counts: bool,
    },
    /// At most so many bytes.
    Receive(usize),
}

/// All lanes.
#[derive(Default)]
pub struct Laid {
    /// By address.
    lanes: BTreeMap<u64, Arc<Lanes>>,
    addresses: BTreeMap<BackingId, u64>,
    waiting: BTreeMap<RequestId, Waiting>,
}

impl Laid {
    /// Memory is given back: what was there is no more.
    pub fn release(&mut self, backing: BackingId) {
        if let Some(address) = self.addresses.remove(&backing) {
            self.lanes.remove(&address);
        }
    }

    /// A node is gone, and who waited there.
    pub fn lose(&mut self, node: NodeId) {
        self.waiting.retain(|_, waiting| waiting.node != node);
    }

    /// A call is over.
    pub fn forget(&mut self, request: RequestId) {
        self.waiting.remove(&request);
    }
}

impl World {
    /// A card lays lanes.
    pub fn lay(&mut self, node: NodeId, endpoint: EndpointId) {
        let backing = self.memory.allocate(node, 1, true);
        self.memory.register(backing);
        let address = self.memory.extents(backing)[0].address;
        let (lanes, _) = Lanes::create().expect("memory");
        self.laid.lanes.insert(address, Arc::new(lanes));
        self.laid.addresses.insert(backing, address);
        let len = LANES_BYTES;
        let extent = Extent { address, len };
        self.node_hears(node, Input::Laid(endpoint, Some((extent, backing))));
    }

    /// A call that has come to a node; false: it is the node's.
    pub fn takes_lanes(&mut self, node: NodeId, input: &Input) -> bool {
        let Input::Request(request, endpoint, op) = input else {
            return self.ends_wait(node, input);
        };
        let its = &self.nodes[usize::from(node)];
        if its.lanes(*endpoint).is_none() || its.check_connected(*endpoint) == Err(libc::EBADF) {
            return false;
        }
        let what = match op {
            Op::Send(data) | Op::Write { data, .. } => Moving::Send {
                data: data.clone(),
                sent: 0,
                counts: matches!(op, Op::Write { .. }),
            },
            Op::Recv(max) => Moving::Receive(*max),
            _ => return false,
        };
        let waiting = Waiting {
            node,
            endpoint: *endpoint,
            what,
        };
        self.laid.waiting.insert(*request, waiting);
        self.go_on(*request);
        true
    }

    /// A signal ends a call, or who made it is gone.
    fn ends_wait(&mut self, node: NodeId, input: &Input) -> bool {
        match input {
            Input::Interrupt(request) if self.laid.waiting.contains_key(request) => {
                self.stop(*request, libc::EINTR);
                true
            }
            Input::Cancel(request) => {
                self.laid.forget(*request);
                false
            }
            Input::Close(endpoint) => {
                for request in self.waiting_for(node, *endpoint) {
                    self.stop(request, libc::EBADF);
                }
                false
            }
            _ => false,
        }
    }

    /// Something is different about an endpoint, or somebody has rung for it.
    pub fn look_again(&mut self, node: NodeId, endpoint: EndpointId) {
        if let Some((lanes, side)) = self.lanes_of(node, endpoint)
            && self.nodes[usize::from(node)].poll(endpoint) & libc::POLLHUP != 0
        {
            lanes.end(side);
        }
        for request in self.waiting_for(node, endpoint) {
            self.go_on(request);
        }
    }

    fn waiting_for(&self, node: NodeId, endpoint: EndpointId) -> Vec<RequestId> {
        let all = self.laid.waiting.iter();
        let of_it = all.filter(|(_, one)| (one.node, one.endpoint) == (node, endpoint));
        of_it.map(|(request, _)| *request).collect()
    }

    fn lanes_of(&mut self, node: NodeId, endpoint: EndpointId) -> Option<(Arc<Lanes>, usize)> {
        let laid = self.nodes[usize::from(node)].lanes(endpoint)?;
        let lanes = self.laid.lanes.get(&laid.extent.address).cloned();
        let peer = self.nodes[usize::from(node)].peer(endpoint);
        let may_be_lost = peer.is_none_or(|peer| self.is_disturbed(peer.node));
        // Who has lost a peer does not wait for it.
        if lanes.is_none() && !may_be_lost && !self.is_disturbed(node) {
            let how = format!("lanes of endpoint {endpoint} on node {node} are given back");
            self.violation(invariants::BACKINGS, how);
        }
        Some((lanes?, laid.side.into()))
    }

    /// Moves what can be moved.
    fn go_on(&mut self, request: RequestId) {
        let Some(mut waiting) = self.laid.waiting.remove(&request) else {
            return;
        };
        let (node, endpoint) = (waiting.node, waiting.endpoint);
        let Some((lanes, side)) = self.lanes_of(node, endpoint) else {
            self.laid.waiting.insert(request, waiting);
            return self.stop(request, libc::ECONNRESET);
        };
        let mut rings = false;
        let (bell, over) = match &mut waiting.what {
            Moving::Send { data, sent, counts } => loop {
                match lanes.send_some(side, &data[*sent..], || (), &mut rings) {
                    Ok(0) => break (Bell::Readable, false),
                    Ok(more) => *sent += more,
                    Err(Over) => break (Bell::Readable, true),
                }
                if *sent == data.len() {
                    let value = match counts {
                        true => Value::Count(*sent),
                        false => Value::Unit,
                    };
                    self.ended(request, Ok(value));
                    return self.ring(node, endpoint, Bell::Readable, rings);
                }
            },
            Moving::Receive(max) => {
                match lanes.receive_some(side, (*max, true), &mut || (), &mut rings) {
                    Ok(bytes) if bytes.is_empty() => (Bell::Writable, false),
                    Ok(bytes) => {
                        self.ended(request, Ok(Value::Bytes(bytes)));
                        return self.ring(node, endpoint, Bell::Writable, rings);
                    }
                    Err(Over) => (Bell::Writable, true),
                }
            }
        };
        self.laid.waiting.insert(request, waiting);
        if over {
            self.stop(request, libc::ECONNRESET);
        }
        self.ring(node, endpoint, bell, rings);
    }

    fn ring(&mut self, node: NodeId, endpoint: EndpointId, bell: Bell, rings: bool) {
        if rings {
            self.node_hears(node, Input::Request(RING, endpoint, Op::Ring(bell)));
        }
    }

    /// A call ends without having done all.
    fn stop(&mut self, request: RequestId, errno: i32) {
        let Some(waiting) = self.laid.waiting.remove(&request) else {
            return;
        };
        let result = match waiting.what {
            Moving::Send {
                sent, counts: true, ..
            } if sent > 0 => Ok(Value::Count(sent)),
            _ => Err(errno),
        };
        self.ended(request, result);
    }
}
