//! The offload stack: a rig (the host's SCIF node, the Snapify-IO daemon and the disk), host processes,
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
//! | [`parameters`] | how much there is of everything |
//! | [`variants`] | which snapshots are taken: the names under which plans ask for this scenario |
//! | `draw` | plans from a seed, and those in which everything is tried |
//! | [`canary`] | planted bugs |
//! | [`invariants`], `check` | what must be true of every run |

mod app;
pub mod canary;
mod card;
mod check;
mod draw;
mod event;
mod host;
pub mod invariants;
mod io;
mod ledger;
mod network;
mod outcome;
pub mod parameters;
mod script;
mod sink;
mod sockets;
pub mod variants;

use snaprig_scenario::{caught, links, scenario, stage};

use std::{collections::BTreeMap, hash::Hash};

use snaprig_scif::node::{EndpointId, Input};
use xxhash_rust::xxh3::Xxh3;

use snaprig_sim::{
    Disk, Fault, Parameters as Fixed, Plan, Point, Process, ProcessId, Random, engine::Lane,
    shrink::Amount,
};
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
use self::{
    caught::caught,
    links::{NOTICE_NS, Net, Network},
    scenario::{Ending, Invariant, Outcome, Scenario, Watch},
    stage::{Effect, Stage, System},
};

use self::{
    canary::Canary,
    event::{Event, Role, label, show},
};
pub use self::{
    outcome::{App, Ended},
    parameters::{Parameters, Workload},
    variants::Variant,
};

/// The offload stack, as a scenario.
#[derive(Clone, Copy, Debug)]
pub struct Offload;

impl Scenario for Offload {
    type Parameters = Parameters;
    type Canary = Canary;
    type End = Ended;

    fn names(&self) -> &'static [&'static str] {
        &Variant::NAMES
    }

    fn points(&self) -> &'static [Point] {
        &draw::POINTS
    }

    fn processes(&self, parameters: &Parameters) -> Vec<Process> {
        parameters.processes()
    }

    fn parameters(&self, random: &mut Random) -> Parameters {
        draw::parameters(random)
    }

    fn run(&self, plan: &Plan, parameters: &Parameters, watch: Watch<Canary>) -> Outcome<Ended> {
        World::new(plan, parameters, watch).run()
    }

    fn invariants(&self) -> &'static [Invariant<Ended>] {
        &invariants::ALL
    }

    fn impossible(&self, parameters: &Parameters) -> Option<String> {
        parameters.impossible()
    }

    fn amounts(&self) -> &'static [Amount<'static>] {
        &draw::AMOUNTS
    }

    fn draw(&self, seed: u64, fixed: &Fixed) -> Plan {
        draw::draw(seed, fixed)
    }

    fn undisturbed(&self) -> Vec<Plan> {
        draw::undisturbed()
    }

    fn deaths(&self, plan: &Plan) -> Vec<Fault> {
        draw::deaths(&self.processes_of(plan))
    }
}

/// A host process's end of an offload process, from 0. Several may be one host process's.
type HostId = usize;

struct World {
    seed: u64,
    variant: Variant,
    parameters: Parameters,
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
    /// Bits of memory or files were flipped on purpose.
    damaged: bool,
    /// The bug that this run has.
    canary: Option<Canary>,
}

impl World {
    fn new(plan: &Plan, parameters: &Parameters, watch: Watch<Canary>) -> Self {
        let canary = watch.canary;
        let mut stage = Stage::new(plan, &draw::POINTS, watch);
        let mut all = parameters.processes().into_iter().map(|one| one.name);
        let mut next = || stage.engine.process(&all.next().unwrap_or_default());
        let rig = next();
        let app_processes: Vec<_> = (0..parameters.workload.processes).map(|_| next()).collect();
        let offloads = usize::from(parameters.workload.offloads);
        let each = app_processes.iter().copied();
        let host_processes: Vec<_> = each.flat_map(|process| vec![process; offloads]).collect();
        let apps = (0..app_processes.len()).map(|app| {
            let hosts = app * offloads..(app + 1) * offloads;
            Application::new(plan.seed, &parameters.workload, app, hosts)
        });
        let apps = apps.collect();
        let card_processes: Vec<_> = (1..=parameters.cards).map(|_| next()).collect();
        let mut nodes: Vec<_> = (0..=parameters.cards).map(Sockets::new).collect();
        for node in 1..=parameters.cards {
            nodes[usize::from(HOST)].handle(Input::PeerUp(node));
            nodes[usize::from(node)].handle(Input::PeerUp(HOST));
        }
        Self {
            seed: plan.seed,
            // A plan of another scenario is not run by this one.
            variant: Variant::named(&plan.scenario).unwrap_or(Variant::ALL[0]),
            parameters: *parameters,
            net: Net::new(stage, rig, card_processes),
            hosts: host_processes.iter().map(|_| Host::default()).collect(),
            apps,
            app_processes,
            host_processes,
            nodes,
            roles: BTreeMap::new(),
            memory: BTreeMap::new(),
            next_address: 1 << 32,
            cards: (1..=parameters.cards).map(Card::new).collect(),
            transfers: Transfers::default(),
            disk: Disk::default(),
            ledger: Ledger::default(),
            damaged: false,
            canary,
        }
    }

    fn run(mut self) -> Outcome<Ended> {
        let is_looked_at = self.net.stage.tally.until.is_some();
        match self.play() {
            ending if is_looked_at => {
                let end = Ended::default();
                self.net.stage.into_outcome(ending, Vec::new(), end)
            }
            Ending::Finished => self.into_outcome(None),
            ending => self.into_outcome(Some(ending)),
        }
    }

    /// Whether everything comes to rest.
    fn comes_to_rest(&mut self) -> bool {
        caught(|| self.rest()).unwrap_or(false)
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
        let rig = self.net.rig;
        self.net.stage.violation(rig, invariant, what);
    }
}

impl System for World {
    type Event = Event;

    #[inline]
    fn stage(&mut self) -> &mut Stage<Event> {
        &mut self.net.stage
    }

    #[inline]
    fn look(&self) -> &Stage<Event> {
        &self.net.stage
    }

    fn start(&mut self) {
        self.start_io();
        for node in 1..=self.parameters.cards {
            self.start_card(node);
        }
        for host in 0..self.hosts.len() {
            self.start_host(host);
        }
    }

    #[inline]
    fn happen(&mut self, _: ProcessId, event: Event) {
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

    fn label(&self, event: &Event) -> String {
        label(&self.roles, event)
    }

    fn heal(&mut self) -> bool {
        self.disk.make_room();
        self.end_hung()
    }

    fn describe(&self) -> String {
        let mut text = format!("at {} ns\n\n", self.net.stage.engine.now_ns());
        for host in &self.hosts {
            text += &host.describe();
        }
        for card in &self.cards {
            let process = self.process_of(card.node);
            let life = if self.net.stage.engine.is_alive(process) {
                ""
            } else {
                " (not alive)"
            };
            text += &format!("card {}{life}\n{}", card.node, card.describe());
        }
        let names = self.disk.names("").join(" ");
        text + &format!("disk: {names}\n")
    }

    fn state(&self) -> u64 {
        let mut hash = Xxh3::new();
        for (host, process) in self.hosts.iter().zip(&self.host_processes) {
            self.net.stage.engine.is_alive(*process).hash(&mut hash);
            host.hash_state(&mut hash);
        }
        for card in &self.cards {
            let link = self.net.link(card.node);
            self.net
                .stage
                .engine
                .is_alive(self.process_of(card.node))
                .hash(&mut hash);
            link.hash_state(&mut hash);
            card.hash_state(&mut hash);
        }
        self.net.stage.engine.is_alive(self.net.rig).hash(&mut hash);
        self.disk.hash_names(&mut hash);
        hash.digest()
    }

    fn crash(&mut self, process: ProcessId) {
        self.net.stage.engine.crash(process);
        let hosts = self.apps_hosts(process);
        if !hosts.is_empty() {
            for host in hosts {
                self.hosts[host].alive = false;
                self.net
                    .stage
                    .engine
                    .after(self.net.rig, NOTICE_NS, Event::HostGone(host));
            }
        } else if let Some(node) = self.card_of(process) {
            self.nodes[usize::from(node)] = Sockets::new(node);
            self.roles.retain(|(of, _), _| *of != node);
            self.cards[usize::from(node) - 1].forget();
            self.forget_requesters(node);
            self.card_is_gone(node);
        } else {
            // Everything that a rig has started ends with it (`exit_with_the_rig`).
            for process in self.net.cards.clone() {
                self.net.stage.engine.crash(process);
            }
            self.cards.iter_mut().for_each(Card::forget);
            for (host, process) in self.host_processes.clone().into_iter().enumerate() {
                let event = Event::Host(host, HostTask::RigGone);
                self.net.stage.engine.after(process, NOTICE_NS, event);
            }
        }
    }

    fn hang(&mut self, process: ProcessId) {
        self.hang_card(process);
    }

    fn restart(&mut self, process: ProcessId) {
        self.restart_card(process);
    }

    fn cut_link(&mut self, process: ProcessId) {
        self.cut_card_link(process);
    }

    fn partition(&mut self, process: ProcessId) {
        self.partition_card(process);
    }

    fn fill_disk(&mut self) {
        self.disk.fill();
    }
}

/// A frame as a message; what cannot be read is the end of the connection.
fn decode<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    frame::decode(bytes).ok()
}
