//! The system: a rig (the host's SCIF node, the Snapify-IO daemon and the disk), a host process,
//! and cards, each with a SCIF node, a COI daemon and offload processes.
//!
//! ```text
//!  process "rig"                   "host"                  "card1", "card2", ...
//!    node 0 <---- endpoints ----->  COI, Snapify
//!      ^  '------- Snapify-IO server, disk
//!      '--------------- messages -------------------------> node n
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
//! | `host` | the host process |
//! | `card` | daemon and offload processes |
//! | `io` | Snapify-IO, both ends |

mod card;
mod host;
mod io;
mod sockets;

use std::collections::BTreeMap;

use snaprig_scif::node::{EndpointId, Input};
use snaprig_sim::{Disk, Engine, Kind, Plan, Point, ProcessId, Trace, engine::Lane};
use snaprig_wire::{
    coi::Channel,
    dma::Descriptor,
    frame,
    scif::{Body, HOST, Message, NodeId, PortId},
    snapify_io,
};

use self::{
    card::{Card, CardTask},
    host::{Host, HostTask},
    io::Transfers,
    sockets::{Does, Heard, Sockets},
};
use crate::{Canary, points};

pub use self::host::SCENARIOS;

/// How long the rig takes to notice that a card's process is gone.
const NOTICE_NS: u64 = 50_000;
/// A run that makes more events than this does not come to rest.
const EVENTS_MAX: u64 = 200_000;

/// Something that happens to a process.
#[derive(Debug)]
enum Event {
    /// To a node: a message of a neighbour.
    Message(NodeId, Message),
    /// To the host's node: this card is gone.
    CardGone(NodeId),
    /// To the host's node: the host process is gone.
    HostGone,
    /// To the program behind an endpoint of a node.
    Hear(NodeId, EndpointId, Heard),
    /// To the DMA engine of a node.
    Copy(NodeId, u64, Vec<Descriptor>),
    Host(HostTask),
    Card(NodeId, CardTask),
}

/// An event as a record shows it.
fn label(roles: &BTreeMap<(NodeId, EndpointId), Role>, event: &Event) -> String {
    match event {
        Event::Message(_, message) => match &message.body {
            Body::Data(bytes) => format!("scif: Data, {} bytes", bytes.len()),
            Body::Window { offset, .. } => format!("scif: Window at {offset}"),
            body => format!("scif: {body:?}"),
        },
        Event::Hear(node, endpoint, Heard::Frame(bytes)) => {
            let shown = match roles.get(&(*node, *endpoint)) {
                Some(Role::Host(role)) => role.show(bytes),
                Some(Role::Card(role)) => role.show(bytes),
                Some(Role::Io(_)) => show::<snapify_io::Message>(bytes),
                None => None,
            };
            shown.unwrap_or_else(|| format!("{} bytes for nobody", bytes.len()))
        }
        Event::Hear(_, _, Heard::Accepted(_)) => "accepted".into(),
        Event::Hear(_, _, heard) => format!("{heard:?}").to_lowercase(),
        Event::Copy(_, _, copies) => format!("DMA, {} descriptors", copies.len()),
        Event::CardGone(node) => format!("card {node} is gone"),
        Event::HostGone => "the host process is gone".into(),
        Event::Host(task) => format!("{task:?}"),
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
    Host(host::Role),
    Card(card::Role),
    Io(io::Role),
}

/// What a fault point leaves of what was about to happen.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Effect {
    /// All of it.
    None,
    /// Nothing: the process is gone, or stopped.
    Ended,
    /// All of it, later.
    Late(u64),
    /// An error.
    Error(i32),
    /// A bit of it is wrong.
    Corrupt(u64),
    /// So much of it.
    Torn(u64),
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
}

/// What there is to know of a run.
#[derive(Debug)]
pub struct Outcome {
    /// How it ended.
    pub ending: Ending,
    /// Whether the application's process was lost, and nothing could bring it back.
    pub lost: bool,
    /// Results of run functions, in the order in which they were asked for.
    pub results: Vec<Option<u64>>,
    /// What is wrong with the snapshot on the disk; `None`: it is whole, or not there.
    pub snapshot: Option<String>,
    /// What must never happen, and did.
    pub violations: Vec<String>,
    /// Offload processes that are left on living cards, with nobody who owns them.
    pub leftovers: Vec<String>,
    /// Faults that happened.
    pub faults: u64,
    /// Fault points, how often each was reached and how often something happened there.
    pub reached: Vec<(&'static str, u64, u64)>,
    /// Virtual time at the end.
    pub now_ns: u64,
    /// What happened.
    pub trace: Trace,
    /// Names of the processes, for traces.
    pub processes: Vec<String>,
}

struct World {
    engine: Engine<Event>,
    rig: ProcessId,
    host_process: ProcessId,
    /// By node, from 1.
    card_processes: Vec<ProcessId>,
    /// By node, from 0.
    nodes: Vec<Sockets>,
    roles: BTreeMap<(NodeId, EndpointId), Role>,
    /// Contents of registered memory, by DMA address.
    memory: BTreeMap<u64, Vec<u8>>,
    next_address: u64,
    host: Host,
    cards: Vec<Card>,
    transfers: Transfers,
    disk: Disk,
    violations: Vec<String>,
    faults: u64,
    /// The snapshot was damaged on purpose.
    damaged: bool,
    /// The bug that this run has.
    canary: Option<Canary>,
    /// The fault point at which the run stops, until it is reached.
    until: Option<Until>,
}

/// Most cards of a plan.
pub const CARDS_MAX: u16 = 32;

/// The processes of a system with so many cards, as plans name them.
pub fn processes(cards: u16) -> Vec<String> {
    let cards = (1..=cards).map(|node| format!("card{node}"));
    ["rig".to_owned(), "host".to_owned()]
        .into_iter()
        .chain(cards)
        .collect()
}

/// Whether there is a system and a scenario as the plan says.
pub fn is_possible(plan: &Plan) -> bool {
    (2..=CARDS_MAX).contains(&plan.cards) && SCENARIOS.contains(&plan.scenario.as_str())
}

/// Runs a plan to its end, with a planted bug or without.
pub fn run(plan: &Plan, trace: Trace, canary: Option<Canary>) -> Outcome {
    let mut world = World::new(plan, trace);
    world.canary = canary;
    world.start(plan);
    // Safety first; then everything is healed, and progress demanded.
    let mut ending = world.rest();
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
    let mut world = World::new(plan, Trace::recording());
    (world.canary, world.until) = (canary, Some(until));
    world.start(plan);
    let _ = world.rest();
    let state = world.describe();
    (world.engine.trace, state)
}

impl World {
    fn new(plan: &Plan, trace: Trace) -> Self {
        let mut engine = Engine::new(plan, &points::all(), trace);
        let mut all = processes(plan.cards).into_iter();
        let mut next = || engine.process(&all.next().unwrap_or_default());
        let (rig, host_process) = (next(), next());
        let card_processes: Vec<_> = (1..=plan.cards).map(|_| next()).collect();
        let mut nodes: Vec<_> = (0..=plan.cards).map(Sockets::new).collect();
        for node in 1..=plan.cards {
            nodes[usize::from(HOST)].handle(Input::PeerUp(node));
            nodes[usize::from(node)].handle(Input::PeerUp(HOST));
        }
        Self {
            engine,
            rig,
            host_process,
            card_processes,
            nodes,
            roles: BTreeMap::new(),
            memory: BTreeMap::new(),
            next_address: 1 << 32,
            host: Host::default(),
            cards: (1..=plan.cards).map(Card::new).collect(),
            transfers: Transfers::default(),
            disk: Disk::default(),
            violations: Vec::new(),
            faults: 0,
            damaged: false,
            canary: None,
            until: None,
        }
    }

    fn start(&mut self, plan: &Plan) {
        self.start_io();
        for node in 1..=plan.cards {
            self.start_card(node);
        }
        self.start_host(plan);
    }

    /// Runs until nothing is to come any more; an ending, if that can be told already.
    fn rest(&mut self) -> Option<Ending> {
        while let Some((process, event)) = self.engine.next(|event| label(&self.roles, event)) {
            self.happen(process, event);
            match self.until {
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

    fn happen(&mut self, process: ProcessId, event: Event) {
        match event {
            Event::Message(node, message) => {
                self.nodes[usize::from(node)].handle(Input::Message(message));
                self.pump(node);
            }
            Event::CardGone(node) => {
                self.nodes[usize::from(HOST)].handle(Input::PeerDown(node));
                self.pump(HOST);
            }
            Event::HostGone => self.close_endpoints_of_host(),
            Event::Hear(node, endpoint, heard) => self.hear(node, endpoint, heard),
            Event::Copy(node, job, copies) => self.copy(process, node, job, &copies),
            Event::Host(task) => self.host_task(task),
            Event::Card(node, task) => self.card_task(node, task),
        }
    }

    /// A fault point is reached: what is left of what was about to happen.
    fn fault(&mut self, at: ProcessId, point: &Point) -> Effect {
        if matches!(&self.until, Some(Until::Point(name)) if name == point.name) {
            self.until = Some(Until::Now);
        }
        let Some(kind) = self.engine.point(at, point) else {
            return Effect::None;
        };
        self.faults += 1;
        match kind {
            Kind::Delay(by_ns) => Effect::Late(by_ns),
            Kind::Error(errno) => Effect::Error(errno),
            Kind::Corrupt(bit) => Effect::Corrupt(bit),
            Kind::TornWrite(bytes) => Effect::Torn(bytes),
            Kind::DiskFull => {
                self.disk.fill();
                Effect::None
            }
            Kind::Crash(name) => {
                if let Some(process) = self.engine.named(&name) {
                    self.crash(process);
                }
                self.alive(at)
            }
            Kind::Hang(name) => {
                if let Some(process) = self.engine.named(&name) {
                    self.engine.hang(process);
                }
                self.alive(at)
            }
            // They apply to no point.
            Kind::Drop | Kind::Duplicate | Kind::Reorder | Kind::LinkDown(_) => Effect::None,
        }
    }

    fn alive(&self, process: ProcessId) -> Effect {
        match self.engine.is_alive(process) {
            true => Effect::None,
            false => Effect::Ended,
        }
    }

    /// A process dies, and whoever has to notice will.
    fn crash(&mut self, process: ProcessId) {
        self.engine.crash(process);
        if process == self.host_process {
            self.host.alive = false;
            self.engine.after(self.rig, NOTICE_NS, Event::HostGone);
        } else if let Some(node) = self.node_of(process) {
            self.nodes[usize::from(node)] = Sockets::new(node);
            self.roles.retain(|(of, _), _| *of != node);
            self.cards[usize::from(node) - 1] = Card::new(node);
            self.forget_requesters(node);
            self.engine
                .after(self.rig, NOTICE_NS, Event::CardGone(node));
        } else {
            // Everything that a rig has started ends with it (`exit_with_the_rig`).
            for process in self.card_processes.clone() {
                self.engine.crash(process);
            }
            self.cards
                .iter_mut()
                .for_each(|card| *card = Card::new(card.node));
            let event = Event::Host(HostTask::RigGone);
            self.engine.after(self.host_process, NOTICE_NS, event);
        }
    }

    fn node_of(&self, process: ProcessId) -> Option<NodeId> {
        let at = self.card_processes.iter().position(|one| *one == process)?;
        Some(at as NodeId + 1)
    }

    /// The process that runs a node.
    fn process_of(&self, node: NodeId) -> ProcessId {
        match node {
            HOST => self.rig,
            card => self.card_processes[usize::from(card) - 1],
        }
    }

    /// Everything that hangs is ended, and the disk has room again; whether anything hung.
    fn heal(&mut self) -> bool {
        self.disk.make_room();
        let all = [self.rig, self.host_process]
            .into_iter()
            .chain(self.card_processes.clone());
        let hung: Vec<_> = all.filter(|one| self.engine.is_hung(*one)).collect();
        for process in &hung {
            self.crash(*process);
        }
        !hung.is_empty()
    }

    // SCIF.

    /// Does what the node says.
    fn pump(&mut self, node: NodeId) {
        let own = self.process_of(node);
        while let Some(does) = self.nodes[usize::from(node)].poll() {
            if !self.engine.is_alive(own) {
                continue;
            }
            match does {
                Does::Send(to, message) => self.send_message(own, node, to, message),
                Does::Hear(endpoint, heard) => {
                    let pipeline = |channel: &Channel| matches!(channel, Channel::Pipeline(_));
                    let (program, thread) = match self.roles.get(&(node, endpoint)) {
                        Some(Role::Host(host::Role::Channel(_, channel))) if pipeline(channel) => {
                            (self.host_process, points::COI_PIPE_THREAD1)
                        }
                        Some(Role::Card(card::Role::Channel(_, Some(channel))))
                            if pipeline(channel) =>
                        {
                            (own, points::COI_PIPE_THREAD2)
                        }
                        Some(Role::Host(_)) => (self.host_process, points::COI_THREAD),
                        _ => (own, points::COI_THREAD),
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
                Does::Copy(job, copies) => {
                    let event = Event::Copy(node, job, copies);
                    self.engine.after(own, 0, event);
                }
            }
        }
    }

    fn send_message(&mut self, own: ProcessId, node: NodeId, to: NodeId, message: Message) {
        let by_ns = match self.fault(own, &points::SCIF_MESSAGE) {
            Effect::Ended => return,
            Effect::Late(by_ns) => by_ns,
            _ => 0,
        };
        let peer = self.process_of(to);
        let lane = Lane::from(node) << 16 | Lane::from(to);
        let event = Event::Message(to, message);
        self.engine.send_late(own, peer, lane, by_ns, event);
    }

    fn copy(&mut self, own: ProcessId, node: NodeId, job: u64, copies: &[Descriptor]) {
        let result = match self.fault(own, &points::SCIF_COPY) {
            Effect::Ended => return,
            Effect::Error(errno) => Err(errno),
            effect => {
                for copy in copies {
                    let mut bytes = self.memory.get(&copy.src).cloned().unwrap_or_default();
                    if let Effect::Corrupt(bit) = effect
                        && !bytes.is_empty()
                    {
                        let bit = bit % (bytes.len() as u64 * 8);
                        bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
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
            Some(Role::Host(role)) => self.host_hears(endpoint, role, heard),
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
            false => self.gone(endpoint),
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
        text += &self.describe_host();
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

    fn violation(&mut self, what: impl Into<String>) {
        self.violations.push(what.into());
    }

    fn into_outcome(mut self, ending: Option<Ending>) -> Outcome {
        let ending = ending.unwrap_or_else(|| self.host_ending());
        // The host process goes, and nothing of it may stay.
        self.host.alive = false;
        self.engine.crash(self.host_process);
        if self.engine.is_alive(self.rig) {
            self.close_endpoints_of_host();
        }
        let mut endless = ending == Ending::Endless || self.rest().is_some();
        while !endless && self.heal() {
            endless = self.rest().is_some();
        }
        let leftovers = match endless {
            true => Vec::new(),
            false => self.leftovers(),
        };
        let snapshot = self.broken_snapshot();
        let reached = self.engine.faults().reached().iter();
        Outcome {
            lost: self.host.lost,
            results: self.host_results(),
            snapshot,
            violations: self.violations,
            leftovers,
            faults: self.faults,
            reached: reached
                .map(|(name, reached)| (*name, reached.times, reached.faults))
                .collect(),
            now_ns: self.engine.now_ns(),
            processes: self.engine.names(),
            trace: self.engine.trace,
            ending,
        }
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
