//! One run of a plan: nodes, links and programs, to the end.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
    hash::{Hash, Hasher},
};

use snaprig_scif::node::{BackingId, EndpointId, Input, JobId, Node, RequestId, Value};
use snaprig_sim::{Plan, ProcessId};
use snaprig_wire::scif::{HOST, NodeId, PortId, QUEUE_BYTES};
use xxhash_rust::xxh3::Xxh3;

use super::{
    Canary, Ended, Parameters, Refusal, Side,
    calls::{Caller, Job, PendingCall, Request, Signal},
    draw::POINTS,
    lanes::Laid,
    memory::Memory,
    program::{Act, Party, Program, Talking},
    work::Work,
};
use crate::{
    caught::caught,
    links::{self, NOTICE_NS, Net, Network},
    scenario::{Ending, Outcome, Watch},
    stage::{Stage, System},
};

/// Something that happens to a process.
#[derive(Debug)]
pub enum Event {
    /// Something that links have happen.
    Net(links::Event),
    /// To a node: a program's call.
    Call(Caller, Option<Request>, Input),
    /// To a node: RMA of it is done.
    Copy(NodeId, JobId),
    /// To a node: this program is gone.
    ProgramGone(usize),
    /// To a program: its call has ended.
    Told(Caller, Request, Result<Value, i32>),
    /// A program goes on.
    Program(usize, Act),
}

impl From<links::Event> for Event {
    fn from(event: links::Event) -> Self {
        Self::Net(event)
    }
}

/// An event as a record shows it.
fn label(event: &Event) -> String {
    match event {
        Event::Net(event) => event.label(),
        Event::Call(who, Some(what), _) => format!("{who:?} calls {}", what.name()),
        Event::Call(who, None, input) => format!("{who:?}: {input:?}"),
        Event::Copy(_, job) => format!("DMA of job {job}"),
        Event::ProgramGone(program) => format!("program {} is gone", program + 1),
        Event::Told(who, what, Ok(Value::Bytes(bytes))) => {
            format!("{who:?}: {}: {} bytes", what.name(), bytes.len())
        }
        Event::Told(who, what, result) => format!("{who:?}: {}: {result:?}", what.name()),
        Event::Program(_, act) => format!("{act:?}"),
    }
}

/// The system.
pub struct World {
    pub net: Net<Event>,
    /// By node, from 0.
    pub nodes: Vec<Node>,
    pub work: Work,
    pub programs: Vec<Program>,
    pub talking: Vec<Talking>,
    /// All sides that there ever were.
    pub sides: Vec<Party>,
    /// Sides by their endpoints.
    pub ends: BTreeMap<(NodeId, EndpointId), usize>,
    /// Connections by number: of which talk, and the connecting side once it is there.
    pub connections: BTreeMap<u32, (usize, Option<usize>)>,
    pub next_connection: u32,
    /// Endpoints, requests and values of signals.
    pub next_number: u64,
    /// Programs of open endpoints.
    pub owners: BTreeMap<(NodeId, EndpointId), usize>,
    /// Calls that nodes have under way.
    pub asked: BTreeMap<RequestId, PendingCall>,
    /// The call that a node is handling.
    pub current: Option<RequestId>,
    pub jobs: BTreeMap<(NodeId, JobId), Job>,
    pub signals: BTreeMap<(NodeId, u64), Signal>,
    pub memory: Memory,
    pub laid: Laid,
    pub refusals: Vec<Refusal>,
    pub copies: u64,
    /// Errors that DMA was told to have.
    pub injected: BTreeSet<i32>,
    /// The host's node has been stopped for a while: what cards say to each other came later.
    pub has_host_hung: bool,
    /// The bug that this run has.
    pub canary: Option<Canary>,
    /// A node loses a peer, now.
    pub leaking: bool,
    /// The last connection between two ports.
    pub latest: BTreeMap<(PortId, PortId), u32>,
}

impl World {
    pub fn new(plan: &Plan, parameters: &Parameters, watch: Watch<Canary>) -> Self {
        let canary = watch.canary;
        let mut stage = Stage::new(plan, &POINTS, watch);
        let names = parameters.processes();
        let mut all = names.iter().map(|one| stage.engine.process(&one.name));
        let rig = all.next().unwrap_or(ProcessId(0));
        let cards = all.by_ref().take(parameters.cards.into()).collect();
        let program = |(number, process)| Program {
            process,
            node: parameters.node_of(number),
            forgotten: false,
            listener: 0,
        };
        let all: Vec<_> = all
            .take(parameters.programs())
            .enumerate()
            .map(program)
            .collect();
        let node = |id| Node::with_window(id, QUEUE_BYTES);
        let mut nodes: Vec<_> = (0..=parameters.cards).map(node).collect();
        for node in 1..=parameters.cards {
            nodes[usize::from(HOST)].handle(Input::PeerUp(node));
            nodes[usize::from(node)].handle(Input::PeerUp(HOST));
        }
        let work = Work::new(plan.seed, parameters);
        let talking = |talk: &super::work::Talk| Talking {
            left: talk.attempts,
            ..Talking::default()
        };
        Self {
            net: Net::new(stage, rig, cards),
            nodes,
            talking: work.talks.iter().map(talking).collect(),
            work,
            programs: all,
            sides: Vec::new(),
            ends: BTreeMap::new(),
            connections: BTreeMap::new(),
            next_connection: 0,
            next_number: 0,
            owners: BTreeMap::new(),
            asked: BTreeMap::new(),
            current: None,
            jobs: BTreeMap::new(),
            signals: BTreeMap::new(),
            memory: Memory::default(),
            laid: Laid::default(),
            refusals: Vec::new(),
            copies: 0,
            injected: BTreeSet::new(),
            has_host_hung: false,
            canary,
            leaking: false,
            latest: BTreeMap::new(),
        }
    }

    fn is_node_alive(&self, node: NodeId) -> bool {
        self.net.stage.engine.is_alive(self.process_of(node))
    }

    /// Every endpoint is closed; what is left of it.
    fn tear_down(&mut self) -> Vec<String> {
        for program in 0..self.programs.len() {
            if self.is_node_alive(self.programs[program].node) {
                self.forget_program(program);
            }
        }
        if !self.rest() || !self.heal_and_rest() {
            return vec!["the end of everything never comes to rest; something".into()];
        }
        let nodes = (0..self.nodes.len()).filter(|node| self.is_node_alive(*node as NodeId));
        let in_use = nodes.filter_map(|node| match self.nodes[node].in_use() {
            0 => None,
            count => Some(format!("node {node}: {count} endpoints or jobs; that")),
        });
        let asked = self
            .asked
            .values()
            .filter(|asked| self.is_node_alive(asked.node));
        let asked = asked.map(|asked| format!("a call of {:?}", asked.who));
        let alive = self.is_node_alive(HOST);
        let memory = self.memory.left().filter(|_| alive);
        let memory = memory.map(|backing: BackingId| format!("backing {backing}"));
        in_use.chain(asked).chain(memory).collect()
    }

    fn ended_sides(&self) -> Vec<Side> {
        let side = |party: &Party| Side {
            connection: party.connection,
            peer: party.peer,
            sent: party.sent,
            came: party.came,
            wrong: party.wrong.clone(),
            drained: party.drained && !party.dead,
            undisturbed: !self.is_disturbed(party.node),
        };
        self.sides.iter().map(side).collect()
    }

    /// Runs to the end, or to where it is to be looked at.
    pub fn finish(mut self) -> Outcome<Ended> {
        let is_looked_at = self.net.stage.tally.until.is_some();
        let ending = self.play();
        let sides = self.ended_sides();
        let comes_to_rest = !matches!(ending, Ending::Crashed(_) | Ending::Endless);
        let left = match comes_to_rest && !is_looked_at {
            true => caught(|| self.tear_down()),
            false => Ok(Vec::new()),
        };
        let (ending, leftovers) = match left {
            Ok(left) => (ending, left),
            Err(panic) => (Ending::Crashed(panic), Vec::new()),
        };
        let end = Ended {
            sides,
            refusals: self.refusals,
            copies: self.copies,
        };
        self.net.stage.into_outcome(ending, leftovers, end)
    }

    /// What must never happen has happened.
    pub fn violation(&mut self, invariant: &'static str, what: impl Into<String>) {
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
        // Nodes are there before programs are.
        self.pump(HOST);
        self.rest();
        for program in 0..self.programs.len() {
            // Its card may be gone, or have been started again.
            let of = &self.programs[program];
            if self.net.stage.engine.is_alive(of.process) && of.listener == 0 {
                self.start_program(program);
            }
        }
    }

    #[inline]
    fn happen(&mut self, _: ProcessId, event: Event) {
        match event {
            Event::Net(event) => self.on_link(event),
            Event::Call(who, what, input) => self.called(who, what, input),
            Event::Copy(node, job) => self.copy(node, job),
            Event::ProgramGone(program) => self.forget_program(program),
            Event::Told(who, what, result) => self.told(who, &what, result),
            Event::Program(program, act) => self.act(program, act),
        }
    }

    fn label(&self, event: &Event) -> String {
        label(event)
    }

    fn waits(&self) -> Option<String> {
        let waiting = self.asked.iter().find(|(_, asked)| {
            let program = &self.programs[self.program_of(asked.who)];
            let is_patient = matches!(asked.what, Request::Accept);
            self.net.stage.engine.is_alive(program.process)
                && self.is_node_alive(asked.node)
                && !is_patient
        });
        if let Some((_, asked)) = waiting {
            return Some(format!("{:?} waits: {:?}", asked.who, asked.what));
        }
        let open = self
            .sides
            .iter()
            .position(|side| !side.closed && !side.dead && self.is_node_alive(side.node));
        open.map(|side| format!("side {side} is never closed"))
    }

    fn describe(&self) -> String {
        let mut text = format!("at {} ns\n", self.net.stage.engine.now_ns());
        for (number, node) in self.nodes.iter().enumerate() {
            let life = match self.is_node_alive(number as NodeId) {
                true => "",
                false => " (not alive)",
            };
            // Writing to a string cannot fail.
            let _ = writeln!(text, "node {number}{life}: {} in use", node.in_use());
        }
        for (number, side) in self.sides.iter().enumerate() {
            let state = match (side.dead, side.closed) {
                (true, _) => "dead",
                (_, true) => "closed",
                _ => "open",
            };
            let _ = writeln!(
                text,
                "side {number}: program{}, connection {:?}, {state}: {} bytes sent, {} came, \
                 {} windows",
                side.program + 1,
                side.connection,
                side.sent,
                side.came,
                side.windows.len(),
            );
        }
        for asked in self.asked.values() {
            let _ = writeln!(text, "{:?} waits: {}", asked.who, asked.what.name());
        }
        text
    }

    fn state(&self) -> u64 {
        let mut hash = Xxh3::new();
        for node in 0..self.nodes.len() {
            self.is_node_alive(node as NodeId).hash(&mut hash);
        }
        for card in 1..=self.net.cards.len() as NodeId {
            let link = self.net.link(card);
            link.hash_state(&mut hash);
        }
        for side in &self.sides {
            let windows = side.windows.len();
            (side.dead, side.closed, side.step, side.over, windows).hash(&mut hash);
        }
        for asked in self.asked.values() {
            (asked.who, asked.what.name()).hash(&mut hash);
        }
        self.jobs.len().hash(&mut hash);
        hash.finish()
    }

    fn crash(&mut self, process: ProcessId) {
        self.net.stage.engine.crash(process);
        let program = self.programs.iter().position(|one| one.process == process);
        if let Some(program) = program {
            self.lose_program(program);
            let node = self.process_of(self.programs[program].node);
            self.net
                .stage
                .engine
                .after(node, NOTICE_NS, Event::ProgramGone(program));
        } else if let Some(node) = self.card_of(process) {
            self.lose_node(node);
            self.card_is_gone(node);
        } else {
            // Everything ends with the rig.
            for card in self.net.cards.clone() {
                self.net.stage.engine.crash(card);
            }
            for node in 0..self.nodes.len() {
                self.lose_node(node as NodeId);
            }
        }
    }

    fn hang(&mut self, process: ProcessId) {
        self.has_host_hung |= process == self.process_of(HOST);
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
}
