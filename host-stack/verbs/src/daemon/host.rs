//! The HCA's machines in the daemon: packets go one by one, through the [`Network`].

use std::{
    cell::RefCell,
    collections::BTreeSet,
    fs::File,
    io,
    sync::{Arc, Mutex},
};

use snaprig_hca::{Atomic, Event, Host, Memory, Packet, Path, Segment};

use super::{
    clocks::Clocks,
    lookup::Directory,
    network::{Network, ports_of},
    remote::Remote,
};
use crate::client::peers::{Peers, Pools};

/// What the machines need, and what they left to be done.
#[derive(Debug)]
pub struct DaemonHost {
    /// Device memory.
    pub memory: Memory,
    /// Descriptors that processes ask for.
    pub directory: Arc<Mutex<Directory>>,
    /// Packets under way.
    pub network: RefCell<Network>,
    /// The daemons of other nodes, if they have some.
    pub remote: RefCell<Option<Remote>>,
    /// Events to hand out.
    pub raised: RefCell<Vec<(Event, u32)>>,
    /// Completion queues whose channel is to be told.
    pub notified: RefCell<Vec<u32>>,
    /// Queue pairs to look after.
    pub attention: RefCell<BTreeSet<u32>>,
    peers: Peers,
    clocks: Clocks,
}

impl DaemonHost {
    /// With nothing to do. What is left to chance is drawn from `seed`.
    pub fn new(memory: Memory, clocks: Clocks, seed: u64) -> Self {
        Self {
            memory,
            directory: Arc::default(),
            network: RefCell::new(Network::new(seed)),
            remote: RefCell::default(),
            raised: RefCell::default(),
            notified: RefCell::default(),
            attention: RefCell::default(),
            peers: Peers::default(),
            clocks,
        }
    }
}

impl Pools for DaemonHost {
    fn pool_of(&self, process: u32) -> io::Result<File> {
        let directory = self.directory.lock().map_err(|_| io::ErrorKind::Other)?;
        let pool = directory.pools.get(&process);
        pool.ok_or(io::ErrorKind::NotFound)?.try_clone()
    }

    fn memory_of(&self, process: u32) -> io::Result<File> {
        let directory = self.directory.lock().map_err(|_| io::ErrorKind::Other)?;
        let memory = directory.memories.get(&process);
        memory.ok_or(io::ErrorKind::NotFound)?.try_clone()
    }
}

impl Host for DaemonHost {
    fn copy(&self, from: Segment, to: Segment) -> bool {
        self.peers.copy(&self.memory, self, from, to)
    }

    fn read(&self, from: Segment, into: &mut [u8]) -> bool {
        self.peers.read(&self.memory, self, from, into)
    }

    fn write(&self, bytes: &[u8], to: Segment) -> bool {
        self.peers.write(&self.memory, self, bytes, to)
    }

    fn atomic(&self, at: Segment, operation: Atomic) -> Option<u64> {
        self.peers
            .atomic(&self.memory, self, (super::SLOT, at), operation)
    }

    fn notify(&self, cq: u32) {
        self.notified.borrow_mut().push(cq);
    }

    fn event(&self, event: Event, element: u32) {
        self.raised.borrow_mut().push((event, element));
    }

    fn attention(&self, qp: u32) {
        self.attention.borrow_mut().insert(qp);
    }

    fn srq_attention(&self, _srq: u32) {}

    fn path(&self, from_port: u32, to_port: u32) -> Path {
        if self.memory.header().is_clean(from_port, to_port) {
            Path::Whole
        } else {
            Path::Packets
        }
    }

    fn is_full(&self, from_port: u32, to_port: u32) -> bool {
        let is_full = |remote: &Remote| remote.is_full(self.memory.header(), to_port);
        self.network.borrow().is_full(from_port, to_port)
            || self.remote.borrow().as_ref().is_some_and(is_full)
    }

    fn transmit(&self, packet: &Packet<'_>) {
        // Data that is not there any more is as good as lost.
        let Some(owned) = packet.to_owned(self) else {
            return;
        };
        let header = self.memory.header();
        let since_1970_ns = (self.clocks.since_1970_ns)();
        let mut network = self.network.borrow_mut();
        network.record(since_1970_ns, header, &owned);
        let down = network.send(header, self.now_ns(), owned);
        drop(network);
        let ports = down.map_or(Vec::new(), |hca| ports_of(header, hca));
        let errors = ports.into_iter().map(|port| (Event::PortError, port));
        self.raised.borrow_mut().extend(errors);
    }

    fn is_dead(&self, process: u32) -> bool {
        self.peers.is_gone(&self.memory, self, process)
    }

    fn now_ns(&self) -> u64 {
        (self.clocks.now_ns)()
    }
}
