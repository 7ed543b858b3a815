//! A card: the COI daemon's machine, and its processes.

use std::{
    collections::BTreeMap,
    hash::{Hash, Hasher},
};

use coi_device::daemon::machine::{self as daemon, Conn, Pid};
use snaprig_offload_wire::{
    coi::{Channel, Command, Program, RunFunction, ToDaemon},
    snapify::Request,
};
use snaprig_scif::node::EndpointId;
use snaprig_wire::scif::NodeId;

use super::{
    show,
    sink::{Copy, Offload, Restoring},
};

/// What an endpoint of a card is for.
#[derive(Clone, Debug)]
pub enum Role {
    /// The daemon listens.
    Daemon,
    /// A host process talks to the daemon; true: Snapify's requests.
    Host(Conn, bool),
    /// An offload process listens.
    Sink(Pid),
    /// A channel of an offload process, once it has said which.
    Channel(Pid, Option<Channel>),
}

impl Role {
    /// A frame for an endpoint with this role, as the message that it is.
    pub fn show(&self, bytes: &[u8]) -> Option<String> {
        match self {
            Self::Daemon | Self::Sink(_) => None,
            Self::Host(_, false) => show::<ToDaemon>(bytes),
            Self::Host(_, true) => show::<Request>(bytes),
            Self::Channel(_, None) => show::<Channel>(bytes),
            Self::Channel(_, Some(Channel::Pipeline(_))) => show::<RunFunction>(bytes),
            Self::Channel(..) => show::<Command>(bytes),
        }
    }
}

/// A card.
pub struct Card {
    pub node: NodeId,
    pub daemon: daemon::Machine,
    pub conns: BTreeMap<Conn, EndpointId>,
    pub processes: BTreeMap<Pid, Offload>,
    pub next: u64,
    pub next_pid: Pid,
    /// Programs that are being brought in.
    pub arriving: BTreeMap<Conn, Arriving>,
    /// Restores that wait for their files.
    pub restoring: BTreeMap<Conn, Restoring>,
    /// What was read for those that build on it: the last image, and what it says.
    pub preloaded: BTreeMap<Conn, (u64, Copy)>,
}

pub struct Arriving {
    pub program: Program,
    /// Where its bytes go.
    pub address: u64,
}

impl Card {
    /// A card that has just booted.
    pub fn new(node: NodeId) -> Self {
        Self {
            node,
            daemon: daemon::Machine::default(),
            conns: BTreeMap::new(),
            processes: BTreeMap::new(),
            next: 1,
            next_pid: Pid::from(node as i16) * 1000,
            arriving: BTreeMap::new(),
            restoring: BTreeMap::new(),
            preloaded: BTreeMap::new(),
        }
    }
}

impl Card {
    /// It is off, or starts anew: it knows nothing.
    pub fn forget(&mut self) {
        *self = Self::new(self.node);
    }

    /// What it will do next.
    pub fn hash_state(&self, hash: &mut impl Hasher) {
        self.daemon.hash_state(hash);
        for process in self.processes.values() {
            process.hash_state(hash);
        }
        let waiting = (self.arriving.len(), self.restoring.len());
        (waiting, self.preloaded.len()).hash(hash);
    }

    /// Its machines.
    pub fn describe(&self) -> String {
        let mut text = format!("{:#?}\n", self.daemon);
        for (pid, process) in &self.processes {
            text += &format!("offload process {pid}\n{}\n", process.describe());
        }
        text + "\n"
    }
}
