//! The system: a rig (the host's SCIF node, the Snapify-IO daemon and the disk), host processes,
//! and cards, each with a SCIF node, a COI daemon and offload processes.
//!
//! ```text
//!  process "rig"                   "host", "host2", ...    "card1", "card2", ...
//!    node 0 <---- endpoints ----->  COI, Snapify
//!      ^  '------- Snapify-IO server, disk
//!      '--------------- links ----------------------------> node n
//!                                                             '-- daemon, offload processes,
//!                                                                 Snapify-IO requesters
//! ```
//!
//! Each endpoint is a lane of the engine, as is each pair of nodes: what is heard on one endpoint
//! keeps its order, everything else comes in the order that the seed draws.
//!
//! | module | what it is |
//! |---|---|
//! | `sockets` | SCIF for the programs of one node |
//! | `host` | a host process's end of an offload process: its connections, Snapify |
//! | `app` | its application, which uses COI, and COI's graph of operations |
//! | `script` | snapshots of an offload process, while the application works |
//! | `card` | a COI daemon |
//! | `sink` | an offload process |
//! | `io` | Snapify-IO, both ends |
//! | `ledger` | what was sent and received, for the consistency of snapshots |

mod app;
mod card;
mod event;
mod host;
mod io;
mod ledger;
mod network;
mod outcome;
mod plan;
mod script;
mod sink;
mod sockets;

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::Hash,
};

use snaprig_scif::node::{EndpointId, Input};
use xxhash_rust::xxh3::Xxh3;

use snaprig_sim::{Disk, Engine, Plan, ProcessId, Trace, engine::Lane};
use snaprig_wire::{
    coi::Channel,
    dma::Descriptor,
    frame,
    scif::{HOST, NodeId, PortId},
    snapify_io,
};

use self::{
    app::{AppId, AppTask, Application},
    card::{Card, CardTask},
    host::{Host, HostTask},
    io::Transfers,
    ledger::Ledger,
    sockets::{Does, Heard, Sockets},
};
use crate::{
    Canary,
    caught::caught,
    links::{self, EVENTS_MAX, Effect, NOTICE_NS, Net, Network},
    points, scif, verbs,
};

use self::event::{Event, Role, label, show};
pub use self::{
    outcome::{App, Ending, Outcome},
    plan::{CARDS_MAX, impossible, processes},
    script::SCENARIOS,
};

/// A host process's end of an offload process, from 0. Several may be one host process's.
type HostId = usize;

struct World {
    net: Net<Event>,
    app_processes: Vec<ProcessId>,
    /// The same, by offload process.
    host_processes: Vec<ProcessId>,
    /// By node, from 0.
    nodes: Vec<Sockets>,
    roles: BTreeMap<(NodeId, EndpointId), Role>,
    /// Contents of registered memory, by DMA address.
    memory: BTreeMap<u64, Vec<u8>>,
    next_address: u64,
    apps: Vec<Application>,
    hosts: Vec<Host>,
    cards: Vec<Card>,
    transfers: Transfers,
    disk: Disk,
    ledger: Ledger,
    violations: Vec<(&'static str, String)>,
    /// Bits of memory or files were flipped on purpose.
    damaged: bool,
    states: Option<BTreeSet<u64>>,
    /// The bug that this run has.
    canary: Option<Canary>,
}

/// Runs a plan to its end, with a planted bug or without.
pub fn run(plan: &Plan, trace: Trace, canary: Option<Canary>) -> Outcome {
    run_world(plan, World::new(plan, trace, canary))
}

/// The same, and keeps every state that the system was in ([`Outcome::states`]).
pub fn run_counting(plan: &Plan, trace: Trace, canary: Option<Canary>) -> Outcome {
    let mut world = World::new(plan, trace, canary);
    world.states = Some(BTreeSet::new());
    run_world(plan, world)
}

fn run_world(plan: &Plan, mut world: World) -> Outcome {
    // Safety first; then everything is healed, and progress demanded.
    let mut ending = world.start(plan).or_else(|| world.rest());
    while ending.is_none() && world.heal() {
        ending = world.rest();
    }
    world.into_outcome(ending)
}

/// Where a run is stopped to be looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Until {
    /// After so many events.
    Event(u64),
    /// When this fault point is first reached.
    Point(String),
    /// It is reached.
    Now,
}

/// Runs a plan up to there, and describes every machine as it is then.
pub fn state_at(plan: &Plan, canary: Option<Canary>, until: Until) -> (Trace, String) {
    let mut world = World::new(plan, Trace::recording(), canary);
    world.net.tally.until = Some(until);
    // However it ends, this is how it is then.
    let _ = world.start(plan).or_else(|| world.rest());
    let state = world.describe();
    (world.net.engine.trace, state)
}

impl World {
    fn new(plan: &Plan, trace: Trace, canary: Option<Canary>) -> Self {
        let mut engine = Engine::new(plan, &points::all(), trace);
        let mut all = processes(plan).into_iter();
        let mut next = || engine.process(&all.next().unwrap_or_default());
        let rig = next();
        let app_processes: Vec<_> = (0..plan.workload.processes).map(|_| next()).collect();
        let offloads = usize::from(plan.workload.offloads);
        let each = app_processes.iter().copied();
        let host_processes: Vec<_> = each.flat_map(|process| vec![process; offloads]).collect();
        let apps = (0..app_processes.len()).map(|app| {
            let hosts = app * offloads..(app + 1) * offloads;
            Application::new(plan, app, hosts)
        });
        let apps = apps.collect();
        let card_processes: Vec<_> = (1..=plan.cards).map(|_| next()).collect();
        let mut nodes: Vec<_> = (0..=plan.cards).map(Sockets::new).collect();
        for node in 1..=plan.cards {
            nodes[usize::from(HOST)].handle(Input::PeerUp(node));
            nodes[usize::from(node)].handle(Input::PeerUp(HOST));
        }
        Self {
            net: Net::new(engine, rig, card_processes),
            hosts: host_processes.iter().map(|_| Host::default()).collect(),
            apps,
            app_processes,
            host_processes,
            nodes,
            roles: BTreeMap::new(),
            memory: BTreeMap::new(),
            next_address: 1 << 32,
            cards: (1..=plan.cards).map(Card::new).collect(),
            transfers: Transfers::default(),
            disk: Disk::default(),
            ledger: Ledger::default(),
            violations: Vec::new(),
            damaged: false,
            states: None,
            canary,
        }
    }

    /// Everybody starts; an ending, if that can be told already.
    fn start(&mut self, plan: &Plan) -> Option<Ending> {
        let started = caught(|| {
            self.start_io();
            for node in 1..=plan.cards {
                self.start_card(node);
            }
            for host in 0..self.hosts.len() {
                self.start_host(host, plan);
            }
        });
        started.err().map(Ending::Crashed)
    }

    /// Runs until nothing is to come any more; an ending, if that can be told already.
    fn rest(&mut self) -> Option<Ending> {
        caught(|| self.run()).unwrap_or_else(|panic| Some(Ending::Crashed(panic)))
    }

    fn run(&mut self) -> Option<Ending> {
        while let Some((_, event)) = self.net.engine.next(|event| label(&self.roles, event)) {
            self.happen(event);
            if self.states.is_some() {
                let state = self.state();
                self.states.get_or_insert_default().insert(state);
            }
            match self.net.tally.until {
                Some(Until::Event(count)) if self.net.engine.trace.events() >= count => break,
                Some(Until::Now) => break,
                _ => {}
            }
            if self.net.engine.trace.events() > EVENTS_MAX {
                return Some(Ending::Endless);
            }
        }
        None
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Net(event) => self.on_link(event),
            Event::HostGone(host) => self.close_endpoints_of_host(host),
            Event::Hear(node, endpoint, heard) => self.hear(node, endpoint, heard),
            Event::Copy(node, peer, job, copies) => self.copy(node, peer, job, &copies),
            Event::App(app, task) => self.app_task(app, task),
            Event::Host(host, task) => self.host_task(host, task),
            Event::Card(node, task) => self.card_task(node, task),
        }
    }

    /// Everything that hangs is ended, and the disk has room again; whether anything hung.
    fn heal(&mut self) -> bool {
        self.disk.make_room();
        let all = [self.net.rig]
            .into_iter()
            .chain(self.app_processes.clone())
            .chain(self.net.cards.clone());
        let hung: Vec<_> = all.filter(|one| self.net.engine.is_hung(*one)).collect();
        for process in &hung {
            self.crash(*process);
        }
        !hung.is_empty()
    }

    /// Every machine, as it is.
    fn describe(&self) -> String {
        let mut text = format!("at {} ns\n\n", self.net.engine.now_ns());
        for host in &self.hosts {
            text += &host.describe();
        }
        for card in &self.cards {
            let process = self.process_of(card.node);
            let life = if self.net.engine.is_alive(process) {
                ""
            } else {
                " (not alive)"
            };
            text += &format!("card {}{life}\n{}", card.node, card.describe());
        }
        let names = self.disk.names("").join(" ");
        text + &format!("disk: {names}\n")
    }

    /// What the protocols' machines would do next depends on this, and on nothing else but numbers
    /// and times.
    fn state(&self) -> u64 {
        let mut hash = Xxh3::new();
        for (host, process) in self.hosts.iter().zip(&self.host_processes) {
            self.net.engine.is_alive(*process).hash(&mut hash);
            host.hash_state(&mut hash);
        }
        for card in &self.cards {
            let link = self.net.link(card.node);
            self.net
                .engine
                .is_alive(self.process_of(card.node))
                .hash(&mut hash);
            link.hash_state(&mut hash);
            card.hash_state(&mut hash);
        }
        self.net.engine.is_alive(self.net.rig).hash(&mut hash);
        self.disk.hash_names(&mut hash);
        hash.digest()
    }

    /// The offload processes of a host process.
    fn apps_hosts(&self, process: ProcessId) -> Vec<HostId> {
        let all = self.host_processes.iter().enumerate();
        all.filter(|(_, one)| **one == process)
            .map(|(host, _)| host)
            .collect()
    }

    /// The number in a page of memory.
    fn cell(&self, address: u64) -> u64 {
        let bytes = self.memory.get(&address);
        let bytes = bytes.and_then(|bytes| bytes.first_chunk());
        bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }

    fn set_cell(&mut self, address: u64, value: u64) {
        self.memory.insert(address, value.to_le_bytes().to_vec());
    }

    fn violation(&mut self, invariant: &'static str, what: impl Into<String>) {
        let (what, now) = (what.into(), self.net.engine.now_ns());
        self.net.engine.trace.broken(now, self.net.rig, &what);
        self.violations.push((invariant, what));
    }
}

/// A frame as a message; what cannot be read is the end of the connection.
fn decode<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    frame::decode(bytes).ok()
}
