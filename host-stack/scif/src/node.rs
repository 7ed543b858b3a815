//! The state machine of one SCIF node.
//!
//! ```text
//!  New --bind--> Bound --listen--> Listening --(accept)--> a new endpoint, Connected
//!   |              |
//!   '---connect----+--> Connecting --Accepted--> Connected --Closed, peer down--> Reset
//!                            '------Refused----> Bound
//! ```
//!
//! Requests come with an id of the driver's choosing and end with exactly one [`Output::Done`],
//! unless they are cancelled. Errors are errno values as in the scif manual pages.
//!
//! What must stay true: a sender never has more bytes under way than the receiver has room for; a
//! window's memory is released only when the peer has said that it uses it no more (or is gone).

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use snaprig_wire::{
    dma::{Descriptor, LEN_MAX},
    scif::{
        Body, EXTENTS_MAX, Extent, HOST, Message, NodeId, PAGE, PORT_DYNAMIC, PortId, QUEUE_BYTES,
    },
};

/// An endpoint of this node.
pub type EndpointId = u64;
/// A request, by the driver's own number.
pub type RequestId = u64;
/// Memory that backs a window, by the driver's own number.
pub type BackingId = u64;

/// `SCIF_PROT_READ`.
pub const PROT_READ: u8 = 1;
/// `SCIF_PROT_WRITE`.
pub const PROT_WRITE: u8 = 2;

const BACKLOG_MAX: usize = 256;
const ENDPOINTS_MAX: usize = 65_536;
/// Most extents of a peer's windows on one connection: 64 GiB in 4 KiB pieces would be a lie.
const PEER_EXTENTS_MAX: usize = 1 << 20;

/// What a program asks of its endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// scif_bind: port 0 takes a free one.
    Bind(u16),
    /// scif_listen.
    Listen(usize),
    /// scif_connect.
    Connect(PortId),
    /// scif_accept.
    Accept,
    /// scif_send: done when all bytes are with the peer's node.
    Send(Vec<u8>),
    /// scif_recv: done when there is at least one byte.
    Recv(usize),
    /// scif_register.
    Register {
        /// The memory, page by page, as the peer's DMA engine sees it.
        extents: Vec<Extent>,
        /// `SCIF_MAP_FIXED` at this offset.
        offset: Option<i64>,
        /// `PROT_*`.
        prot: u8,
        /// Given back with [`Output::Release`].
        backing: BackingId,
    },
    /// scif_unregister: whole windows.
    Unregister {
        /// Start of the range.
        offset: i64,
        /// Bytes.
        len: u64,
    },
    /// scif_readfrom, scif_writeto, and their forms for unregistered memory.
    Rma {
        /// This side's memory.
        local: Local,
        /// Bytes.
        len: u64,
        /// Offset in the peer's registered address space.
        remote: i64,
        /// From here to the peer.
        write: bool,
    },
}

/// This side of an RMA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Local {
    /// An offset in the registered address space.
    Window(i64),
    /// Pinned memory that starts `skip` bytes into the first extent.
    Memory {
        /// The pages.
        extents: Vec<Extent>,
        /// Bytes before the start.
        skip: u64,
    },
}

/// How a request ended well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Nothing to tell.
    Unit,
    /// The endpoint's port.
    Port(u16),
    /// A connection was accepted.
    Accepted {
        /// Its endpoint.
        endpoint: EndpointId,
        /// The other side.
        peer: PortId,
    },
    /// Bytes received.
    Bytes(Vec<u8>),
    /// Offset of the window.
    Offset(i64),
}

/// What happens to the node.
#[derive(Clone, Debug)]
pub enum Input {
    /// A program opens an endpoint under a number that is new.
    Open(EndpointId),
    /// It asks something of it.
    Request(RequestId, EndpointId, Op),
    /// It gives up waiting.
    Cancel(RequestId),
    /// It closes the endpoint.
    Close(EndpointId),
    /// A message came from a neighbour.
    Message(Message),
    /// A neighbour can be reached.
    PeerUp(NodeId),
    /// A neighbour is gone.
    PeerDown(NodeId),
    /// A copy ended.
    CopyDone(u64, Result<(), i32>),
}

/// What the node wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// A request ended: a value or an errno.
    Done(RequestId, Result<Value, i32>),
    /// A message for a neighbour.
    Send(NodeId, Message),
    /// Copies, in order; report with [`Input::CopyDone`].
    Copy {
        /// The number to report.
        job: u64,
        /// The other side of the connection: whose DMA engine can reach both.
        peer: NodeId,
        /// The copies.
        copies: Vec<Descriptor>,
    },
    /// Nobody uses this memory any more.
    Release(BackingId),
    /// What poll would say of the endpoint may have changed.
    Changed(EndpointId),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    New,
    Bound,
    Listening,
    Connecting(RequestId),
    Connected,
    Reset,
}

struct Window {
    len: u64,
    prot: u8,
    extents: Vec<Extent>,
    backing: Option<BackingId>,
}

struct Endpoint {
    state: State,
    port: Option<u16>,
    peer: PortId,
    connection: u32,
    backlog: usize,
    incoming: VecDeque<(PortId, u32)>,
    accepts: VecDeque<RequestId>,
    received: VecDeque<u8>,
    credit: usize,
    sends: VecDeque<(RequestId, Vec<u8>, usize)>,
    receives: VecDeque<(RequestId, usize)>,
    windows: BTreeMap<i64, Window>,
    unregistering: BTreeMap<(i64, u64), RequestId>,
    peer_windows: BTreeMap<i64, Window>,
    peer_window_part: Option<i64>,
    jobs: usize,
    closed: bool,
    closed_sent: bool,
    peer_closed: bool,
}

/// One node.
pub struct Node {
    id: NodeId,
    endpoints: BTreeMap<EndpointId, Endpoint>,
    /// Endpoints that the machine makes (accepted ones) are numbered from above.
    next_endpoint: EndpointId,
    next_connection: u32,
    next_port: u16,
    next_job: u64,
    jobs: BTreeMap<u64, (Option<RequestId>, EndpointId)>,
    neighbours: BTreeSet<NodeId>,
    outputs: VecDeque<Output>,
}

impl Node {
    /// Node `id`, with no neighbour.
    pub fn new(id: NodeId) -> Self {
        Self {
            id,
            endpoints: BTreeMap::new(),
            next_endpoint: 1 << 63,
            next_connection: 1,
            next_port: PORT_DYNAMIC,
            next_job: 1,
            jobs: BTreeMap::new(),
            neighbours: BTreeSet::new(),
            outputs: VecDeque::new(),
        }
    }

    /// Takes one input. Then ask [`Node::poll_output`] until it has nothing more.
    pub fn handle(&mut self, input: Input) {
        match input {
            Input::Open(id) => {
                self.endpoints.entry(id).or_insert_with(Endpoint::new);
            }
            Input::Request(request, id, op) => self.request(request, id, op),
            Input::Cancel(request) => self.cancel(request),
            Input::Close(id) => self.close(id),
            Input::Message(message) => self.message(message),
            Input::PeerUp(node) => {
                self.neighbours.insert(node);
            }
            Input::PeerDown(node) => self.peer_down(node),
            Input::CopyDone(job, result) => self.copy_done(job, result),
        }
    }

    /// The next thing to do.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Nodes that can be reached, this one included, in order (scif_get_nodeIDs).
    pub fn nodes(&self) -> Vec<NodeId> {
        self.neighbours
            .iter()
            .copied()
            .chain([self.id])
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect()
    }

    /// The other side of a connection.
    pub fn peer(&self, id: EndpointId) -> Option<PortId> {
        let endpoint = self.endpoints.get(&id)?;
        (endpoint.state == State::Connected).then_some(endpoint.peer)
    }

    /// What poll(2) would say.
    pub fn poll(&self, id: EndpointId) -> i16 {
        let Some(endpoint) = self.endpoints.get(&id) else {
            return libc::POLLNVAL;
        };
        let readable = !endpoint.received.is_empty() || !endpoint.incoming.is_empty();
        let mut mask = if readable { libc::POLLIN } else { 0 };
        match endpoint.state {
            State::Connected if endpoint.credit > 0 => mask |= libc::POLLOUT,
            State::Reset => mask |= libc::POLLHUP | libc::POLLIN,
            _ => {}
        }
        mask
    }

    fn out(&mut self, output: Output) {
        self.outputs.push_back(output);
    }

    fn done(&mut self, request: RequestId, result: Result<Value, i32>) {
        self.out(Output::Done(request, result));
    }

    fn request(&mut self, request: RequestId, id: EndpointId, op: Op) {
        let result = match op {
            Op::Bind(port) => self.bind(id, port).map(|port| Some(Value::Port(port))),
            Op::Listen(backlog) => self.listen(id, backlog),
            Op::Connect(peer) => self.connect(request, id, peer),
            Op::Accept => self.accept(request, id),
            Op::Send(data) => self.send(request, id, data),
            Op::Recv(max) => self.recv(request, id, max),
            Op::Register {
                extents,
                offset,
                prot,
                backing,
            } => {
                let result = self.register(id, extents, offset, prot, backing);
                if result.is_err() {
                    self.out(Output::Release(backing));
                }
                result
            }
            Op::Unregister { offset, len } => self.unregister(request, id, offset, len),
            Op::Rma {
                local,
                len,
                remote,
                write,
            } => self.rma(request, id, &local, len, remote, write),
        };
        match result {
            Ok(Some(value)) => self.done(request, Ok(value)),
            Ok(None) => {}
            Err(errno) => self.done(request, Err(errno)),
        }
    }

    fn endpoint(&mut self, id: EndpointId) -> Result<&mut Endpoint, i32> {
        self.endpoints
            .get_mut(&id)
            .filter(|e| !e.closed)
            .ok_or(libc::EBADF)
    }

    fn connected(&mut self, id: EndpointId) -> Result<&mut Endpoint, i32> {
        let endpoint = self.endpoint(id)?;
        match endpoint.state {
            State::Connected => Ok(endpoint),
            State::Reset => Err(libc::ECONNRESET),
            _ => Err(libc::ENOTCONN),
        }
    }

    fn bind(&mut self, id: EndpointId, port: u16) -> Result<u16, i32> {
        if self.endpoint(id)?.state != State::New {
            return Err(libc::EINVAL);
        }
        let port = match port {
            0 => self.free_port()?,
            port if self.is_bound(port) => return Err(libc::EADDRINUSE),
            port => port,
        };
        let endpoint = self.endpoint(id)?;
        (endpoint.state, endpoint.port) = (State::Bound, Some(port));
        Ok(port)
    }

    fn is_bound(&self, port: u16) -> bool {
        self.endpoints
            .values()
            .any(|endpoint| endpoint.port == Some(port))
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

    fn listen(&mut self, id: EndpointId, backlog: usize) -> Result<Option<Value>, i32> {
        let endpoint = self.endpoint(id)?;
        match endpoint.state {
            State::Bound => {
                endpoint.state = State::Listening;
                endpoint.backlog = backlog.clamp(1, BACKLOG_MAX);
                Ok(Some(Value::Unit))
            }
            State::Connected | State::Connecting(_) => Err(libc::EISCONN),
            _ => Err(libc::EINVAL),
        }
    }

    fn connect(
        &mut self,
        request: RequestId,
        id: EndpointId,
        peer: PortId,
    ) -> Result<Option<Value>, i32> {
        match self.endpoint(id)?.state {
            State::New => {
                self.bind(id, 0)?;
            }
            State::Bound => {}
            State::Listening => return Err(libc::EOPNOTSUPP),
            State::Connecting(_) => return Err(libc::EINPROGRESS),
            State::Connected | State::Reset => return Err(libc::EISCONN),
        }
        if !self.reachable(peer.node) {
            return Err(libc::ENODEV);
        }
        let connection = self.next_connection;
        self.next_connection = connection.wrapping_add(1);
        let endpoint = self.endpoint(id)?;
        endpoint.state = State::Connecting(request);
        (endpoint.peer, endpoint.connection) = (peer, connection);
        self.tell(id, Body::Connect);
        Ok(None)
    }

    fn reachable(&self, node: NodeId) -> bool {
        node == self.id
            || self.neighbours.contains(&node)
            // A card reaches the other cards through the host.
            || self.id != HOST && self.neighbours.contains(&HOST)
    }

    fn accept(&mut self, request: RequestId, id: EndpointId) -> Result<Option<Value>, i32> {
        let endpoint = self.endpoint(id)?;
        if endpoint.state != State::Listening {
            return Err(libc::EINVAL);
        }
        endpoint.accepts.push_back(request);
        self.accept_next(id);
        Ok(None)
    }

    fn accept_next(&mut self, id: EndpointId) {
        let Some(listener) = self.endpoints.get_mut(&id) else {
            return;
        };
        if listener.accepts.is_empty() || listener.incoming.is_empty() {
            return;
        }
        let (Some(request), Some((peer, connection)), Some(port)) = (
            listener.accepts.pop_front(),
            listener.incoming.pop_front(),
            listener.port,
        ) else {
            return;
        };
        let accepted = self.next_endpoint;
        self.next_endpoint += 1;
        let mut endpoint = Endpoint::new();
        endpoint.state = State::Connected;
        endpoint.port = Some(port);
        (endpoint.peer, endpoint.connection) = (peer, connection);
        self.endpoints.insert(accepted, endpoint);
        self.tell(accepted, Body::Accepted);
        self.done(
            request,
            Ok(Value::Accepted {
                endpoint: accepted,
                peer,
            }),
        );
    }

    fn send(
        &mut self,
        request: RequestId,
        id: EndpointId,
        data: Vec<u8>,
    ) -> Result<Option<Value>, i32> {
        let endpoint = self.connected(id)?;
        if data.is_empty() {
            return Ok(Some(Value::Unit));
        }
        endpoint.sends.push_back((request, data, 0));
        self.push_sends(id);
        Ok(None)
    }

    fn push_sends(&mut self, id: EndpointId) {
        loop {
            let Some(endpoint) = self.endpoints.get_mut(&id) else {
                return;
            };
            let credit = endpoint.credit;
            let Some((request, data, sent)) = endpoint.sends.front_mut() else {
                return;
            };
            if credit == 0 {
                return;
            }
            let part = credit.min(data.len() - *sent);
            let bytes = data[*sent..*sent + part].to_vec();
            *sent += part;
            let finished = (*sent == data.len()).then_some(*request);
            endpoint.credit -= part;
            if finished.is_some() {
                endpoint.sends.pop_front();
            }
            self.tell(id, Body::Data(bytes));
            if let Some(request) = finished {
                self.done(request, Ok(Value::Unit));
            }
        }
    }

    fn recv(
        &mut self,
        request: RequestId,
        id: EndpointId,
        max: usize,
    ) -> Result<Option<Value>, i32> {
        let endpoint = self.endpoint(id)?;
        match endpoint.state {
            State::Connected => {}
            // What came before the end may still be read.
            State::Reset if !endpoint.received.is_empty() => {}
            State::Reset => return Err(libc::ECONNRESET),
            _ => return Err(libc::ENOTCONN),
        }
        if max == 0 {
            return Ok(Some(Value::Bytes(Vec::new())));
        }
        endpoint.receives.push_back((request, max));
        self.serve_receives(id);
        Ok(None)
    }

    fn serve_receives(&mut self, id: EndpointId) {
        loop {
            let Some(endpoint) = self.endpoints.get_mut(&id) else {
                return;
            };
            if endpoint.received.is_empty() {
                return;
            }
            let Some((request, max)) = endpoint.receives.pop_front() else {
                return;
            };
            let count = max.min(endpoint.received.len());
            let bytes: Vec<u8> = endpoint.received.drain(..count).collect();
            if endpoint.state == State::Connected {
                self.tell(id, Body::Credit(count as u32));
            }
            self.done(request, Ok(Value::Bytes(bytes)));
        }
    }

    fn register(
        &mut self,
        id: EndpointId,
        extents: Vec<Extent>,
        offset: Option<i64>,
        prot: u8,
        backing: BackingId,
    ) -> Result<Option<Value>, i32> {
        let endpoint = self.connected(id)?;
        let len = total(&extents).ok_or(libc::EINVAL)?;
        if len == 0 || prot & !(PROT_READ | PROT_WRITE) != 0 {
            return Err(libc::EINVAL);
        }
        let offset = match offset {
            Some(offset) if offset < 0 || !(offset as u64).is_multiple_of(PAGE) => {
                return Err(libc::EINVAL);
            }
            Some(offset) if overlaps(&endpoint.windows, offset, len) => {
                return Err(libc::EADDRINUSE);
            }
            Some(offset) => offset,
            None => endpoint
                .windows
                .last_key_value()
                .map_or(PAGE as i64, |(start, window)| start + window.len as i64),
        };
        let window = Window {
            len,
            prot,
            extents: extents.clone(),
            backing: Some(backing),
        };
        endpoint.windows.insert(offset, window);
        let parts = extents.chunks(EXTENTS_MAX);
        let (mut at, count) = (offset, parts.len());
        for (index, part) in parts.enumerate() {
            let bytes = total(part).ok_or(libc::EINVAL)?;
            let more = index + 1 < count;
            self.tell(
                id,
                Body::Window {
                    offset: at,
                    prot,
                    more,
                    extents: part.to_vec(),
                },
            );
            at += bytes as i64;
        }
        Ok(Some(Value::Offset(offset)))
    }

    fn unregister(
        &mut self,
        request: RequestId,
        id: EndpointId,
        offset: i64,
        len: u64,
    ) -> Result<Option<Value>, i32> {
        let endpoint = self.connected(id)?;
        // Whole windows only, as scif_unregister(3) demands.
        let (mut at, end) = (
            offset,
            offset.checked_add_unsigned(len).ok_or(libc::EINVAL)?,
        );
        while at < end {
            let window = endpoint.windows.get(&at).ok_or(libc::ENXIO)?;
            at += window.len as i64;
        }
        if at != end || len == 0 {
            return Err(libc::EINVAL);
        }
        endpoint.unregistering.insert((offset, len), request);
        self.tell(id, Body::Unwindow { offset, len });
        Ok(None)
    }

    fn rma(
        &mut self,
        request: RequestId,
        id: EndpointId,
        local: &Local,
        len: u64,
        remote: i64,
        write: bool,
    ) -> Result<Option<Value>, i32> {
        let endpoint = self.connected(id)?;
        if len == 0 {
            return Ok(Some(Value::Unit));
        }
        let (local_prot, remote_prot) = if write {
            (PROT_READ, PROT_WRITE)
        } else {
            (PROT_WRITE, PROT_READ)
        };
        let here = match local {
            Local::Window(offset) => slice(&endpoint.windows, *offset, len, local_prot)?,
            Local::Memory { extents, skip } => cut(extents, *skip, len).ok_or(libc::EFAULT)?,
        };
        let there = slice(&endpoint.peer_windows, remote, len, remote_prot)?;
        let copies = if write {
            pair(&here, &there)
        } else {
            pair(&there, &here)
        };
        endpoint.jobs += 1;
        let peer = endpoint.peer.node;
        let job = self.next_job;
        self.next_job += 1;
        self.jobs.insert(job, (Some(request), id));
        self.out(Output::Copy { job, peer, copies });
        Ok(None)
    }

    fn copy_done(&mut self, job: u64, result: Result<(), i32>) {
        let Some((request, id)) = self.jobs.remove(&job) else {
            return;
        };
        if let Some(request) = request {
            self.done(request, result.map(|()| Value::Unit));
        }
        if let Some(endpoint) = self.endpoints.get_mut(&id) {
            endpoint.jobs -= 1;
        }
        self.try_finish_close(id);
    }

    fn cancel(&mut self, request: RequestId) {
        for endpoint in self.endpoints.values_mut() {
            endpoint.accepts.retain(|r| *r != request);
            endpoint.receives.retain(|(r, _)| *r != request);
            endpoint.sends.retain(|(r, ..)| *r != request);
            endpoint.unregistering.retain(|_, r| *r != request);
            if endpoint.state == State::Connecting(request) {
                endpoint.state = State::Bound;
            }
        }
        for (owner, _) in self.jobs.values_mut() {
            if *owner == Some(request) {
                *owner = None;
            }
        }
    }

    fn close(&mut self, id: EndpointId) {
        let Some(endpoint) = self.endpoints.get_mut(&id) else {
            return;
        };
        endpoint.closed = true;
        let refused = std::mem::take(&mut endpoint.incoming);
        let port = endpoint.port;
        for (peer, connection) in refused {
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
        self.try_finish_close(id);
    }

    /// Ends every request of the endpoint.
    fn fail_all(&mut self, id: EndpointId, errno: i32) {
        let Some(endpoint) = self.endpoints.get_mut(&id) else {
            return;
        };
        let mut requests: Vec<RequestId> = endpoint.accepts.drain(..).collect();
        requests.extend(endpoint.sends.drain(..).map(|(request, ..)| request));
        requests.extend(endpoint.receives.drain(..).map(|(request, _)| request));
        requests.extend(std::mem::take(&mut endpoint.unregistering).into_values());
        if let State::Connecting(request) = endpoint.state {
            requests.push(request);
            endpoint.state = State::Bound;
        }
        for request in requests {
            self.done(request, Err(errno));
        }
    }

    /// Once no copy of this side is under way the peer is told of the end; once the peer has said the
    /// same (or is gone) nobody can touch the windows, and their memory is given back.
    fn try_finish_close(&mut self, id: EndpointId) {
        let Some(endpoint) = self.endpoints.get_mut(&id).filter(|e| e.jobs == 0) else {
            return;
        };
        let over = match endpoint.state {
            State::Connected => endpoint.closed,
            State::Reset => endpoint.peer_closed,
            _ => false,
        };
        if over && !endpoint.closed_sent {
            endpoint.closed_sent = true;
            self.tell(id, Body::Closed);
        }
        let Some(endpoint) = self.endpoints.get_mut(&id).filter(|e| e.peer_closed) else {
            return;
        };
        let windows = std::mem::take(&mut endpoint.windows);
        if endpoint.closed {
            self.endpoints.remove(&id);
        }
        for backing in windows.into_values().filter_map(|window| window.backing) {
            self.out(Output::Release(backing));
        }
    }

    fn reset(&mut self, id: EndpointId) {
        let Some(endpoint) = self.endpoints.get_mut(&id) else {
            return;
        };
        endpoint.peer_closed = true;
        if endpoint.state == State::Connected {
            endpoint.state = State::Reset;
        }
        // Its bytes may still be read; nothing else can succeed.
        self.serve_receives(id);
        self.fail_all(id, libc::ECONNRESET);
        self.out(Output::Changed(id));
        self.try_finish_close(id);
    }

    fn peer_down(&mut self, node: NodeId) {
        let was_there = self.neighbours.remove(&node);
        let (own, through_host) = (self.id, self.id != HOST && node == HOST);
        self.lose_peers(|peer| peer.node == node || through_host && peer.node != own);
        if own == HOST && was_there {
            for other in self.neighbours.clone() {
                let [from, to] = [HOST, other].map(|node| PortId { node, port: 0 });
                let (connection, body) = (0, Body::Lost(node));
                let message = Message {
                    from,
                    to,
                    connection,
                    body,
                };
                self.out(Output::Send(other, message));
            }
        }
    }

    /// The connections to these peers end.
    fn lose_peers(&mut self, is_lost: impl Fn(PortId) -> bool) {
        for endpoint in self.endpoints.values_mut() {
            endpoint.incoming.retain(|(peer, _)| !is_lost(*peer));
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
                endpoint.closed_sent = true;
            }
            self.reset(id);
        }
    }

    /// Sends a message of an endpoint to its peer.
    fn tell(&mut self, id: EndpointId, body: Body) {
        let Some(endpoint) = self.endpoints.get(&id) else {
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

    fn deliver(&mut self, message: Message) {
        let to = message.to.node;
        if to == self.id {
            return self.message(message);
        }
        let next = if self.id == HOST { to } else { HOST };
        if self.neighbours.contains(&next) {
            self.out(Output::Send(next, message));
        }
    }

    fn message(&mut self, message: Message) {
        if message.to.node != self.id {
            if self.id == HOST && message.from.node != message.to.node {
                self.forward(message);
            }
            return;
        }
        match message.body {
            Body::Connect => return self.incoming(&message),
            Body::Lost(node) if message.from.node == HOST && self.id != HOST => {
                return self.lose_peers(|peer| peer.node == node && node != HOST);
            }
            Body::Lost(_) => return,
            _ => {}
        }
        let found = self.endpoints.iter().find(|(_, endpoint)| {
            endpoint.port == Some(message.to.port)
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
        } else if let Body::Connect = message.body {
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

    fn incoming(&mut self, message: &Message) {
        let listener = self.endpoints.iter_mut().find(|(_, e)| {
            e.state == State::Listening && e.port == Some(message.to.port) && !e.closed
        });
        match listener {
            Some((id, endpoint)) if endpoint.incoming.len() < endpoint.backlog => {
                let id = *id;
                endpoint
                    .incoming
                    .push_back((message.from, message.connection));
                if self.endpoints.len() < ENDPOINTS_MAX {
                    self.accept_next(id);
                }
                self.out(Output::Changed(id));
            }
            _ => self.answer(message, Body::Refused),
        }
    }

    fn on_connection(&mut self, id: EndpointId, message: Message) {
        let Some(endpoint) = self.endpoints.get_mut(&id) else {
            return;
        };
        match message.body {
            Body::Connect => {}
            Body::Accepted => {
                if let State::Connecting(request) = endpoint.state {
                    endpoint.state = State::Connected;
                    let port = endpoint.port.unwrap_or(0);
                    self.done(request, Ok(Value::Port(port)));
                }
            }
            Body::Refused => {
                if let State::Connecting(request) = endpoint.state {
                    endpoint.state = State::Bound;
                    self.done(request, Err(libc::ECONNREFUSED));
                }
            }
            Body::Data(bytes) => {
                if endpoint.received.len() + bytes.len() > QUEUE_BYTES {
                    // More than it has credit for: the peer is broken.
                    return self.reset(id);
                }
                if endpoint.state == State::Connected && !endpoint.closed {
                    endpoint.received.extend(bytes);
                    self.serve_receives(id);
                    self.out(Output::Changed(id));
                }
            }
            Body::Credit(bytes) => {
                endpoint.credit = (endpoint.credit + bytes as usize).min(QUEUE_BYTES);
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
            Body::Unwindow { offset, len } => {
                if let Some(end) = offset.checked_add_unsigned(len) {
                    endpoint
                        .peer_windows
                        .retain(|at, _| *at < offset || *at >= end);
                    self.tell(id, Body::Unwindowed { offset, len });
                }
            }
            Body::Unwindowed { offset, len } => self.unwindowed(id, offset, len),
            Body::Lost(_) => {}
            Body::Closed => self.reset(id),
        }
    }

    fn peer_window(
        &mut self,
        id: EndpointId,
        offset: i64,
        prot: u8,
        more: bool,
        extents: Vec<Extent>,
    ) {
        let Some(endpoint) = self.endpoints.get_mut(&id) else {
            return;
        };
        let held: usize = endpoint
            .peer_windows
            .values()
            .map(|w| w.extents.len())
            .sum();
        let len = total(&extents).filter(|len| *len > 0 && offset >= 0);
        let Some(len) = len.filter(|_| held + extents.len() <= PEER_EXTENTS_MAX) else {
            return self.reset(id);
        };
        let continued = endpoint.peer_window_part.take().filter(|start| {
            let end = |window: &Window| start + window.len as i64;
            endpoint
                .peer_windows
                .get(start)
                .is_some_and(|window| end(window) == offset)
        });
        match continued {
            Some(start) => {
                if let Some(window) = endpoint.peer_windows.get_mut(&start) {
                    window.len += len;
                    window.extents.extend(extents);
                }
                endpoint.peer_window_part = more.then_some(start);
            }
            None if overlaps(&endpoint.peer_windows, offset, len) => self.reset(id),
            None => {
                endpoint.peer_windows.insert(
                    offset,
                    Window {
                        len,
                        prot,
                        extents,
                        backing: None,
                    },
                );
                endpoint.peer_window_part = more.then_some(offset);
            }
        }
    }

    fn unwindowed(&mut self, id: EndpointId, offset: i64, len: u64) {
        let Some(endpoint) = self.endpoints.get_mut(&id) else {
            return;
        };
        let request = endpoint.unregistering.remove(&(offset, len));
        let end = offset.saturating_add_unsigned(len);
        let gone: Vec<i64> = endpoint
            .windows
            .range(offset..end)
            .map(|(at, _)| *at)
            .collect();
        let mut backings = Vec::new();
        for at in gone {
            backings.extend(
                endpoint
                    .windows
                    .remove(&at)
                    .and_then(|window| window.backing),
            );
        }
        for backing in backings {
            self.out(Output::Release(backing));
        }
        if let Some(request) = request {
            self.done(request, Ok(Value::Unit));
        }
    }
}

impl Endpoint {
    fn new() -> Self {
        Self {
            state: State::New,
            port: None,
            peer: PortId { node: 0, port: 0 },
            connection: 0,
            backlog: 0,
            incoming: VecDeque::new(),
            accepts: VecDeque::new(),
            received: VecDeque::new(),
            credit: QUEUE_BYTES,
            sends: VecDeque::new(),
            receives: VecDeque::new(),
            windows: BTreeMap::new(),
            unregistering: BTreeMap::new(),
            peer_windows: BTreeMap::new(),
            peer_window_part: None,
            jobs: 0,
            closed: false,
            closed_sent: false,
            peer_closed: false,
        }
    }
}

/// Bytes of all extents; `None` if one is not whole pages or the sum makes no sense.
fn total(extents: &[Extent]) -> Option<u64> {
    extents.iter().try_fold(0_u64, |sum, extent| {
        let sound = extent.len > 0
            && extent.len % PAGE == 0
            && extent.address % PAGE == 0
            && extent.address.checked_add(extent.len)? <= 1 << 40;
        sum.checked_add(extent.len)
            .filter(|sum| sound && *sum <= 1 << 40)
    })
}

fn overlaps(windows: &BTreeMap<i64, Window>, offset: i64, len: u64) -> bool {
    let Some(end) = offset.checked_add_unsigned(len) else {
        return true;
    };
    windows
        .range(..end)
        .next_back()
        .is_some_and(|(start, window)| start + window.len as i64 > offset)
}

/// The extents of a range that may span adjacent windows.
fn slice(
    windows: &BTreeMap<i64, Window>,
    offset: i64,
    len: u64,
    prot: u8,
) -> Result<Vec<Extent>, i32> {
    let end = offset.checked_add_unsigned(len).ok_or(libc::EINVAL)?;
    let (mut at, mut found) = (offset, Vec::new());
    while at < end {
        let (start, window) = windows.range(..=at).next_back().ok_or(libc::ENXIO)?;
        let window_end = start + window.len as i64;
        if at >= window_end {
            return Err(libc::ENXIO);
        }
        if window.prot & prot == 0 {
            return Err(libc::EACCES);
        }
        let part = (end.min(window_end) - at) as u64;
        found.extend(cut(&window.extents, (at - start) as u64, part).ok_or(libc::ENXIO)?);
        at += part as i64;
    }
    Ok(found)
}

/// `len` bytes of the extents, from `skip` on.
fn cut(extents: &[Extent], mut skip: u64, mut len: u64) -> Option<Vec<Extent>> {
    let mut found = Vec::new();
    for extent in extents {
        if len == 0 {
            break;
        }
        if skip >= extent.len {
            skip -= extent.len;
            continue;
        }
        let part = len.min(extent.len - skip);
        found.push(Extent {
            address: extent.address + skip,
            len: part,
        });
        (skip, len) = (0, len - part);
    }
    (len == 0).then_some(found)
}

/// Copies that move one list of extents to another of the same length.
fn pair(from: &[Extent], to: &[Extent]) -> Vec<Descriptor> {
    let (mut copies, mut i, mut j) = (Vec::new(), 0, 0);
    let (mut from_done, mut to_done) = (0, 0);
    while let (Some(src), Some(dst)) = (from.get(i), to.get(j)) {
        let len = (src.len - from_done).min(dst.len - to_done).min(LEN_MAX);
        copies.push(Descriptor {
            src: src.address + from_done,
            dst: dst.address + to_done,
            len: len as u32,
            interrupt: false,
        });
        from_done += len;
        to_done += len;
        if from_done == src.len {
            (i, from_done) = (i + 1, 0);
        }
        if to_done == dst.len {
            (j, to_done) = (j + 1, 0);
        }
    }
    copies
}
