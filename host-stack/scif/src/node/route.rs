//! Messages to and from other nodes, by way of the host.

use snaprig_wire::scif::{Body, HOST, Message, PortId, Way};

use super::{ENDPOINTS_MAX, EndpointId, Node, Output, State};

/// Most nodes that a card believes in.
const NODES_MAX: usize = 1024;

impl Node {
    /// Sends a message of an endpoint to its peer.
    pub(super) fn tell(&mut self, id: EndpointId, body: Body) {
        let Some(endpoint) = self.endpoints.get(&id).filter(|e| !e.lost) else {
            return;
        };
        let from = PortId {
            node: self.id,
            port: endpoint.port.unwrap_or(0),
        };
        let message = Message {
            from,
            to: endpoint.peer,
            connection: endpoint.connection,
            body,
        };
        self.deliver(message);
    }

    pub(super) fn deliver(&mut self, message: Message) {
        let to = message.to.node;
        if to == self.id {
            return self.message(message);
        }
        let next = if self.id == HOST { to } else { HOST };
        if self.neighbours.contains(&next) {
            self.out(Output::Send(next, message));
        }
    }

    pub(super) fn message(&mut self, message: Message) {
        if message.to.node != self.id {
            if self.id == HOST && message.from.node != message.to.node {
                self.forward(message);
            }
            return;
        }
        match message.body {
            Body::Connect(way) => return self.incoming(&message, way),
            Body::Found(node) if message.from.node == HOST && self.id != HOST => {
                if node != HOST && node != self.id && self.others.len() < NODES_MAX {
                    self.others.insert(node);
                }
                return;
            }
            Body::Lost(node) if message.from.node == HOST && self.id != HOST => {
                self.others.remove(&node);
                return self.lose_peers(|peer| peer.node == node && node != HOST);
            }
            Body::Lost(_) | Body::Found(_) => return,
            _ => {}
        }
        let found = self.endpoints.iter().find(|(_, endpoint)| {
            !endpoint.lost
                && endpoint.port == Some(message.to.port)
                && endpoint.connection == message.connection
                && endpoint.peer.node == message.from.node
                && endpoint.peer.port == message.from.port
                && matches!(
                    endpoint.state,
                    State::Connected | State::Connecting(_) | State::Reset
                )
        });
        let Some(id) = found.map(|(id, _)| *id) else {
            // An endpoint that is gone cannot answer; whoever still sends to it is told.
            if !matches!(message.body, Body::Closed | Body::Refused) {
                self.answer(&message, Body::Closed);
            }
            return;
        };
        self.on_connection(id, message);
    }

    fn forward(&mut self, message: Message) {
        if self.neighbours.contains(&message.to.node) {
            self.out(Output::Send(message.to.node, message));
        } else if let Body::Connect(_) = message.body {
            self.answer(&message, Body::Refused);
        } else if !matches!(message.body, Body::Closed | Body::Refused) {
            self.answer(&message, Body::Closed);
        }
    }

    fn answer(&mut self, to: &Message, body: Body) {
        let answer = Message {
            from: to.to,
            to: to.from,
            connection: to.connection,
            body,
        };
        self.deliver(answer);
    }

    fn incoming(&mut self, message: &Message, way: Way) {
        let listener = self.endpoints.iter_mut().find(|(_, e)| {
            e.state == State::Listening && e.port == Some(message.to.port) && !e.closed
        });
        match listener {
            Some((id, endpoint)) if endpoint.incoming.len() < endpoint.backlog => {
                let id = *id;
                endpoint
                    .incoming
                    .push_back((message.from, message.connection, way));
                if self.endpoints.len() < ENDPOINTS_MAX {
                    self.accept_next(id);
                }
                self.out(Output::Changed(id));
            }
            _ => self.answer(message, Body::Refused),
        }
    }

    fn on_connection(&mut self, id: EndpointId, message: Message) {
        let window = self.window;
        let Some(endpoint) = self.endpoints.get_mut(&id) else {
            return;
        };
        match message.body {
            Body::Connect(_) | Body::Lost(_) | Body::Found(_) => {}
            Body::Accepted(way) => self.accepted(id, way),
            Body::Refused => self.connect_ended(id, Err(libc::ECONNREFUSED)),
            Body::Data(bytes) => {
                if endpoint.received.len() + bytes.len() > window || endpoint.lanes.is_some() {
                    // More than it has credit for, or not by the lanes: the peer is broken.
                    return self.reset(id);
                }
                if endpoint.state == State::Connected && !endpoint.closed {
                    endpoint.received.extend(bytes);
                    self.serve_receives(id);
                    self.out(Output::Changed(id));
                }
            }
            Body::Credit(bytes) => {
                let credit = endpoint.credit.saturating_add(bytes as usize);
                endpoint.credit = credit.min(window);
                self.push_sends(id);
                self.out(Output::Changed(id));
            }
            Body::Window {
                offset,
                prot,
                more,
                extents,
            } => {
                self.peer_window(id, offset, prot, more, extents);
            }
            Body::Windowed => self.windowed(id),
            Body::Unwindow { offset, len } => self.unwindow(id, offset, len),
            Body::Unwindowed { offset, len, held } => self.unwindowed(id, offset, len, held),
            Body::Held(what) => drop(endpoint.peer_holds.insert(what)),
            Body::Released { offset, len } => self.released(id, offset, len),
            Body::Fence(number, fence) => self.fence(id, number, fence),
            Body::Fenced(number, result) => self.fenced(id, number, result),
            Body::Poke { offset, value } => self.poke(id, offset, value),
            Body::Ring(bell) => {
                if endpoint.lanes.is_some() && !endpoint.closed {
                    self.out(Output::Ring(id, bell));
                }
            }
            Body::Closed => self.reset(id),
        }
    }
}
