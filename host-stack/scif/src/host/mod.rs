//! The host's SCIF node: one machine, a [`Mic`](snaprig_pci::mic::Mic) for each card, a thread for each connection of a
//! host program.
//!
//! | module | what it is |
//! |---|---|
//! | [`cards`] | how cards come and go |
//! | `clients` | host programs and what they ask |
//! | `windows` | memory of windows, for whoever uses them |
//! | `ready` | a descriptor that is as ready as an endpoint |
//! | `direct` | programs of this host that talk to their peers without the node |
//! | [`leases`] | programs that copy by themselves |
//! | [`protocol`] | what programs and node say to each other |
//!
//! All inputs go through one lock. Outputs are done while it is held: a message is a copy into a
//! ring and a doorbell, a copy is a descriptor list for the card's DMA engine, a reply is one
//! message to a client that waits for it.
//!
//! What must stay true: a client's death closes its endpoint; a card's death fails everything that
//! waits for it.

pub mod cards;
mod clients;
mod direct;
pub mod leases;
pub mod protocol;
mod ready;
mod windows;

use std::{
    collections::BTreeMap,
    io,
    os::fd::OwnedFd,
    path::PathBuf,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use rustix::net::SocketFlags;
use snaprig_peers::packets;
use snaprig_wire::{
    ring::RingError,
    scif::{Extent, HOST, Message, NodeId, PAGE},
};

use self::{
    cards::{Attachment, Card, CardState},
    clients::{Client, Pending},
    direct::Direct,
    leases::PendingRecall,
    ready::Ready,
    windows::Windows,
};
use crate::{
    link::Broken,
    node::{BackingId, EndpointId, Input, MappingId, Node, Output, RequestId},
};

/// Most connections that wait to be accepted.
const BACKLOG: i32 = 128;

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
    clients: BTreeMap<u64, Client>,
    requests: BTreeMap<RequestId, Pending>,
    windows: Windows,
    /// Programs' ends of their mappings.
    holders: BTreeMap<MappingId, Arc<OwnedFd>>,
    ready: BTreeMap<EndpointId, Ready>,
    direct: BTreeMap<EndpointId, Direct>,
    recalled: Vec<PendingRecall>,
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
                windows: Windows::default(),
                holders: BTreeMap::new(),
                ready: BTreeMap::new(),
                direct: BTreeMap::new(),
                recalled: Vec::new(),
                next: 1,
                stopped: false,
            }),
            changed: Condvar::new(),
        });
        let listener =
            packets::listen(&socket, BACKLOG, SocketFlags::empty()).map_err(|source| {
                HostError::Socket {
                    path: socket.clone(),
                    source,
                }
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
        let clients = state.clients.values().map(|client| &client.socket);
        for socket in clients.chain(state.holders.values()) {
            // A client that is gone needs no telling.
            let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
        }
        // A card's driver waits for its interrupt thread, which may be waiting for this lock.
        let cards = std::mem::take(&mut state.cards);
        drop(state);
        self.shared.changed.notify_all();
        drop(cards);
        // One last connection lets the accepting thread see that it is over.
        let _ = packets::connect(&self.socket, SocketFlags::empty());
        let _ = std::fs::remove_file(&self.socket);
    }
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
                state.add_client(shared, endpoint, client, None);
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

    /// One input, and everything that follows from it.
    fn step(&mut self, shared: &Arc<Shared>, input: Input) {
        self.node.handle(input);
        loop {
            while let Some(recall) = self.node.poll_recall() {
                self.recall(&recall);
            }
            let Some(output) = self.node.poll_output() else {
                break;
            };
            match output {
                Output::Done(request, result) => self.reply(shared, request, result),
                Output::Send(node, message) => self.send(shared, node, message),
                Output::Copy {
                    job, peer, copies, ..
                } => self.copy(shared, job, peer, copies),
                Output::Release(backing) => self.release(backing),
                Output::Poke {
                    peer,
                    address,
                    bytes,
                } => self.poke(peer, address, &bytes),
                Output::Changed(endpoint) => self.refresh(endpoint),
                Output::Ring(endpoint, bell) => self.rung(endpoint, bell),
                // Lanes are a card's.
                Output::Lay(endpoint) => self.node.handle(Input::Laid(endpoint, None)),
            }
        }
    }

    fn send(&mut self, shared: &Arc<Shared>, node: NodeId, mut message: Message) {
        if !self.translate(&mut message) {
            let from = message.from.node;
            tracing::warn!(from, node, "a window that the other card cannot reach");
            return;
        }
        let Some(card) = self.cards.get_mut(&node).filter(|card| card.dead.is_none()) else {
            return;
        };
        if card.outbox.len() >= OUTBOX_MAX {
            return self.lose(shared, node, DEAF.into());
        }
        let record = card.link.seal(&message);
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
        self.map_for_card(peer.node, fd, fd_offset, len)
    }
}
