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
//! | `host` | a host process: its connections, Snapify |
//! | `app` | its application: run functions, buffers, and a script of snapshots |
//! | `card` | a COI daemon |
//! | `sink` | an offload process |
//! | `io` | Snapify-IO, both ends |
//! | `ledger` | what was sent and received, for the consistency of snapshots |

mod app;
mod card;
mod host;
mod io;
mod ledger;
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
    scif::{Body, HOST, NodeId, PortId},
    snapify_io,
};

use self::{
    card::{Card, CardTask},
    host::{Host, HostTask},
    io::Transfers,
    ledger::Ledger,
    sockets::{Does, Heard, Sockets},
};
use crate::{
    Canary,
    caught::caught,
    links::{self, CardLink, EVENTS_MAX, Effect, NOTICE_NS, Network, Tally},
    points, scif, verbs,
};

pub use self::app::SCENARIOS;

/// A host process, from 0.
type HostId = usize;

/// Something that happens to a process.
#[derive(Debug)]
enum Event {
    /// To a node: a record of a neighbour's.
    Record(links::Way, Vec<u8>),
    /// Something happens to the link of this card.
    Link(NodeId, links::Task),
    /// To the host's node: this host process is gone.
    HostGone(HostId),
    /// To the program behind an endpoint of a node.
    Hear(NodeId, EndpointId, Heard),
    /// To the node that has asked for copies with another one's memory.
    Copy(NodeId, NodeId, u64, Vec<Descriptor>),
    Host(HostId, HostTask),
    Card(NodeId, CardTask),
}

/// An event as a record shows it.
fn label(roles: &BTreeMap<(NodeId, EndpointId), Role>, event: &Event) -> String {
    match event {
        Event::Record(_, record) => match links::peek(record).map(|message| message.body) {
            Some(Body::Data(bytes)) => format!("scif: Data, {} bytes", bytes.len()),
            Some(Body::Window { offset, .. }) => format!("scif: Window at {offset}"),
            Some(body) => format!("scif: {body:?}"),
            None => "a record without a message".into(),
        },
        Event::Hear(node, endpoint, Heard::Frame(bytes)) => {
            let shown = match roles.get(&(*node, *endpoint)) {
                Some(Role::Host(_, role)) => role.show(bytes),
                Some(Role::Card(role)) => role.show(bytes),
                Some(Role::Io(_)) => show::<snapify_io::Message>(bytes),
                None => None,
            };
            shown.unwrap_or_else(|| format!("{} bytes for nobody", bytes.len()))
        }
        Event::Hear(_, _, Heard::Accepted(_)) => "accepted".into(),
        Event::Hear(_, _, heard) => format!("{heard:?}").to_lowercase(),
        Event::Copy(.., copies) => format!("DMA, {} descriptors", copies.len()),
        Event::Link(node, task) => format!("link of card {node}: {task:?}"),
        Event::HostGone(_) => "a host process is gone".into(),
        Event::Host(_, task) => format!("{task:?}"),
        Event::Card(_, task) => format!("{task:?}"),
    }
}

/// A frame as the message that it is.
fn show<T: serde::de::DeserializeOwned + std::fmt::Debug>(bytes: &[u8]) -> Option<String> {
    decode::<T>(bytes).map(|message| format!("{message:?}"))
}

/// Whose endpoint it is.
#[derive(Clone, Debug)]
enum Role {
    Host(HostId, host::Role),
    Card(card::Role),
    Io(io::Role),
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The application finished.
    Finished,
    /// The application was told that it cannot.
    Failed(String),
    /// Somebody waits for something that never comes.
    Stuck(String),
    /// It never came to rest.
    Endless,
    /// The code under test panicked.
    Crashed(String),
}

impl Ending {
    /// The worse, the more.
    fn weight(&self) -> u8 {
        match self {
            Self::Finished => 0,
            Self::Failed(_) => 1,
            Self::Stuck(_) => 2,
            Self::Endless => 3,
            Self::Crashed(_) => 4,
        }
    }
}

/// What came of one application.
#[derive(Debug)]
pub struct App {
    /// How it ended.
    pub ending: Ending,
    /// Whether its process was lost, and nothing could bring it back.
    pub lost: bool,
    /// Results of run functions, by pipeline, in the order in which they were asked for.
    pub results: Vec<Vec<Option<u64>>>,
    /// Of each buffer: what its run functions left in it, if it was read at the end.
    pub buffers: Vec<Option<u64>>,
    /// What is wrong with its snapshot on the disk; `None`: it is whole, or not there.
    pub snapshot: Option<String>,
    /// Calls that were told of an error, in its own words.
    pub errors: Vec<String>,
}

/// What there is to know of a run.
#[derive(Debug)]
pub struct Outcome {
    /// How it ended: the worst of all applications.
    pub ending: Ending,
    /// Every application.
    pub apps: Vec<App>,
    /// What must never happen, and did: the invariant, and how.
    pub violations: Vec<(&'static str, String)>,
    /// Offload processes that are left on living cards, with nobody who owns them.
    pub leftovers: Vec<String>,
    /// Faults that happened.
    pub faults: u64,
    /// Those of them of which somebody must have been told.
    pub loud_faults: u64,
    /// The states that the system was in, if that was asked for.
    pub states: BTreeSet<u64>,
    /// Fault points, how often each was reached and how often something happened there.
    pub reached: Vec<(&'static str, u64, u64)>,
    /// Virtual time at the end.
    pub now_ns: u64,
    /// What happened.
    pub trace: Trace,
    /// Names of the processes, for traces.
    pub processes: Vec<String>,
    /// Queue pairs and what came of their work, in scenario "verbs".
    pub verbs: verbs::Ended,
    /// Connections between programs and what came of them, in scenario "scif".
    pub scif: scif::Ended,
}

struct World {
    engine: Engine<Event>,
    rig: ProcessId,
    host_processes: Vec<ProcessId>,
    /// By node, from 1.
    card_processes: Vec<ProcessId>,
    /// By node, from 0.
    nodes: Vec<Sockets>,
    /// By node, from 1.
    links: Vec<CardLink>,
    roles: BTreeMap<(NodeId, EndpointId), Role>,
    /// Contents of registered memory, by DMA address.
    memory: BTreeMap<u64, Vec<u8>>,
    next_address: u64,
    hosts: Vec<Host>,
    cards: Vec<Card>,
    transfers: Transfers,
    disk: Disk,
    ledger: Ledger,
    violations: Vec<(&'static str, String)>,
    tally: Tally,
    /// Bits of memory or files were flipped on purpose.
    damaged: bool,
    states: Option<BTreeSet<u64>>,
    /// The bug that this run has.
    canary: Option<Canary>,
}

/// Most cards of a plan.
pub const CARDS_MAX: u16 = 32;
/// Most host processes, pipelines, run functions, buffers, writes of a plan.
const WORK_MAX: [u16; 5] = [4, 8, 100, 8, 100];

/// The processes of a plan's system, as plans name them.
pub fn processes(plan: &Plan) -> Vec<String> {
    let hosts = (1..=plan.workload.processes).map(|number| match number {
        1 => "host".into(),
        number => format!("host{number}"),
    });
    let cards = (1..=plan.cards).map(|node| format!("card{node}"));
    ["rig".to_owned()]
        .into_iter()
        .chain(hosts)
        .chain(cards)
        .collect()
}

/// What is impossible about the plan's system, if anything is.
pub fn impossible(plan: &Plan) -> Option<String> {
    let work = plan.workload;
    let amounts = [
        work.processes,
        work.pipelines,
        work.runs,
        work.buffers,
        work.writes,
    ];
    let too_much = amounts
        .iter()
        .zip(WORK_MAX)
        .any(|(amount, most)| *amount > most);
    if !(1..=CARDS_MAX).contains(&plan.cards) {
        return Some(format!("{} cards: there are 1 to {CARDS_MAX}", plan.cards));
    }
    if too_much || amounts[..3].contains(&0) {
        return Some(format!(
            "workload {work:?}: 1 to {} processes, 1 to {} pipelines, 1 to {} runs, up to {} \
             buffers and up to {} writes",
            WORK_MAX[0], WORK_MAX[1], WORK_MAX[2], WORK_MAX[3], WORK_MAX[4]
        ));
    }
    None
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
    world.tally.until = Some(until);
    // However it ends, this is how it is then.
    let _ = world.start(plan).or_else(|| world.rest());
    let state = world.describe();
    (world.engine.trace, state)
}

impl World {
    fn new(plan: &Plan, trace: Trace, canary: Option<Canary>) -> Self {
        let mut engine = Engine::new(plan, &points::all(), trace);
        let mut all = processes(plan).into_iter();
        let mut next = || engine.process(&all.next().unwrap_or_default());
        let rig = next();
        let host_processes: Vec<_> = (0..plan.workload.processes).map(|_| next()).collect();
        let card_processes: Vec<_> = (1..=plan.cards).map(|_| next()).collect();
        let mut nodes: Vec<_> = (0..=plan.cards).map(Sockets::new).collect();
        for node in 1..=plan.cards {
            nodes[usize::from(HOST)].handle(Input::PeerUp(node));
            nodes[usize::from(node)].handle(Input::PeerUp(HOST));
        }
        Self {
            engine,
            rig,
            hosts: host_processes.iter().map(|_| Host::default()).collect(),
            host_processes,
            card_processes,
            nodes,
            links: (1..=plan.cards).map(|_| CardLink::default()).collect(),
            roles: BTreeMap::new(),
            memory: BTreeMap::new(),
            next_address: 1 << 32,
            cards: (1..=plan.cards).map(Card::new).collect(),
            transfers: Transfers::default(),
            disk: Disk::default(),
            ledger: Ledger::default(),
            violations: Vec::new(),
            tally: Tally::default(),
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
        while let Some((_, event)) = self.engine.next(|event| label(&self.roles, event)) {
            self.happen(event);
            if self.states.is_some() {
                let state = self.state();
                self.states.get_or_insert_default().insert(state);
            }
            match self.tally.until {
                Some(Until::Event(count)) if self.engine.trace.events() >= count => break,
                Some(Until::Now) => break,
                _ => {}
            }
            if self.engine.trace.events() > EVENTS_MAX {
                return Some(Ending::Endless);
            }
        }
        None
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Record(way, record) => self.record(way, &record),
            Event::Link(node, task) => self.link_task(node, task),
            Event::HostGone(host) => self.close_endpoints_of_host(host),
            Event::Hear(node, endpoint, heard) => self.hear(node, endpoint, heard),
            Event::Copy(node, peer, job, copies) => self.copy(node, peer, job, &copies),
            Event::Host(host, task) => self.host_task(host, task),
            Event::Card(node, task) => self.card_task(node, task),
        }
    }

    /// Everything that hangs is ended, and the disk has room again; whether anything hung.
    fn heal(&mut self) -> bool {
        self.disk.make_room();
        let all = [self.rig]
            .into_iter()
            .chain(self.host_processes.clone())
            .chain(self.card_processes.clone());
        let hung: Vec<_> = all.filter(|one| self.engine.is_hung(*one)).collect();
        for process in &hung {
            self.crash(*process);
        }
        !hung.is_empty()
    }

    // SCIF.

    fn copy(&mut self, node: NodeId, peer: NodeId, job: u64, copies: &[Descriptor]) {
        let effect = self.fault(self.process_of(node), &snaprig_scif::faults::COPY);
        let card = if node == HOST { peer } else { node };
        if effect == Effect::Ended || self.is_held(node, card, job) {
            return;
        }
        let result = match effect {
            _ if !self.engine.is_alive(self.process_of(peer)) => Err(libc::EIO),
            Effect::Error(errno) => Err(errno),
            effect => {
                for copy in copies {
                    let mut bytes = self.memory.get(&copy.src).cloned().unwrap_or_default();
                    if let Effect::Corrupt(bit) = effect
                        && !bytes.is_empty()
                    {
                        self.damaged = true;
                        links::flip(&mut bytes, bit);
                    }
                    self.memory.insert(copy.dst, bytes);
                }
                Ok(())
            }
        };
        self.nodes[usize::from(node)].copied(job, result);
        self.pump(node);
    }

    /// A program takes what has arrived on its endpoint.
    fn hear(&mut self, node: NodeId, endpoint: EndpointId, heard: Heard) {
        match self.roles.get(&(node, endpoint)).cloned() {
            Some(Role::Host(host, role)) => self.host_hears(host, endpoint, role, heard),
            Some(Role::Card(role)) => self.card_hears(node, endpoint, role, heard),
            Some(Role::Io(role)) => self.io_hears(node, endpoint, role, heard),
            None => {}
        }
    }

    fn connect(&mut self, node: NodeId, peer: PortId, role: Role) -> EndpointId {
        let endpoint = self.nodes[usize::from(node)].connect(peer);
        self.roles.insert((node, endpoint), role);
        match self.engine.is_alive(self.process_of(node)) {
            true => self.pump(node),
            false => self.gone(node, endpoint),
        }
        endpoint
    }

    fn listen(&mut self, node: NodeId, port: u16, role: Role) -> EndpointId {
        let endpoint = self.nodes[usize::from(node)].listen(port);
        self.roles.insert((node, endpoint), role);
        self.pump(node);
        endpoint
    }

    fn tell<T: serde::Serialize>(&mut self, node: NodeId, endpoint: EndpointId, message: &T) {
        self.nodes[usize::from(node)].send(endpoint, message);
        self.pump(node);
    }

    fn close(&mut self, node: NodeId, endpoint: EndpointId) {
        if self.roles.remove(&(node, endpoint)).is_some() {
            self.nodes[usize::from(node)].close(endpoint);
            self.pump(node);
        }
    }

    /// Every machine, as it is.
    fn describe(&self) -> String {
        let mut text = format!("at {} ns\n\n", self.engine.now_ns());
        for host in &self.hosts {
            text += &host.describe();
        }
        for card in &self.cards {
            let process = self.process_of(card.node);
            let life = if self.engine.is_alive(process) {
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
            self.engine.is_alive(*process).hash(&mut hash);
            host.hash_state(&mut hash);
        }
        for (card, link) in self.cards.iter().zip(&self.links) {
            self.engine
                .is_alive(self.process_of(card.node))
                .hash(&mut hash);
            link.hash_state(&mut hash);
            card.hash_state(&mut hash);
        }
        self.engine.is_alive(self.rig).hash(&mut hash);
        self.disk.hash_names(&mut hash);
        hash.digest()
    }

    fn violation(&mut self, invariant: &'static str, what: impl Into<String>) {
        let (what, now) = (what.into(), self.engine.now_ns());
        self.engine.trace.broken(now, self.rig, &what);
        self.violations.push((invariant, what));
    }

    fn into_outcome(mut self, ending: Option<Ending>) -> Outcome {
        let endings: Vec<_> = (0..self.hosts.len())
            .map(|host| ending.clone().unwrap_or_else(|| self.host_ending(host)))
            .collect();
        let crashed = matches!(ending, Some(Ending::Crashed(_)));
        // The host processes go, and nothing of them may stay.
        for host in 0..self.hosts.len() {
            self.hosts[host].alive = false;
            self.engine.crash(self.host_processes[host]);
            if self.engine.is_alive(self.rig) && !crashed {
                self.close_endpoints_of_host(host);
            }
        }
        let ending = endings.iter().max_by_key(|one| one.weight()).cloned();
        let ending = ending.unwrap_or(Ending::Finished);
        let mut endless = crashed || ending == Ending::Endless || self.rest().is_some();
        while !endless && self.heal() {
            endless = self.rest().is_some();
        }
        let leftovers = match endless {
            true => Vec::new(),
            false => self.leftovers(),
        };
        let snapshots = self.broken_snapshots();
        let apps = endings.into_iter().zip(snapshots).zip(&self.hosts);
        let apps = apps.map(|((ending, snapshot), host)| host.outcome(ending, snapshot));
        let reached = self.engine.faults().reached().iter();
        Outcome {
            apps: apps.collect(),
            violations: self.violations,
            leftovers,
            faults: self.tally.faults,
            loud_faults: self.tally.loud,
            states: self.states.unwrap_or_default(),
            reached: reached
                .map(|(name, reached)| (*name, reached.times, reached.faults))
                .collect(),
            now_ns: self.engine.now_ns(),
            processes: self.engine.names(),
            trace: self.engine.trace,
            verbs: verbs::Ended::default(),
            scif: scif::Ended::default(),
            ending,
        }
    }
}

impl Network for World {
    type Event = Event;

    fn engine(&mut self) -> &mut Engine<Event> {
        &mut self.engine
    }

    fn tally(&mut self) -> &mut Tally {
        &mut self.tally
    }

    fn link(&mut self, card: NodeId) -> &mut CardLink {
        &mut self.links[usize::from(card) - 1]
    }

    fn process_of(&self, node: NodeId) -> ProcessId {
        match node {
            HOST => self.rig,
            card => self.card_processes[usize::from(card) - 1],
        }
    }

    fn card_of(&self, process: ProcessId) -> Option<NodeId> {
        let at = self.card_processes.iter().position(|one| *one == process)?;
        Some(at as NodeId + 1)
    }

    fn record_comes(way: links::Way, record: Vec<u8>) -> Event {
        Event::Record(way, record)
    }

    fn link_event(card: NodeId, task: links::Task) -> Event {
        Event::Link(card, task)
    }

    fn node_hears(&mut self, node: NodeId, input: Input) {
        self.nodes[usize::from(node)].handle(input);
    }

    fn pump(&mut self, node: NodeId) {
        let own = self.process_of(node);
        while let Some(does) = self.nodes[usize::from(node)].poll() {
            if !self.engine.is_alive(own) {
                continue;
            }
            match does {
                Does::Send(to, message) => self.send_message(own, node, to, &message),
                Does::Hear(endpoint, heard) => {
                    let pipeline = |channel: &Channel| matches!(channel, Channel::Pipeline(_));
                    let (program, thread) = match self.roles.get(&(node, endpoint)) {
                        Some(Role::Host(host, host::Role::Channel(_, channel)))
                            if pipeline(channel) =>
                        {
                            let program = self.host_processes[*host];
                            (program, snaprig_coi::faults::PIPE_THREAD1)
                        }
                        Some(Role::Card(card::Role::Channel(_, Some(channel))))
                            if pipeline(channel) =>
                        {
                            (own, coi_device::faults::PIPE_THREAD2)
                        }
                        Some(Role::Host(host, _)) => {
                            (self.host_processes[*host], snaprig_coi::faults::THREAD)
                        }
                        _ => (own, snaprig_coi::faults::THREAD),
                    };
                    // Nothing is heard on an endpoint before it is accepted.
                    let lane = match heard {
                        Heard::Accepted(new) => lane(node, new),
                        _ => lane(node, endpoint),
                    };
                    let by_ns = match self.fault(program, &thread) {
                        Effect::Ended => continue,
                        Effect::Late(by_ns) => by_ns,
                        _ => 0,
                    };
                    let event = Event::Hear(node, endpoint, heard);
                    self.engine.send_late(own, program, lane, by_ns, event);
                }
                Does::Copy(job, peer, copies) => {
                    let event = Event::Copy(node, peer, job, copies);
                    self.engine.after(own, 0, event);
                }
            }
        }
    }

    fn crash(&mut self, process: ProcessId) {
        self.engine.crash(process);
        let host = self.host_processes.iter().position(|one| *one == process);
        if let Some(host) = host {
            self.hosts[host].alive = false;
            self.engine
                .after(self.rig, NOTICE_NS, Event::HostGone(host));
        } else if let Some(node) = self.card_of(process) {
            self.nodes[usize::from(node)] = Sockets::new(node);
            self.roles.retain(|(of, _), _| *of != node);
            self.cards[usize::from(node) - 1].forget();
            self.forget_requesters(node);
            self.card_is_gone(node);
        } else {
            // Everything that a rig has started ends with it (`exit_with_the_rig`).
            for process in self.card_processes.clone() {
                self.engine.crash(process);
            }
            self.cards.iter_mut().for_each(Card::forget);
            for (host, process) in self.host_processes.clone().into_iter().enumerate() {
                let event = Event::Host(host, HostTask::RigGone);
                self.engine.after(process, NOTICE_NS, event);
            }
        }
    }

    fn forget_node(&mut self, card: NodeId) {
        self.nodes[usize::from(card)] = Sockets::new(card);
    }

    fn start_again(&mut self, card: NodeId) {
        self.start_card(card);
    }

    fn believes_links(&self) -> bool {
        self.canary == Some(Canary::BelievingLink)
    }

    fn fill_disk(&mut self) {
        self.disk.fill();
    }
}

/// The lane of what is heard on an endpoint.
fn lane(node: NodeId, endpoint: EndpointId) -> Lane {
    1 << 62 | Lane::from(node) << 48 ^ endpoint
}

/// A frame as a message; what cannot be read is the end of the connection.
fn decode<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    frame::decode(bytes).ok()
}
