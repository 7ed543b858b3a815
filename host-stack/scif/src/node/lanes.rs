//! Connections whose bytes do not go by the nodes: memory of a card has a ring for each direction, which both ends' programs
//! have mapped ([`snaprig_scif_lanes`]).
//!
//! ```text
//! connecting node                                accepting node
//! Lay -> driver; Laid <- driver     (on a card)
//!   Connect(Lanes) -------------------------->     its program is willing: Accepted(Willing)
//!   Connect(Willing) ------------------------>     .. and it is a card:    Lay, Laid, Accepted(Lanes)
//!   Connect(Nodes) -------------------------->     Accepted(Nodes)
//! bytes <================ lanes ================>  bytes
//!   Ring(Readable | Writable) --------------->     its program, or whoever polls, is woken
//! ```
//!
//! What must stay true: how a connection's bytes go is known to both ends before either sends any, and stays so; lanes stay
//! where they are until both ends have closed, and no program of the other end's has them mapped.

use snaprig_wire::scif::{Bell, Body, Extent, HOST, Held, LANES_BYTES, NodeId, Way};

use super::{BackingId, Endpoint, EndpointId, MappingId, Node, Output, RequestId, State, Value};

/// Lanes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lanes {
    /// Where they are for this node.
    pub extent: Extent,
    /// Which end this is: 0 has connected, 1 has accepted.
    pub side: u8,
    /// They are this node's.
    pub(super) backing: Option<BackingId>,
    /// They are the peer's, and in use until this endpoint is closed: what came before the end may still be read.
    pub(super) held: Option<MappingId>,
}

impl Endpoint {
    /// What a connection of this endpoint offers.
    fn offer(&self) -> Way {
        match self.laid {
            Some((extent, _)) => Way::Lanes(extent),
            None => Way::Willing,
        }
    }
}

impl Node {
    /// The lanes of an endpoint that is or was connected, if it has any; once it is closed its program has none.
    pub fn lanes(&self, id: EndpointId) -> Option<Lanes> {
        let endpoint = self.endpoints.get(&id)?;
        endpoint.lanes.filter(|_| !endpoint.closed)
    }

    /// The program of an endpoint takes lanes, if its peer's does, too.
    pub(super) fn willing(&mut self, id: EndpointId) -> Result<Option<Value>, i32> {
        self.endpoint(id)?.is_willing = true;
        Ok(Some(Value::Unit))
    }

    /// Programs of this node cannot map memory of that one, its neighbour.
    pub fn cannot_map(&mut self, node: NodeId) {
        self.unmappable.insert(node);
    }

    /// Whether an endpoint can have lanes to its peer.
    fn takes_lanes(&self, id: EndpointId) -> bool {
        let endpoint = self.endpoints.get(&id);
        endpoint.is_some_and(|it| it.is_willing && !self.unmappable.contains(&it.peer.node))
    }

    /// Asks for a connection, once there are lanes that can be offered.
    pub(super) fn ask_for_connection(&mut self, id: EndpointId) {
        match self.takes_lanes(id) {
            true if self.id != HOST => self.out(Output::Lay(id)),
            true => self.tell(id, Body::Connect(Way::Willing)),
            false => self.tell(id, Body::Connect(Way::Nodes)),
        }
    }

    /// An endpoint has accepted: what its peer hears, and its program.
    pub(super) fn accept_by(&mut self, id: EndpointId, offered: Way, request: RequestId) {
        let (own, takes_lanes) = (self.id, self.takes_lanes(id));
        let answer = match offered {
            Way::Lanes(extent) if takes_lanes && extent.len == LANES_BYTES => {
                self.have_lanes(id, extent, 1, None);
                Way::Willing
            }
            Way::Willing if takes_lanes && own != HOST => {
                let endpoint = self.endpoints.get_mut(&id);
                endpoint
                    .into_iter()
                    .for_each(|it| it.accepting = Some(request));
                return self.out(Output::Lay(id));
            }
            _ => Way::Nodes,
        };
        self.say_accepted(id, answer, request);
    }

    /// A connection has lanes from now on.
    fn have_lanes(&mut self, id: EndpointId, extent: Extent, side: u8, backing: Option<BackingId>) {
        let held = match backing {
            Some(_) => None,
            None => self.add_mapping(id, Held::Lanes.range()).ok(),
        };
        if let Some(endpoint) = self.endpoints.get_mut(&id) {
            endpoint.lanes = Some(Lanes {
                extent,
                side,
                backing,
                held,
            });
        }
    }

    fn say_accepted(&mut self, id: EndpointId, way: Way, request: RequestId) {
        let Some(endpoint) = self.endpoints.get(&id) else {
            return;
        };
        let peer = endpoint.peer;
        self.tell(id, Body::Accepted(way));
        let value = Value::Accepted { endpoint: id, peer };
        self.done(request, Ok(value));
    }

    /// Memory for lanes, or there is none.
    pub(super) fn laid(&mut self, id: EndpointId, laid: Option<(Extent, BackingId)>) {
        let Some(endpoint) = self.endpoints.get_mut(&id) else {
            return self.release_lanes(laid);
        };
        if let Some(request) = endpoint.accepting.take() {
            if let Some((extent, backing)) = laid {
                self.have_lanes(id, extent, 1, Some(backing));
            }
            let way = laid.map_or(Way::Nodes, |(extent, _)| Way::Lanes(extent));
            return self.say_accepted(id, way, request);
        }
        if !matches!(endpoint.state, State::Connecting(_)) || endpoint.laid.is_some() {
            // It was given up meanwhile.
            return self.release_lanes(laid);
        }
        endpoint.laid = laid;
        let offer = endpoint.offer();
        self.tell(id, Body::Connect(offer));
    }

    /// The peer has accepted, and says how the connection's bytes go.
    pub(super) fn accepted(&mut self, id: EndpointId, way: Way) {
        let Some(endpoint) = self.endpoints.get_mut(&id) else {
            return;
        };
        if !matches!(endpoint.state, State::Connecting(_)) {
            return;
        }
        let (laid, is_willing) = (endpoint.laid.take(), endpoint.is_willing);
        let (extent, backing) = match (way, laid) {
            (Way::Nodes, _) => {
                self.release_lanes(laid);
                return self.connect_ended(id, Ok(()));
            }
            (Way::Willing, Some((extent, backing))) => (extent, Some(backing)),
            (Way::Lanes(extent), None) if is_willing && extent.len == LANES_BYTES => (extent, None),
            // It takes what was not offered: the peer is broken.
            _ => {
                self.release_lanes(laid);
                self.connect_ended(id, Ok(()));
                return self.reset(id);
            }
        };
        // Before anybody hears of the connection.
        if let Some(endpoint) = self.endpoints.get_mut(&id) {
            endpoint.lanes = Some(Lanes {
                extent,
                side: 0,
                backing,
                held: None,
            });
        }
        self.connect_ended(id, Ok(()));
        if backing.is_none() {
            self.have_lanes(id, extent, 0, None);
        }
    }

    pub(super) fn release_lanes(&mut self, laid: Option<(Extent, BackingId)>) {
        if let Some((_, backing)) = laid {
            self.out(Output::Release(backing));
        }
    }

    /// The program gives up a connection for which it has offered lanes. The peer may have accepted them by now, and use
    /// them: they stay, with an endpoint that nobody has, until it answers.
    pub(super) fn abandon_lanes(&mut self, id: EndpointId) {
        let Some(endpoint) = self.endpoints.get_mut(&id) else {
            return;
        };
        let Some(laid) = endpoint.laid.take() else {
            return;
        };
        let mut abandoned = Endpoint::new(self.window);
        (abandoned.port, abandoned.peer) = (endpoint.port, endpoint.peer);
        abandoned.connection = endpoint.connection;
        abandoned.state = State::Connecting(None);
        (abandoned.is_willing, abandoned.laid) = (true, Some(laid));
        abandoned.closed = true;
        self.endpoints.insert(self.next_endpoint, abandoned);
        self.next_endpoint += 1;
    }

    /// The peer has answered what was given up.
    pub(super) fn end_abandoned(&mut self, id: EndpointId) {
        let endpoint = self.endpoints.get(&id).filter(|endpoint| endpoint.closed);
        match endpoint.map(|endpoint| endpoint.state) {
            Some(State::Connected) => self.close(id),
            Some(_) => drop(self.endpoints.remove(&id)),
            None => {}
        }
    }

    /// The program maps the lanes of its connection. Those of the peer's memory are held like a window.
    pub(super) fn map_lanes(&mut self, id: EndpointId) -> Result<Option<Value>, i32> {
        let endpoint = self.endpoint(id)?;
        let lanes = endpoint.lanes.ok_or(libc::ENXIO)?;
        let extents = vec![lanes.extent];
        let mapping = match (lanes.backing, endpoint.state) {
            (Some(_), _) => None,
            (None, State::Connected) => Some(self.add_mapping(id, Held::Lanes.range())?),
            (None, _) => return Err(libc::ECONNRESET),
        };
        Ok(Some(Value::Lanes { mapping, extents }))
    }

    /// The program has changed what its peer may wait for.
    pub(super) fn ring(&mut self, id: EndpointId, bell: Bell) -> Result<Option<Value>, i32> {
        let endpoint = self.endpoint(id)?;
        if endpoint.lanes.is_none() {
            return Err(libc::ENOTCONN);
        }
        if endpoint.state == State::Connected {
            self.tell(id, Body::Ring(bell));
        }
        Ok(Some(Value::Unit))
    }
}
