//! One run of a plan: nodes, links and programs, to the end.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
    hash::{Hash, Hasher},
};

use snaprig_scif::node::{BackingId, EndpointId, Input, JobId, Node, RequestId, Value};
use snaprig_sim::{Engine, Plan, ProcessId, Trace};
use snaprig_wire::scif::{HOST, NodeId, PortId, QUEUE_BYTES};
use xxhash_rust::xxh3::Xxh3;

use super::{
    Ended, Refusal, Side,
    calls::{Asked, Job, Signal, What, Who},
    memory::Memory,
    node_of, processes,
    program::{Act, Party, Program, Talking},
    programs,
    work::Work,
};
use crate::{
    Canary, Ending, Outcome,
    caught::caught,
    links::{self, EVENTS_MAX, Net, Network},
    model::Until,
    points, verbs,
};

/// Something that happens to a process.
#[derive(Debug)]
pub enum Event {
    /// Something that links have happen.
    Net(links::Event),
    /// To a node: a program's call.
    Call(Who, Option<What>, Input),
    /// To a node: RMA of it is done.
    Copy(NodeId, JobId),
    /// To a node: this program is gone.
    ProgramGone(usize),
    /// To a program: its call has ended.
    Told(Who, What, Result<Value, i32>),
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
    pub asked: BTreeMap<RequestId, Asked>,
    /// The call that a node is handling.
    pub current: Option<RequestId>,
    pub jobs: BTreeMap<(NodeId, JobId), Job>,
    pub signals: BTreeMap<(NodeId, u64), Signal>,
    pub memory: Memory,
    pub refusals: Vec<Refusal>,
    pub copies: u64,
    /// Errors that DMA was told to have.
    pub injected: BTreeSet<i32>,
    violations: Vec<(&'static str, String)>,
    states: Option<BTreeSet<u64>>,
    /// The bug that this run has.
    pub canary: Option<Canary>,
    /// A node loses a peer, now.
    pub leaking: bool,
    /// The last connection between two ports.
    pub latest: BTreeMap<(PortId, PortId), u32>,
}

/// Runs a plan to its end, with a planted bug or without.
pub fn run(plan: &Plan, trace: Trace, canary: Option<Canary>) -> Outcome {
    World::new(plan, trace, canary).finish()
}

/// The same, and keeps every state that the system was in.
pub fn run_counting(plan: &Plan, trace: Trace, canary: Option<Canary>) -> Outcome {
    let mut world = World::new(plan, trace, canary);
    world.states = Some(BTreeSet::new());
    world.finish()
}

/// Runs a plan up to there, and describes every connection as it is then.
pub fn state_at(plan: &Plan, canary: Option<Canary>, until: Until) -> (Trace, String) {
    let mut world = World::new(plan, Trace::recording(), canary);
    world.net.tally.until = Some(until);
    // However it ends, this is how it is then.
    let _ = caught(|| {
        world.start();
        world.rest()
    });
    let state = world.describe();
    (world.net.engine.trace, state)
}

impl World {
    fn new(plan: &Plan, trace: Trace, canary: Option<Canary>) -> Self {
        let mut engine = Engine::new(plan, &points::all(), trace);
        let names = processes(plan);
        let mut all = names.iter().map(|name| engine.process(name));
        let rig = all.next().unwrap_or(ProcessId(0));
        let cards = all.by_ref().take(plan.cards.into()).collect();
        let program = |(number, process)| Program {
            process,
            node: node_of(number, plan.cards),
            forgotten: false,
            listener: 0,
        };
        let all: Vec<_> = all.take(programs(plan)).enumerate().map(program).collect();
        let node = |id| Node::with_window(id, QUEUE_BYTES);
        let mut nodes: Vec<_> = (0..=plan.cards).map(node).collect();
        for node in 1..=plan.cards {
            nodes[usize::from(HOST)].handle(Input::PeerUp(node));
            nodes[usize::from(node)].handle(Input::PeerUp(HOST));
        }
        let work = Work::new(plan);
        let talking = |talk: &super::work::Talk| Talking {
            left: talk.attempts,
            ..Talking::default()
        };
        Self {
            net: Net::new(engine, rig, cards),
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
            refusals: Vec::new(),
            copies: 0,
            injected: BTreeSet::new(),
            violations: Vec::new(),
            states: None,
            canary,
            leaking: false,
            latest: BTreeMap::new(),
        }
    }

    fn start(&mut self) {
        // Nodes are there before programs are.
        self.pump(HOST);
        self.rest();
        for program in 0..self.programs.len() {
            // Its card may be gone, or have been started again.
            let of = &self.programs[program];
            if self.net.engine.is_alive(of.process) && of.listener == 0 {
                self.start_program(program);
            }
        }
    }

    /// Runs until nothing is to come any more; whether that is so.
    fn rest(&mut self) -> bool {
        while let Some((_, event)) = self.net.engine.next(label) {
            self.happen(event);
            if self.states.is_some() {
                let state = self.state();
                self.states.get_or_insert_default().insert(state);
            }
            match self.net.tally.until {
                Some(Until::Event(count)) if self.net.engine.trace.events() >= count => {
                    return true;
                }
                Some(Until::Now) => return true,
                _ => {}
            }
            if self.net.engine.trace.events() > EVENTS_MAX {
                return false;
            }
        }
        true
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Net(event) => self.on_link(event),
            Event::Call(who, what, input) => self.called(who, what, input),
            Event::Copy(node, job) => self.copy(node, job),
            Event::ProgramGone(program) => self.forget_program(program),
            Event::Told(who, what, result) => self.told(who, &what, result),
            Event::Program(program, act) => self.act(program, act),
        }
    }

    /// Everything that hangs is ended; whether anything did.
    fn heal(&mut self) -> bool {
        let programs = self.programs.iter().map(|program| program.process);
        let all = [self.net.rig].into_iter().chain(self.net.cards.clone());
        let hung: Vec<_> = all
            .chain(programs)
            .filter(|one| self.net.engine.is_hung(*one))
            .collect();
        for process in &hung {
            self.crash(*process);
        }
        !hung.is_empty()
    }

    /// Nothing goes wrong any more, and everything comes to rest.
    fn heal_and_rest(&mut self) -> bool {
        let mut rests = true;
        while rests && self.heal() {
            rests = self.rest();
        }
        rests
    }

    fn is_node_alive(&self, node: NodeId) -> bool {
        self.net.engine.is_alive(self.process_of(node))
    }

    /// Who waits for something that never comes.
    fn waits(&self) -> Option<String> {
        let waiting = self.asked.iter().find(|(_, asked)| {
            let program = &self.programs[self.program_of(asked.who)];
            let is_patient = matches!(asked.what, What::Accept);
            self.net.engine.is_alive(program.process)
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

    fn finish(mut self) -> Outcome {
        let rested = caught(|| {
            self.start();
            self.rest() && self.heal_and_rest()
        });
        let waits = self.waits();
        let sides = self.ended_sides();
        let left = rested.and_then(|rests| match rests {
            true => Ok((true, caught(|| self.tear_down())?)),
            false => Ok((false, Vec::new())),
        });
        let (ending, leftovers) = match (left, waits) {
            (Err(panic), _) => (Ending::Crashed(panic), Vec::new()),
            (Ok((false, _)), _) => (Ending::Endless, Vec::new()),
            (Ok((true, leftovers)), Some(waits)) => (Ending::Stuck(waits), leftovers),
            (Ok((true, leftovers)), None) => (Ending::Finished, leftovers),
        };
        let reached = self.net.engine.faults().reached().iter();
        Outcome {
            ending,
            apps: Vec::new(),
            violations: self.violations,
            leftovers,
            faults: self.net.tally.faults,
            // Whether programs were told is for `check::errors` to say, call by call.
            loud_faults: 0,
            states: self.states.unwrap_or_default(),
            reached: reached
                .map(|(name, reached)| (*name, reached.times, reached.faults))
                .collect(),
            now_ns: self.net.engine.now_ns(),
            processes: self.net.engine.names(),
            verbs: verbs::Ended::default(),
            scif: Ended {
                sides,
                refusals: self.refusals,
                copies: self.copies,
            },
            trace: self.net.engine.trace,
        }
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

    /// What must never happen has happened.
    pub fn violation(&mut self, invariant: &'static str, what: impl Into<String>) {
        let (what, now) = (what.into(), self.net.engine.now_ns());
        self.net.engine.trace.broken(now, self.net.rig, &what);
        self.violations.push((invariant, what));
    }

    /// Every connection, as it is.
    fn describe(&self) -> String {
        let mut text = format!("at {} ns\n", self.net.engine.now_ns());
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

    /// What nodes and programs would do next depends on this, and on nothing else but numbers, sizes
    /// and times.
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
}
