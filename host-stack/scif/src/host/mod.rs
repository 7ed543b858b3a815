//! The host's SCIF node: one machine, a [`Mic`](snaprig_pci::mic::Mic) for each card, a thread for each endpoint of a
//! host program.
//!
//! All inputs go through one lock. Outputs are done while it is held: a message is a copy into a
//! ring and a doorbell, a copy is a descriptor list for the card's DMA engine, a reply is one
//! message to a client that waits for it.
//!
//! What must stay true: a client's death closes its endpoint; a card's death fails everything that
//! waits for it.

pub mod cards;
pub mod protocol;
pub mod seqpacket;

use std::{
    collections::BTreeMap,
    io,
    os::fd::{AsFd, OwnedFd},
    path::PathBuf,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use snaprig_wire::{
    frame,
    ring::RingError,
    scif::{Extent, HOST, Message, NodeId, PAGE},
};

use self::{
    cards::{Attachment, Card, CardState},
    protocol::{Answer, Call, MESSAGE_MAX, Reply, Request},
};
use crate::{
    link::Broken,
    node::{BackingId, EndpointId, Input, Local, Node, Op, Output, RequestId, Value},
};

/// Records that wait for room in a card's ring; a card that lets more pile up is taken for dead.
const OUTBOX_MAX: usize = 16_384;
/// How often the node looks whether a card takes what it is sent.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);
/// A card that takes nothing for so long hangs: it is taken for dead. Longer than any card of a
/// busy host is without a turn.
pub const SILENCE_MAX: Duration = Duration::from_secs(30);
/// Why such a card is dead.
const DEAF: &str = "it does not read its ring";

/// Why the node cannot do as asked.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// Its socket.
    #[error("{path}: {source}")]
    Socket {
        /// The socket.
        path: PathBuf,
        /// What the host said.
        source: io::Error,
    },
    /// A card's PCI function cannot be reached.
    #[error("card {node}: {source}")]
    Card {
        /// The card's node.
        node: NodeId,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Something did not happen in time.
    #[error("card {node}: {what} did not happen within {after:?}")]
    Timeout {
        /// The card's node.
        node: NodeId,
        /// What was waited for.
        what: &'static str,
        /// How long.
        after: Duration,
    },
}

/// The host's node, running. Dropping it closes every endpoint.
pub struct HostNode {
    shared: Arc<Shared>,
    socket: PathBuf,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    node: Node,
    /// The cards that are attached, dead ones included.
    cards: BTreeMap<NodeId, Card>,
    /// Of every card that ever was.
    states: BTreeMap<NodeId, CardState>,
    clients: BTreeMap<EndpointId, Arc<OwnedFd>>,
    requests: BTreeMap<RequestId, (EndpointId, u64)>,
    backings: BTreeMap<BackingId, (Attachment, u64)>,
    next: u64,
    stopped: bool,
}

impl HostNode {
    /// Serves host programs at this socket; cards come with [`HostNode::attach`].
    pub fn start(socket: PathBuf) -> Result<Self, HostError> {
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                node: Node::new(HOST),
                cards: BTreeMap::new(),
                states: BTreeMap::new(),
                clients: BTreeMap::new(),
                requests: BTreeMap::new(),
                backings: BTreeMap::new(),
                next: 1,
                stopped: false,
            }),
            changed: Condvar::new(),
        });
        let listener = listen(&socket).map_err(|e| HostError::Socket {
            path: socket.clone(),
            source: e.into(),
        })?;
        let (serving, watching) = (shared.clone(), shared.clone());
        std::thread::spawn(move || accept(&serving, &listener));
        std::thread::spawn(move || watching.watch());
        Ok(Self { shared, socket })
    }
}

impl Drop for HostNode {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.stopped = true;
        for client in state.clients.values() {
            // A client that is gone needs no telling.
            let _ = rustix::net::shutdown(client, rustix::net::Shutdown::Both);
        }
        // A card's driver waits for its interrupt thread, which may be waiting for this lock.
        let cards = std::mem::take(&mut state.cards);
        drop(state);
        self.shared.changed.notify_all();
        drop(cards);
        // One last connection lets the accepting thread see that it is over.
        let _ = SocketAddrUnix::new(&self.socket)
            .and_then(|address| rustix::net::connect(seqpacket_socket()?, &address));
        let _ = std::fs::remove_file(&self.socket);
    }
}

fn seqpacket_socket() -> rustix::io::Result<OwnedFd> {
    rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
}

fn listen(path: &std::path::Path) -> rustix::io::Result<OwnedFd> {
    let socket = seqpacket_socket()?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, 128)?;
    Ok(socket)
}

fn accept(shared: &Arc<Shared>, listener: &OwnedFd) {
    loop {
        let accepted = rustix::net::accept_with(listener, SocketFlags::CLOEXEC);
        let mut state = shared.lock();
        if state.stopped {
            return;
        }
        match accepted {
            Ok(client) => {
                let endpoint = state.number();
                state.node.handle(Input::Open(endpoint));
                state.add_client(shared, endpoint, client);
            }
            Err(rustix::io::Errno::INTR | rustix::io::Errno::CONNABORTED) => {}
            Err(error) => {
                tracing::error!(%error, "no more host programs can connect");
                return;
            }
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn handle(self: &Arc<Self>, input: Input) {
        self.lock().step(self, input);
    }

    /// Asks every card from time to time whether it still takes what it is sent.
    fn watch(self: &Arc<Self>) {
        let begun = Instant::now();
        let mut state = self.lock();
        while !state.stopped {
            let waited = self.changed.wait_timeout(state, LOOK_INTERVAL);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            let nodes: Vec<_> = state.cards.keys().copied().collect();
            for node in nodes {
                state.look_at(self, node, begun.elapsed());
            }
        }
    }

    /// Takes everything out of a card's ring.
    fn drain(self: &Arc<Self>, Attachment { node, number }: Attachment) {
        let mut state = self.lock();
        let card = state.cards.get(&node).filter(|card| card.number == number);
        let Some(mic) = card.map(|card| card.mic.clone()) else {
            return;
        };
        let mut any = false;
        loop {
            let opened = match mic.ring_to_host().pop() {
                Ok(Some(record)) => state.open(node, &record),
                Ok(None) => break,
                Err(_) => Err(Broken::Ring),
            };
            any = true;
            match opened {
                Ok(Some(message)) => state.step(self, Input::Message(message)),
                Ok(None) => {}
                Err(Broken::Already) => break,
                Err(why) => {
                    state.lose(self, node, why.to_string());
                    break;
                }
            }
        }
        state.flush_outbox(self, node);
        if any {
            // It may be waiting for room in its ring. A dead card needs no bell.
            let _ = mic.doorbell();
        }
    }
}

impl State {
    /// The message of a record from a card, which speaks for itself and for nobody else.
    fn open(&mut self, node: NodeId, record: &[u8]) -> Result<Option<Message>, Broken> {
        let card = self.cards.get_mut(&node).ok_or(Broken::Already)?;
        let message = card.link.open(record)?;
        match message.as_ref().is_none_or(|m| m.from.node == node) {
            true => Ok(message),
            false => Err(Broken::Nonsense),
        }
    }

    /// Whether a card still takes what it is sent.
    fn look_at(&mut self, shared: &Arc<Shared>, node: NodeId, now: Duration) {
        let Some(card) = self.cards.get_mut(&node).filter(|card| card.dead.is_none()) else {
            return;
        };
        let ring = card.mic.ring_to_card();
        let is_empty = ring.is_empty();
        if card.watch.look(ring.taken(), is_empty, now) >= SILENCE_MAX {
            return self.lose(shared, node, DEAF.into());
        }
        if is_empty && card.outbox.is_empty() {
            let record = card.link.alive();
            card.outbox.push_back(record);
            self.flush_outbox(shared, node);
        }
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn add_client(&mut self, shared: &Arc<Shared>, endpoint: EndpointId, client: OwnedFd) {
        let client = Arc::new(client);
        self.clients.insert(endpoint, client.clone());
        let shared = shared.clone();
        std::thread::spawn(move || serve(&shared, endpoint, &client));
    }

    /// One input, and everything that follows from it.
    fn step(&mut self, shared: &Arc<Shared>, input: Input) {
        self.node.handle(input);
        while let Some(output) = self.node.poll_output() {
            match output {
                Output::Done(request, result) => self.reply(shared, request, result),
                Output::Send(node, message) => self.send(shared, node, &message),
                Output::Copy { job, peer, copies } => self.copy(shared, job, peer, copies),
                Output::Release(backing) => self.release(backing),
                Output::Changed(_) => {}
            }
        }
    }

    fn reply(&mut self, shared: &Arc<Shared>, request: RequestId, result: Result<Value, i32>) {
        let Some((endpoint, id)) = self.requests.remove(&request) else {
            return;
        };
        let mut socket = None;
        let result = result.map(|value| match value {
            Value::Unit => Answer::Unit,
            Value::Port(port) => Answer::Port(port),
            Value::Bytes(bytes) => Answer::Bytes(bytes),
            Value::Offset(offset) => Answer::Offset(offset),
            Value::Accepted { endpoint, peer } => {
                socket = self.adopt(shared, endpoint);
                Answer::Accepted(peer)
            }
        });
        let Some(client) = self.clients.get(&endpoint) else {
            return;
        };
        let reply = frame::encode(&Reply { id, result });
        // A client that is gone is noticed by its thread.
        let _ = seqpacket::send(client.as_fd(), &reply, socket.as_ref().map(AsFd::as_fd));
    }

    /// A socket for an accepted endpoint: the client's end.
    fn adopt(&mut self, shared: &Arc<Shared>, endpoint: EndpointId) -> Option<OwnedFd> {
        let (ours, theirs) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .ok()?;
        self.add_client(shared, endpoint, ours);
        Some(theirs)
    }

    fn send(&mut self, shared: &Arc<Shared>, node: NodeId, message: &Message) {
        let Some(card) = self.cards.get_mut(&node).filter(|card| card.dead.is_none()) else {
            return;
        };
        if card.outbox.len() >= OUTBOX_MAX {
            return self.lose(shared, node, DEAF.into());
        }
        let record = card.link.seal(message);
        card.outbox.push_back(record);
        self.flush_outbox(shared, node);
    }

    fn flush_outbox(&mut self, shared: &Arc<Shared>, node: NodeId) {
        let Some(card) = self.cards.get_mut(&node) else {
            return;
        };
        let mut rang = false;
        while let Some(record) = card.outbox.front() {
            match card.mic.ring_to_card().push(record) {
                Ok(()) => {
                    card.outbox.pop_front();
                    rang = true;
                }
                Err(RingError::Full) => break,
                Err(_) => return self.lose(shared, node, Broken::Ring.to_string()),
            }
        }
        if rang {
            // Its death is told by its own event.
            let _ = card.mic.doorbell();
        }
    }

    fn copy(
        &mut self,
        shared: &Arc<Shared>,
        job: u64,
        peer: NodeId,
        copies: Vec<snaprig_wire::dma::Descriptor>,
    ) {
        let started = match self.cards.get(&peer) {
            // Both windows are in host memory: no card's engine is asked for that.
            None if peer == HOST => Err(libc::EOPNOTSUPP),
            None => Err(libc::ENODEV),
            Some(card) => {
                let weak = Arc::downgrade(shared);
                let done = Box::new(move |result: Result<(), snaprig_pci::mic::DmaError>| {
                    if let Some(shared) = weak.upgrade() {
                        let result = result.map_err(|error| {
                            tracing::warn!(%error, "DMA failed");
                            libc::EIO
                        });
                        shared.handle(Input::CopyDone(job, result));
                    }
                });
                card.mic.dma(copies, done).map_err(|_| libc::ENODEV)
            }
        };
        if let Err(errno) = started {
            self.node.handle(Input::CopyDone(job, Err(errno)));
        }
    }

    fn release(&mut self, backing: BackingId) {
        if let Some((attachment, address)) = self.backings.remove(&backing)
            && let Some(card) = self.cards.get(&attachment.node)
            && card.number == attachment.number
        {
            // On a dead card there is nothing to unmap.
            let _ = card.mic.unmap(address);
        }
    }

    /// Maps a window's memory for the DMA engine of the endpoint's peer.
    fn register(
        &mut self,
        endpoint: EndpointId,
        fd: Option<&OwnedFd>,
        fd_offset: u64,
        len: u64,
    ) -> Result<(Vec<Extent>, BackingId), i32> {
        let peer = self.node.peer(endpoint).ok_or(libc::ENOTCONN)?;
        let fd = fd.ok_or(libc::EBADF)?;
        if len == 0 || !len.is_multiple_of(PAGE) || !fd_offset.is_multiple_of(PAGE) {
            return Err(libc::EINVAL);
        }
        let node = peer.node;
        let card = self.cards.get(&node).ok_or(libc::EOPNOTSUPP)?;
        let address = card.mic.map(fd.as_fd(), fd_offset, len).map_err(|error| {
            tracing::warn!(%error, "a window cannot be mapped for DMA");
            libc::ENOMEM
        })?;
        let attachment = Attachment {
            node,
            number: card.number,
        };
        let backing = self.number();
        self.backings.insert(backing, (attachment, address));
        Ok((vec![Extent { address, len }], backing))
    }

    fn call(
        &mut self,
        shared: &Arc<Shared>,
        endpoint: EndpointId,
        request: Request,
        fd: Option<&OwnedFd>,
    ) {
        let number = self.number();
        self.requests.insert(number, (endpoint, request.id));
        let op = match request.call {
            Call::Bind(port) => Ok(Op::Bind(port)),
            Call::Listen(backlog) => Ok(Op::Listen(backlog as usize)),
            Call::Connect(peer) => Ok(Op::Connect(peer)),
            Call::Accept => Ok(Op::Accept),
            Call::Send(data) => Ok(Op::Send(data)),
            Call::Recv(max) => Ok(Op::Recv(max as usize)),
            Call::Unregister { offset, len } => Ok(Op::Unregister { offset, len }),
            Call::Rma {
                local,
                len,
                remote,
                write,
            } => Ok(Op::Rma {
                local: Local::Window(local),
                len,
                remote,
                write,
            }),
            Call::Register {
                fd_offset,
                len,
                offset,
                prot,
            } => self
                .register(endpoint, fd, fd_offset, len)
                .map(|(extents, backing)| Op::Register {
                    extents,
                    offset,
                    prot,
                    backing,
                }),
            Call::NodeIds => {
                let (all, own) = (self.node.nodes(), HOST);
                return self.answer(number, Answer::Nodes { all, own });
            }
            Call::Cards => {
                let states = self.states.iter().map(|(node, state)| (*node, *state));
                let answer = Answer::Cards(states.collect());
                return self.answer(number, answer);
            }
            Call::Close => {
                self.step(shared, Input::Close(endpoint));
                return self.reply(shared, number, Ok(Value::Unit));
            }
        };
        match op {
            Ok(op) => self.step(shared, Input::Request(number, endpoint, op)),
            Err(errno) => self.reply(shared, number, Err(errno)),
        }
    }

    /// Answers what the node's machine is not asked.
    fn answer(&mut self, request: RequestId, answer: Answer) {
        let Some((endpoint, id)) = self.requests.remove(&request) else {
            return;
        };
        let result = Ok(answer);
        let reply = frame::encode(&Reply { id, result });
        if let Some(client) = self.clients.get(&endpoint) {
            let _ = seqpacket::send(client.as_fd(), &reply, None);
        }
    }
}

/// Serves one endpoint until its program closes it.
fn serve(shared: &Arc<Shared>, endpoint: EndpointId, client: &OwnedFd) {
    let mut buffer = vec![0; MESSAGE_MAX];
    while let Ok(Some((len, fd))) = seqpacket::receive(client, &mut buffer) {
        let Ok(request) = frame::decode::<Request>(&buffer[..len]) else {
            break;
        };
        shared.lock().call(shared, endpoint, request, fd.as_ref());
    }
    let mut state = shared.lock();
    state.clients.remove(&endpoint);
    state.requests.retain(|_, (owner, _)| *owner != endpoint);
    state.step(shared, Input::Close(endpoint));
}
