//! Bind, listen, connect, accept, close, and how connections end.

use snaprig_wire::scif::{Body, HOST, Held, Message, NodeId, PORT_DYNAMIC, PortId};

use super::{BTreeMap, Endpoint, EndpointId, Node, Output, RequestId, State, Value};

/// `SCIF_MAX_BACKLOG` (scif_listen(3)).
const BACKLOG_MAX: usize = 1024;

impl Node {
    pub(super) fn bind(&mut self, id: EndpointId, port: u16) -> Result<u16, i32> {
        match self.endpoint(id)?.state {
            State::New => {}
            State::Bound => return Err(libc::EINVAL),
            _ => return Err(libc::EISCONN),
        }
        let port = match port {
            0 => self.free_port()?,
            port if self.is_bound(port) => return Err(libc::EINVAL),
            port => port,
        };
        let endpoint = self.endpoint(id)?;
        (endpoint.state, endpoint.port) = (State::Bound, Some(port));
        Ok(port)
    }

    /// A port is free again when all of its endpoints are closed, or disconnected (scif_close(3)).
    fn is_bound(&self, port: u16) -> bool {
        let mut endpoints = self.endpoints.values();
        endpoints.any(|e| e.port == Some(port) && !e.closed && e.state != State::Reset)
    }

    fn free_port(&mut self) -> Result<u16, i32> {
        for _ in PORT_DYNAMIC..=u16::MAX {
            let port = self.next_port;
            self.next_port = port.checked_add(1).unwrap_or(PORT_DYNAMIC);
            if !self.is_bound(port) {
                return Ok(port);
            }
        }
        Err(libc::ENOSPC)
    }

    pub(super) fn listen(&mut self, id: EndpointId, backlog: usize) -> Result<Option<Value>, i32> {
        let endpoint = self.endpoint(id)?;
        if backlog == 0 {
            return Err(libc::EINVAL);
        }
        match endpoint.state {
            State::Bound => {
                endpoint.state = State::Listening;
                endpoint.backlog = backlog.min(BACKLOG_MAX);
                self.out(Output::Changed(id));
                Ok(Some(Value::Unit))
            }
            State::Connected | State::Connecting(_) | State::Listening => Err(libc::EISCONN),
            State::New | State::Reset => Err(libc::EINVAL),
        }
    }

    /// `request`: who waits; nobody if the connect does not block.
    pub(super) fn connect(
        &mut self,
        request: Option<RequestId>,
        id: EndpointId,
        peer: PortId,
    ) -> Result<Option<Value>, i32> {
        let reachable = self.reachable(peer.node);
        let endpoint = self.endpoint(id)?;
        if let Some(outcome) = endpoint.outcome.take() {
            let port = endpoint.port.unwrap_or(0);
            self.out(Output::Changed(id));
            return outcome.map(|()| Some(Value::Port(port)));
        }
        if !reachable {
            return Err(libc::ENODEV);
        }
        if peer.port == 0 {
            return Err(libc::EINVAL);
        }
        match endpoint.state {
            State::New => {
                self.bind(id, 0)?;
            }
            State::Bound => {}
            State::Listening => return Err(libc::EOPNOTSUPP),
            State::Connecting(None) => return Err(libc::EINPROGRESS),
            State::Connecting(Some(_)) | State::Connected => return Err(libc::EISCONN),
            State::Reset => return Err(libc::EINVAL),
        }
        let connection = self.next_connection;
        self.next_connection = connection.wrapping_add(1);
        let endpoint = self.endpoint(id)?;
        endpoint.state = State::Connecting(request);
        (endpoint.peer, endpoint.connection) = (peer, connection);
        // An earlier try may have ended with the loss of its peer.
        (endpoint.peer_closed, endpoint.closed_sent) = (false, false);
        endpoint.lost = false;
        self.out(Output::Changed(id));
        self.ask_for_connection(id);
        match request {
            Some(_) => Ok(None),
            None => Err(libc::EINPROGRESS),
        }
    }

    fn reachable(&self, node: NodeId) -> bool {
        // A card reaches the other cards through the host.
        node == self.id || self.neighbours.contains(&node) || self.others.contains(&node)
    }

    /// The other side has accepted, or refused.
    pub(super) fn connect_ended(&mut self, id: EndpointId, result: Result<(), i32>) {
        let Some(endpoint) = self.endpoints.get_mut(&id) else {
            return;
        };
        let State::Connecting(request) = endpoint.state else {
            return;
        };
        endpoint.state = match result {
            Ok(()) => State::Connected,
            Err(_) => State::Bound,
        };
        // Refused, if they are still there.
        let laid = endpoint.laid.take();
        let port = endpoint.port.unwrap_or(0);
        match request {
            Some(request) => self.done(request, result.map(|()| Value::Port(port))),
            None => endpoint.outcome = Some(result),
        }
        self.release_lanes(laid);
        self.out(Output::Changed(id));
        self.end_abandoned(id);
    }

    pub(super) fn accept(
        &mut self,
        request: RequestId,
        id: EndpointId,
        wait: bool,
    ) -> Result<Option<Value>, i32> {
        let endpoint = self.endpoint(id)?;
        if endpoint.state != State::Listening {
            return Err(libc::EINVAL);
        }
        if !wait && (endpoint.incoming.is_empty() || !endpoint.accepts.is_empty()) {
            return Err(libc::EAGAIN);
        }
        endpoint.accepts.push_back(request);
        self.accept_next(id);
        Ok(None)
    }

    pub(super) fn accept_next(&mut self, id: EndpointId) {
        let Some(listener) = self.endpoints.get_mut(&id) else {
            return;
        };
        if listener.accepts.is_empty() || listener.incoming.is_empty() {
            return;
        }
        let (Some(request), Some((peer, connection, way)), Some(port)) = (
            listener.accepts.pop_front(),
            listener.incoming.pop_front(),
            listener.port,
        ) else {
            return;
        };
        let is_willing = listener.is_willing;
        let accepted = self.next_endpoint;
        self.next_endpoint += 1;
        let mut endpoint = Endpoint::new(self.window);
        endpoint.state = State::Connected;
        endpoint.port = Some(port);
        (endpoint.peer, endpoint.connection) = (peer, connection);
        endpoint.is_willing = is_willing;
        self.endpoints.insert(accepted, endpoint);
        self.out(Output::Changed(id));
        self.accept_by(accepted, way, request);
    }

    pub(super) fn close_and_wait(
        &mut self,
        request: RequestId,
        id: EndpointId,
    ) -> Result<Option<Value>, i32> {
        self.endpoint(id)?.closing = Some(request);
        self.close(id);
        Ok(None)
    }

    pub(super) fn close(&mut self, id: EndpointId) {
        self.recall(id, true);
        let Some(endpoint) = self.endpoints.get_mut(&id) else {
            return;
        };
        endpoint.closed = true;
        self.abandon_lanes(id);
        let Some(endpoint) = self.endpoints.get_mut(&id) else {
            return;
        };
        let refused = std::mem::take(&mut endpoint.incoming);
        let port = endpoint.port;
        for (peer, connection, _) in refused {
            let from = PortId {
                node: self.id,
                port: port.unwrap_or(0),
            };
            self.deliver(Message {
                from,
                to: peer,
                connection,
                body: Body::Refused,
            });
        }
        self.fail_all(id, libc::EBADF);
        let Some(endpoint) = self.endpoints.get_mut(&id) else {
            return;
        };
        match endpoint.state {
            // The peer is told once no copy of ours uses its windows.
            State::Connected => {}
            _ => endpoint.peer_closed = true,
        }
        let held = endpoint.lanes.and_then(|lanes| lanes.held);
        self.out(Output::Changed(id));
        if let Some(mapping) = held {
            self.unmapped(mapping);
        }
        self.try_finish_close(id);
    }

    /// Ends every request of the endpoint but its close.
    fn fail_all(&mut self, id: EndpointId, errno: i32) {
        let Some(endpoint) = self.endpoints.get_mut(&id) else {
            return;
        };
        let mut requests: Vec<RequestId> = endpoint.accepts.drain(..).collect();
        requests.extend(endpoint.receives.drain(..).map(|(request, _)| request));
        requests.extend(std::mem::take(&mut endpoint.asked).into_values());
        let questioned = std::mem::take(&mut endpoint.questioned);
        requests.extend(questioned.values().map(|it| it.request));
        requests.extend(
            std::mem::take(&mut endpoint.unregistering)
                .into_values()
                .flatten(),
        );
        let waiting = std::mem::take(&mut endpoint.waiting);
        requests.extend(waiting.iter().filter_map(|waiting| waiting.request()));
        requests.extend(endpoint.accepting.take());
        let registered = std::mem::take(&mut endpoint.registering);
        let sends = std::mem::take(&mut endpoint.sends);
        let mut laid = None;
        if let State::Connecting(request) = endpoint.state {
            laid = endpoint.laid.take();
            requests.extend(request);
            endpoint.state = State::Bound;
            if request.is_none() {
                endpoint.outcome = Some(Err(errno));
            }
        }
        self.release_lanes(laid);
        for registration in questioned.into_values() {
            self.out(Output::Release(registration.backing));
        }
        for sending in sends {
            self.done(sending.request, sending.failed(errno));
        }
        // They are windows, whoever knows of them.
        for (request, offset) in registered {
            if let Some(request) = request {
                self.done(request, Ok(Value::Offset(offset)));
            }
        }
        for request in requests {
            self.done(request, Err(errno));
        }
    }

    /// Once no copy of this side is under way the peer is told of the end; once the peer has said the
    /// same (or is gone) nobody can touch the windows, and their memory is given back. What either
    /// has mapped of the other's outlives that.
    pub(super) fn try_finish_close(&mut self, id: EndpointId) {
        let Some(endpoint) = self.endpoints.get_mut(&id).filter(|e| e.jobs.is_empty()) else {
            return;
        };
        let over = match endpoint.state {
            State::Connected => endpoint.closed,
            State::Reset => endpoint.peer_closed,
            _ => false,
        };
        if over && !endpoint.closed_sent {
            endpoint.closed_sent = true;
            let held = Held::ALL.into_iter();
            let held: Vec<_> = held.filter(|what| endpoint.has_mapped(*what)).collect();
            for what in held {
                self.tell(id, Body::Held(what));
            }
            self.tell(id, Body::Closed);
        }
        let Some(endpoint) = self.endpoints.get_mut(&id).filter(|e| e.peer_closed) else {
            return;
        };
        let held = endpoint.peer_holds.contains(&Held::Windows);
        let mut gone = BTreeMap::new();
        if !held {
            gone.append(&mut endpoint.windows);
            gone.append(&mut endpoint.retired);
        }
        let closing = endpoint.closing.take();
        if endpoint.closed && endpoint.peer_holds.is_empty() && endpoint.mappings.is_empty() {
            let lanes = self
                .endpoints
                .remove(&id)
                .and_then(|endpoint| endpoint.lanes);
            let backing = lanes.and_then(|lanes| lanes.backing);
            self.outputs.extend(backing.map(Output::Release));
        }
        self.release(gone);
        if let Some(request) = closing {
            self.done(request, Ok(Value::Gone { held }));
        }
    }

    pub(super) fn reset(&mut self, id: EndpointId) {
        self.recall(id, true);
        let Some(endpoint) = self.endpoints.get_mut(&id) else {
            return;
        };
        endpoint.peer_closed = true;
        if endpoint.state == State::Connected {
            endpoint.state = State::Reset;
        }
        endpoint.peer_windows.clear();
        // Its bytes may still be read; nothing else can succeed.
        self.serve_receives(id);
        self.fail_all(id, libc::ECONNRESET);
        self.out(Output::Changed(id));
        self.try_finish_close(id);
    }

    pub(super) fn peer_down(&mut self, node: NodeId) {
        let was_there = self.neighbours.remove(&node);
        self.unmappable.remove(&node);
        let (own, through_host) = (self.id, self.id != HOST && node == HOST);
        self.lose_peers(|peer| peer.node == node || through_host && peer.node != own);
        if own == HOST && was_there {
            for other in self.neighbours.clone() {
                self.announce(other, Body::Lost(node));
            }
        } else if node == HOST {
            self.others.clear();
        }
    }

    pub(super) fn peer_up(&mut self, node: NodeId) {
        if self.id == HOST {
            for other in self.neighbours.clone() {
                if other != node {
                    self.announce(other, Body::Found(node));
                    self.announce(node, Body::Found(other));
                }
            }
        }
        self.neighbours.insert(node);
    }

    /// The host tells a card of another.
    fn announce(&mut self, to: NodeId, body: Body) {
        let [from, to] = [HOST, to].map(|node| PortId { node, port: 0 });
        let message = Message {
            from,
            to,
            connection: 0,
            body,
        };
        self.out(Output::Send(to.node, message));
    }

    /// The connections to these peers end.
    pub(super) fn lose_peers(&mut self, is_lost: impl Fn(PortId) -> bool) {
        for endpoint in self.endpoints.values_mut() {
            endpoint.incoming.retain(|(peer, ..)| !is_lost(*peer));
        }
        let lost: Vec<_> = self
            .endpoints
            .iter()
            .filter(|(_, e)| {
                matches!(
                    e.state,
                    State::Connected | State::Connecting(_) | State::Reset
                ) && is_lost(e.peer)
            })
            .map(|(id, _)| *id)
            .collect();
        for id in lost {
            if let Some(endpoint) = self.endpoints.get_mut(&id) {
                endpoint.lost = true;
                endpoint.closed_sent = true;
                endpoint.peer_holds.clear();
            }
            self.reset(id);
        }
    }
}
