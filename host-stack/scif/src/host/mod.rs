//! The host's SCIF node: one machine, a [`Mic`] for each card, a thread for each endpoint of a
//! host program.
//!
//! All inputs go through one lock. Outputs are done while it is held: a message is a copy into a
//! ring and a doorbell, a copy is a descriptor list for the card's DMA engine, a reply is one
//! message to a client that waits for it.
//!
//! What must stay true: a client's death closes its endpoint; a card's death fails everything that
//! waits for it.

pub mod protocol;
pub mod seqpacket;

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    os::fd::{AsFd, OwnedFd},
    path::PathBuf,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak},
    time::{Duration, Instant},
};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use snaprig_pci::{
    host::HostDevice,
    mic::{Event, Mic, MicError},
    vfio_user_client::VfioUserClient,
};
use snaprig_wire::{
    bar4::spad,
    frame,
    ring::RingError,
    scif::{Extent, HOST, Message, NodeId, PAGE},
};

use self::protocol::{Answer, Call, MESSAGE_MAX, Reply, Request};
use crate::{
    link::{Broken, Link, Watch},
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
/// Why a card is dead that says so itself ([`spad::STATE_CRASHED`]).
const CRASHED: &str = "its kernel stopped; look at its log";
/// How long a card may take from the start of its process to serving its PCI function.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);

/// Where the node serves and which cards it has.
#[derive(Clone, Debug)]
pub struct HostConfig {
    /// Socket for host programs.
    pub socket: PathBuf,
    /// vfio-user sockets of the cards; card `i` becomes node `i + 1`.
    pub cards: Vec<PathBuf>,
}

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
    /// A card is dead, and why.
    #[error("card {node} is dead: {why}")]
    Dead {
        /// The card's node.
        node: NodeId,
        /// What is known.
        why: String,
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
    cards: BTreeMap<NodeId, Card>,
    clients: BTreeMap<EndpointId, Arc<OwnedFd>>,
    requests: BTreeMap<RequestId, (EndpointId, u64)>,
    backings: BTreeMap<BackingId, (NodeId, u64)>,
    next: u64,
    stopped: bool,
}

struct Card {
    mic: Arc<Mic>,
    link: Link,
    watch: Watch,
    outbox: VecDeque<Vec<u8>>,
    dead: Option<String>,
}

impl HostNode {
    /// Connects to the cards and serves host programs.
    pub fn start(config: HostConfig) -> Result<Self, HostError> {
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                node: Node::new(HOST),
                cards: BTreeMap::new(),
                clients: BTreeMap::new(),
                requests: BTreeMap::new(),
                backings: BTreeMap::new(),
                next: 1,
                stopped: false,
            }),
            changed: Condvar::new(),
        });
        for (index, path) in config.cards.iter().enumerate() {
            let node = index as NodeId + 1;
            let failed = |source| HostError::Card { node, source };
            let device = connect(path).map_err(|e| failed(e.into()))?;
            let weak = Arc::downgrade(&shared);
            let events = Box::new(move |event| card_event(&weak, node, event));
            let mic = Mic::open(device, events).map_err(|e| failed(e.into()))?;
            shared.lock().cards.insert(
                node,
                Card {
                    mic,
                    link: Link::default(),
                    watch: Watch::default(),
                    outbox: VecDeque::new(),
                    dead: None,
                },
            );
            shared.handle(Input::PeerUp(node));
        }
        let listener = listen(&config.socket).map_err(|e| HostError::Socket {
            path: config.socket.clone(),
            source: e.into(),
        })?;
        let (serving, watching) = (shared.clone(), shared.clone());
        std::thread::spawn(move || accept(&serving, &listener));
        std::thread::spawn(move || watching.watch());
        Ok(Self {
            shared,
            socket: config.socket,
        })
    }

    /// Waits until the card's programs run and its COI daemon listens.
    pub fn wait_online(&self, node: NodeId, timeout: Duration) -> Result<(), HostError> {
        let mic = self
            .shared
            .lock()
            .cards
            .get(&node)
            .map(|card| card.mic.clone());
        let failed = |source| HostError::Card { node, source };
        mic.ok_or_else(|| failed("no such card".into()))?
            .wait_online(timeout)
            .map_err(|e: MicError| failed(e.into()))
    }

    /// Waits until the node has noticed that a card is dead.
    pub fn wait_dead(&self, node: NodeId, timeout: Duration) -> Result<(), HostError> {
        let deadline = Instant::now() + timeout;
        let mut state = self.shared.lock();
        while state
            .cards
            .get(&node)
            .is_some_and(|card| card.dead.is_none())
        {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(HostError::Timeout {
                    node,
                    what: "its end",
                    after: timeout,
                });
            }
            state = self
                .shared
                .changed
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        Ok(())
    }

    /// Why a card is dead; `None` while it lives.
    pub fn death_of(&self, node: NodeId) -> Option<String> {
        self.shared.lock().cards.get(&node)?.dead.clone()
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

/// The card's process may still be starting.
fn connect(path: &std::path::Path) -> Result<Arc<dyn HostDevice>, snaprig_pci::host::DeviceError> {
    let deadline = Instant::now() + CONNECT_TIMEOUT;
    loop {
        match VfioUserClient::connect(path) {
            Ok(client) => return Ok(Arc::new(client)),
            Err(error) if Instant::now() >= deadline => return Err(error),
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
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

fn card_event(shared: &Weak<Shared>, node: NodeId, event: Event) {
    let Some(shared) = shared.upgrade() else {
        return;
    };
    match event {
        Event::Scif => shared.drain(node),
        Event::State(spad::STATE_CRASHED) => shared.lock().lose(&shared, node, CRASHED.into()),
        Event::State(_) => {}
        Event::Dead(why) => shared.lock().lose(&shared, node, why),
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
    fn drain(self: &Arc<Self>, node: NodeId) {
        let mut state = self.lock();
        let Some(mic) = state.cards.get(&node).map(|card| card.mic.clone()) else {
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

    /// A card is dead for everybody from now on. It is let go of, too, so that its programs notice.
    fn lose(&mut self, shared: &Arc<Shared>, node: NodeId, why: String) {
        let Some(card) = self.cards.get_mut(&node).filter(|card| card.dead.is_none()) else {
            return;
        };
        tracing::warn!(node, why, "card is dead");
        card.dead = Some(why);
        card.outbox.clear();
        card.mic.close();
        self.step(shared, Input::PeerDown(node));
        shared.changed.notify_all();
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
            None => Err(libc::EOPNOTSUPP),
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
        if let Some((node, address)) = self.backings.remove(&backing)
            && let Some(card) = self.cards.get(&node)
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
        let card = self.cards.get(&peer.node).ok_or(libc::EOPNOTSUPP)?;
        let address = card.mic.map(fd.as_fd(), fd_offset, len).map_err(|error| {
            tracing::warn!(%error, "a window cannot be mapped for DMA");
            libc::ENOMEM
        })?;
        let backing = self.number();
        self.backings.insert(backing, (peer.node, address));
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
            Call::NodeIds => return self.node_ids(endpoint, number),
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

    fn node_ids(&mut self, endpoint: EndpointId, request: RequestId) {
        let Some((_, id)) = self.requests.remove(&request) else {
            return;
        };
        let answer = Answer::Nodes {
            all: self.node.nodes(),
            own: HOST,
        };
        let reply = frame::encode(&Reply {
            id,
            result: Ok(answer),
        });
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
