//! The state machine of one SCIF node.
//!
//! ```text
//!  New --bind--> Bound --listen--> Listening --(accept)--> a new endpoint, Connected
//!   |              |
//!   '---connect----+--> Connecting --Accepted--> Connected --Closed, peer down--> Reset
//!                            '------Refused----> Bound
//! ```
//!
//! | module | what it is |
//! |---|---|
//! | `connection` | bind, listen, connect, accept, close, and how connections end |
//! | `stream` | send and receive |
//! | `window` | registered memory of both sides, and who still uses it |
//! | `rma` | copies between windows |
//! | `fence` | marks, waits, signals |
//! | `route` | messages to and from other nodes |
//! | `types` | inputs and outputs |
//!
//! Requests come with an id of the driver's choosing and end with exactly one [`Output::Done`],
//! unless they are cancelled. Errors are errno values as in the scif manual pages.
//!
//! What must stay true: a sender never has more bytes under way than the receiver has room for; a window's
//! memory is released only when the peer has said that it uses it no more (or is gone).

mod connection;
mod fence;
mod lanes;
mod rma;
mod route;
mod stream;
#[cfg(test)]
mod tests;
mod types;
mod window;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use snaprig_wire::scif::{Extent, Held, NodeId, PORT_DYNAMIC, PortId, WINDOW_BYTES, Way};

pub use self::lanes::Lanes;
pub use self::types::{Input, Local, Op, Output, Recall, Value};
use self::{
    fence::Waiting,
    rma::CopyOptions,
    stream::Sending,
    window::{Registration, Window},
};

/// An endpoint of this node.
pub type EndpointId = u64;
/// A request, by the driver's own number.
pub type RequestId = u64;
/// Memory that backs a window, by the driver's own number.
pub type BackingId = u64;
/// RMA that is under way.
pub type JobId = u64;
/// A mapping of the peer's windows.
pub type MappingId = u64;

/// `SCIF_PROT_READ`.
pub const PROT_READ: u8 = 1;
/// `SCIF_PROT_WRITE`.
pub const PROT_WRITE: u8 = 2;

const ENDPOINTS_MAX: usize = 65_536;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    New,
    Bound,
    Listening,
    /// Nobody waits where the connect does not block.
    Connecting(Option<RequestId>),
    Connected,
    Reset,
}

struct Endpoint {
    state: State,
    port: Option<u16>,
    peer: PortId,
    connection: u32,
    /// How a connect that does not block has ended, until that is asked.
    outcome: Option<Result<(), i32>>,
    /// Its program takes lanes.
    is_willing: bool,
    /// Lanes that it offers.
    laid: Option<(Extent, BackingId)>,
    /// Accepted for this request, once lanes are laid.
    accepting: Option<RequestId>,
    lanes: Option<Lanes>,
    backlog: usize,
    incoming: VecDeque<(PortId, u32, Way)>,
    accepts: VecDeque<RequestId>,
    received: VecDeque<u8>,
    credit: usize,
    sends: VecDeque<Sending>,
    receives: VecDeque<(RequestId, usize)>,
    windows: BTreeMap<i64, Window>,
    /// Unregistered, and mapped by the peer.
    retired: BTreeMap<i64, Window>,
    /// Registrations that wait for the peer to say what it has mapped, under the number of its answer.
    questioned: BTreeMap<u64, Registration>,
    /// Offsets of windows that the peer does not know yet, in the order in which it is told.
    registering: VecDeque<(Option<RequestId>, i64)>,
    unregistering: BTreeMap<(i64, u64), Option<RequestId>>,
    peer_windows: BTreeMap<i64, Window>,
    peer_window_part: Option<i64>,
    /// RMA under way, each with its place in the order in which they were started.
    jobs: BTreeMap<JobId, i32>,
    started: i32,
    /// Copies may be under way of which nobody tells; or those are recalled, as this job.
    leased: bool,
    recalled: Option<JobId>,
    waiting: Vec<Waiting>,
    /// What the peer was asked of its RMA.
    asked: BTreeMap<u64, RequestId>,
    /// Mapped parts of the peer's windows and lanes, and those windows of them that it wants back.
    mappings: BTreeMap<MappingId, (i64, u64)>,
    held: Vec<(i64, u64)>,
    /// What of ours the peer has mapped, which is gone otherwise.
    peer_holds: BTreeSet<Held>,
    closing: Option<RequestId>,
    /// The peer's node is gone. In another life it numbers its connections anew, so what comes from
    /// there is for others.
    lost: bool,
    closed: bool,
    closed_sent: bool,
    peer_closed: bool,
}

/// One node.
pub struct Node {
    id: NodeId,
    /// Bytes of a connection under way and unread, the same on every node.
    window: usize,
    endpoints: BTreeMap<EndpointId, Endpoint>,
    /// Endpoints that the machine makes (accepted ones) are numbered from above.
    next_endpoint: EndpointId,
    next_connection: u32,
    next_port: u16,
    next_job: JobId,
    jobs: BTreeMap<JobId, (Option<RequestId>, EndpointId)>,
    mappings: BTreeMap<MappingId, EndpointId>,
    neighbours: BTreeSet<NodeId>,
    /// Of these, those whose memory programs of this one cannot map.
    unmappable: BTreeSet<NodeId>,
    /// Other cards, as the host tells a card.
    others: BTreeSet<NodeId>,
    outputs: VecDeque<Output>,
    recalls: VecDeque<Recall>,
}

impl Node {
    /// Node `id`, with no neighbour.
    pub fn new(id: NodeId) -> Self {
        Self::with_window(id, WINDOW_BYTES)
    }

    /// One that lets so many bytes of a connection be under way or unread, for nodes that do alike: few bytes fill it.
    pub fn with_window(id: NodeId, window: usize) -> Self {
        Self {
            id,
            window,
            endpoints: BTreeMap::new(),
            next_endpoint: 1 << 63,
            next_connection: 1,
            next_port: PORT_DYNAMIC,
            next_job: 1,
            jobs: BTreeMap::new(),
            mappings: BTreeMap::new(),
            neighbours: BTreeSet::new(),
            unmappable: BTreeSet::new(),
            others: BTreeSet::new(),
            outputs: VecDeque::new(),
            recalls: VecDeque::new(),
        }
    }

    /// Takes one input. Then ask [`Node::poll_output`] until it has nothing more.
    pub fn handle(&mut self, input: Input) {
        match input {
            Input::Open(id) => {
                let new = || Endpoint::new(self.window);
                self.endpoints.entry(id).or_insert_with(new);
            }
            Input::Request(request, id, op) => self.request(request, id, op),
            Input::Cancel(request) => drop(self.forget(request)),
            Input::Interrupt(request) => self.interrupt(request),
            Input::Close(id) => self.close(id),
            Input::Message(message) => self.message(message),
            Input::PeerUp(node) => self.peer_up(node),
            Input::PeerDown(node) => self.peer_down(node),
            Input::CopyDone(job, result) => self.copy_done(job, result),
            Input::Unmapped(mapping) => self.unmapped(mapping),
            Input::Laid(id, laid) => self.laid(id, laid),
        }
    }

    /// The next thing to do.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Leases to take back, before any output is asked for; there are none where nothing is leased.
    pub fn poll_recall(&mut self) -> Option<Recall> {
        self.recalls.pop_front()
    }

    /// Nodes that can be reached, this one included, in order (scif_get_nodeIDs).
    pub fn nodes(&self) -> Vec<NodeId> {
        self.neighbours
            .union(&self.others)
            .copied()
            .chain([self.id])
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect()
    }

    /// Endpoints, RMA and mappings that there are: none once every endpoint is closed on both sides.
    pub fn in_use(&self) -> usize {
        self.endpoints.len() + self.jobs.len() + self.mappings.len()
    }

    /// The other side of a connection.
    pub fn peer(&self, id: EndpointId) -> Option<PortId> {
        let endpoint = self.endpoints.get(&id)?;
        (endpoint.state == State::Connected).then_some(endpoint.peer)
    }

    /// The other end of a connection with an endpoint of this node.
    pub fn twin(&self, id: EndpointId) -> Option<EndpointId> {
        let this = self.endpoints.get(&id)?;
        let own = PortId {
            node: self.id,
            port: this.port?,
        };
        let is_it = |other: &Endpoint| {
            other.state == State::Connected
                && !other.closed
                && other.connection == this.connection
                && other.peer == own
                && other.port == Some(this.peer.port)
        };
        if self.peer(id)?.node != self.id {
            return None;
        }
        let mut endpoints = self.endpoints.iter();
        let twin = endpoints.find(|(other, endpoint)| **other != id && is_it(endpoint));
        twin.map(|(other, _)| *other)
    }

    /// Why a connected endpoint's calls would fail now.
    pub fn check_connected(&self, id: EndpointId) -> Result<(), i32> {
        let endpoint = self.endpoints.get(&id).filter(|e| !e.closed);
        match endpoint.ok_or(libc::EBADF)?.state {
            State::Connected => Ok(()),
            State::Reset => Err(libc::ECONNRESET),
            _ => Err(libc::ENOTCONN),
        }
    }

    /// What poll(2) would say.
    pub fn poll(&self, id: EndpointId) -> i16 {
        let Some(endpoint) = self.endpoints.get(&id) else {
            return libc::POLLNVAL;
        };
        let when = |is: bool, mask: i16| if is { mask } else { 0 };
        let readable = when(!endpoint.received.is_empty(), libc::POLLIN);
        let writable = when(endpoint.room(self.window) > 0, libc::POLLOUT);
        match endpoint.state {
            _ if endpoint.outcome.is_some() => libc::POLLOUT | readable,
            State::Listening => when(!endpoint.incoming.is_empty(), libc::POLLIN),
            State::Connecting(_) => 0,
            State::Connected => readable | writable,
            State::Reset => readable | writable | libc::POLLHUP,
            State::New | State::Bound => libc::POLLERR,
        }
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
            Op::Connect(peer) => self.connect(Some(request), id, peer),
            Op::ConnectAsync(peer) => self.connect(None, id, peer),
            Op::Accept => self.accept(request, id, true),
            Op::TryAccept => self.accept(request, id, false),
            Op::Send(data) => self.send(request, id, data),
            Op::Recv(max) => self.read(request, id, max, true),
            Op::Write { data, block } => self.write(request, id, data, block),
            Op::Read { max, block } => self.read(request, id, max, block),
            Op::Register {
                extents,
                offset,
                prot,
                backing,
            } => {
                let registration = Registration {
                    request,
                    extents,
                    offset,
                    prot,
                    backing,
                };
                self.register(id, registration)
            }
            Op::Unregister { offset, len } => self.unregister(request, id, offset, len),
            Op::Rma {
                local,
                len,
                remote,
                write,
                ordered,
                sync,
            } => {
                let how = CopyOptions {
                    write,
                    ordered,
                    sync,
                };
                self.rma(request, id, &local, len, remote, how)
            }
            Op::Plan {
                local,
                len,
                remote,
                write,
            } => self.plan(id, local, len, remote, write),
            Op::Lease(remote) => self.lease(id, remote),
            Op::Map { offset, len, prot } => self.map(id, offset, len, prot),
            Op::Willing => self.willing(id),
            Op::MapLanes => self.map_lanes(id),
            Op::Ring(bell) => self.ring(id, bell),
            Op::FenceMark { peer } => self.fence_mark(request, id, peer),
            Op::FenceWait(mark) => self.fence_wait(request, id, mark),
            Op::FenceSignal {
                local,
                remote,
                peer,
            } => self.fence_signal(request, id, local, remote, peer),
            Op::Close => self.close_and_wait(request, id),
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
            // Of a lost node as well, as the driver has it: it ends the connections of one at once, and
            // looks at that first. ENODEV, which the manual pages list too, is for what finds a device
            // gone before the node has heard of it.
            State::Reset => Err(libc::ECONNRESET),
            _ => Err(libc::ENOTCONN),
        }
    }

    /// The request ends untold. Bytes that it had sent.
    fn forget(&mut self, request: RequestId) -> Option<usize> {
        let connecting = State::Connecting(Some(request));
        let gives_up = self.endpoints.iter().find(|(_, it)| it.state == connecting);
        if let Some(id) = gives_up.map(|(id, _)| *id) {
            self.abandon_lanes(id);
        }
        let mut found = None;
        for (id, endpoint) in &mut self.endpoints {
            let sent = endpoint.sends.iter().find(|s| s.request == request);
            let mut is_here = sent.is_some();
            found = sent.map(|s| s.sent).or(found);
            endpoint.sends.retain(|s| s.request != request);
            let mut gone = |is: bool| {
                is_here |= is;
                !is
            };
            endpoint.accepts.retain(|r| gone(*r == request));
            endpoint.receives.retain(|(r, _)| gone(*r == request));
            endpoint.asked.retain(|_, r| gone(*r == request));
            endpoint.questioned.retain(|_, registration| {
                let is = registration.request == request;
                if is {
                    let backing = registration.backing;
                    self.outputs.push_back(Output::Release(backing));
                }
                gone(is)
            });
            endpoint.waiting.retain(|w| gone(w.is_for(request)));
            let registering = endpoint.registering.iter_mut().map(|(waits, _)| waits);
            for waiting in endpoint.unregistering.values_mut().chain(registering) {
                if *waiting == Some(request) {
                    *waiting = None;
                    is_here = true;
                }
            }
            if endpoint.closing == Some(request) {
                endpoint.closing = None;
                is_here = true;
            }
            if endpoint.state == State::Connecting(Some(request)) {
                endpoint.state = State::Bound;
                is_here = true;
            }
            if is_here {
                self.outputs.push_back(Output::Changed(*id));
                found = found.or(Some(0));
            }
        }
        for (owner, _) in self.jobs.values_mut() {
            if *owner == Some(request) {
                *owner = None;
                found = Some(0);
            }
        }
        found
    }

    fn interrupt(&mut self, request: RequestId) {
        if self.end_registering(request) {
            return;
        }
        match self.forget(request) {
            Some(0) => self.done(request, Err(libc::EINTR)),
            Some(sent) => self.done(request, Ok(Value::Count(sent))),
            // It has ended.
            None => {}
        }
    }
}

impl Endpoint {
    /// Whether something of the peer's is mapped.
    fn has_mapped(&self, what: Held) -> bool {
        let mut mapped = self.mappings.values();
        mapped.any(|range| Held::of(*range) == what)
    }

    fn new(credit: usize) -> Self {
        Self {
            state: State::New,
            port: None,
            peer: PortId { node: 0, port: 0 },
            connection: 0,
            outcome: None,
            is_willing: false,
            laid: None,
            accepting: None,
            lanes: None,
            backlog: 0,
            incoming: VecDeque::new(),
            accepts: VecDeque::new(),
            received: VecDeque::new(),
            credit,
            sends: VecDeque::new(),
            receives: VecDeque::new(),
            windows: BTreeMap::new(),
            retired: BTreeMap::new(),
            questioned: BTreeMap::new(),
            registering: VecDeque::new(),
            unregistering: BTreeMap::new(),
            peer_windows: BTreeMap::new(),
            peer_window_part: None,
            jobs: BTreeMap::new(),
            started: 0,
            leased: false,
            recalled: None,
            waiting: Vec::new(),
            asked: BTreeMap::new(),
            mappings: BTreeMap::new(),
            held: Vec::new(),
            peer_holds: BTreeSet::new(),
            closing: None,
            lost: false,
            closed: false,
            closed_sent: false,
            peer_closed: false,
        }
    }
}
