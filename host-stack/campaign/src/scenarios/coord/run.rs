//! One run of a plan: to the end of its restart.

use std::collections::{BTreeMap, BTreeSet};

use snaprig_coord::{
    auth::Token,
    coordinator::Input,
    member::{self, Machine},
    message::{Answer, Call, CallError, Role, ToCoordinator, ToMember},
    phase::Phase,
};
use snaprig_sim::{Disk, Engine, Kind, Plan, Point, ProcessId, Random, Trace};

use super::{
    COORDINATOR,
    agent::Agent,
    keeper::{Commit, Keeper},
    net::{Peer, Wire},
    operator::{Operator, Part},
    program::Work,
};
use crate::{
    Canary, Outcome,
    caught::caught,
    check::messages,
    links::{EVENTS_MAX, Effect, Tally},
    model::Until,
    points,
};

/// The job's name.
pub const JOB: &str = "job";
/// After so many events no fault happens any more.
const FAULTS_UNTIL: u64 = EVENTS_MAX / 4;
/// Nor after so many faults: a plan may have a process die at each of its steps.
const FAULTS_MAX: u64 = 2000;
/// A program sends about once in so long.
const STEP_NS: u64 = 60_000;
/// The longest time that its messages are on their way: longer than coordinators' are.
const LATENCY_NS: u64 = 400_000;

/// What all of the job know.
pub fn token() -> Token {
    Token::new([7; 32])
}

/// Something that happens to a process.
#[derive(Debug)]
pub enum Event {
    /// To a peer: its machine wants to be woken.
    PeerTick(usize, u64),
    /// To the coordinator: the same.
    CoordinatorTick(u64),
    /// To a peer: it connects.
    Dial(Wire),
    /// To a peer: it cannot.
    Unreached(usize, String),
    Connected(Wire),
    ToCoordinator(Wire, ToCoordinator),
    ToPeer(Wire, ToMember),
    GoneAtCoordinator(Wire),
    GoneAtPeer(Wire),
    /// To the coordinator: its disk comes to a manifest.
    Commit(Commit),
    LateCommit(Commit),
    Committed(u64, Result<(), String>),
    /// To an agent: it does a phase.
    Phase(usize, u64, Phase),
    /// To a program: it goes on.
    Step(usize),
    /// To a program's kernel: of this generation of connections, at this end, a message.
    Data(u64, usize, usize, u64),
    /// To the operator.
    OperatorConnects,
    Order,
    Rested,
    Look,
}

fn label(event: &Event) -> String {
    match event {
        Event::ToCoordinator(wire, message) => format!("{}: {message:?}", wire.number),
        Event::ToPeer(wire, message) => format!("{}: {message:?}", wire.number),
        Event::Step(_) => "the program goes on".into(),
        Event::Data(_, connection, side, number) => {
            format!("message {number} at end {side} of connection {connection}")
        }
        other => format!("{other:?}"),
    }
}

/// The system.
pub struct World {
    pub engine: Engine<Event>,
    pub tally: Tally,
    pub random: Random,
    pub disk: Disk,
    pub coordinator: ProcessId,
    pub keeper: Option<Keeper>,
    /// The job's members, as its directory has them.
    pub roster: Vec<String>,
    /// Agents' machines, and the operator's.
    pub peers: Vec<Peer>,
    pub agents: Vec<Agent>,
    pub operator: Operator,
    pub work: Work,
    /// Whose connections the coordinator has.
    pub wires: BTreeMap<u64, usize>,
    pub next_wire: u64,
    pub next_call: Option<(u64, Call)>,
    /// The last round that began, and when.
    pub last_round: u64,
    pub begun_ns: u64,
    /// Connections of programs are made anew by a restart.
    pub generation: u64,
    /// Agents that were restarted.
    pub restarted: BTreeSet<usize>,
    /// Nothing goes wrong any more.
    pub faults_off: bool,
    /// Until then, something may be late.
    pub late_until_ns: u64,
    pub stuck: Option<String>,
    pub canary: Option<Canary>,
    pub violations: Vec<(&'static str, String)>,
    pub states: Option<BTreeSet<u64>>,
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

/// Runs a plan up to there, and describes everybody as they are then.
pub fn state_at(plan: &Plan, canary: Option<Canary>, until: Until) -> (Trace, String) {
    let mut world = World::new(plan, Trace::recording(), canary);
    world.tally.until = Some(until);
    // However it ends, this is how it is then.
    let _ = caught(|| {
        world.start();
        world.go()
    });
    let state = world.describe();
    (world.engine.trace, state)
}

impl World {
    fn new(plan: &Plan, trace: Trace, canary: Option<Canary>) -> Self {
        let mut engine = Engine::new(plan, &points::all(), trace);
        let coordinator = engine.process(COORDINATOR);
        let work = Work::new(plan);
        let agents = 0..usize::from(plan.workload.processes);
        let agent = |number| {
            let process = engine.process(&format!("agent{}", number + 1));
            Agent::new(process, work.program(number))
        };
        let agents: Vec<_> = agents.map(agent).collect();
        let operator = engine.process("operator");
        let idle = |process| Peer::new(Machine::new(config(Role::Control), 0), process);
        let processes = agents.iter().map(|agent| agent.process);
        Self {
            peers: processes.chain([operator]).map(idle).collect(),
            engine,
            tally: Tally::default(),
            random: Random::new(plan.seed, "coord"),
            disk: Disk::default(),
            coordinator,
            keeper: None,
            roster: Vec::new(),
            agents,
            operator: Operator::new(plan.workload.writes),
            work,
            wires: BTreeMap::new(),
            next_wire: 0,
            next_call: None,
            last_round: 0,
            begun_ns: 0,
            generation: 0,
            restarted: BTreeSet::new(),
            faults_off: false,
            late_until_ns: 0,
            stuck: None,
            canary,
            violations: Vec::new(),
            states: None,
        }
    }

    pub fn start(&mut self) {
        for agent in 0..self.agents.len() {
            self.start_agent(agent);
            self.step_later(agent);
        }
        self.operator_connects();
    }

    /// An agent's machine begins.
    pub fn start_agent(&mut self, agent: usize) {
        let role = Role::Member {
            name: agent.to_string(),
            incarnation: self.random.number(),
        };
        let machine = Machine::new(config(role), self.engine.now_ns());
        self.peers[agent] = Peer::new(machine, self.agents[agent].process);
        self.peer_handles(agent, member::Input::Tick);
    }

    /// Until all is over; false if it never is.
    pub fn go(&mut self) -> bool {
        while self.operator.part != Part::Over && self.stuck.is_none() {
            let Some((_, event)) = self.engine.next(label) else {
                self.stuck = Some("nothing happens any more".into());
                break;
            };
            self.happen(event);
            if self.states.is_some() {
                let state = self.state();
                self.states.get_or_insert_default().insert(state);
            }
            match self.tally.until {
                Some(Until::Event(count)) if self.engine.trace.events() >= count => return true,
                Some(Until::Now) => return true,
                _ => {}
            }
            if self.engine.trace.events() > EVENTS_MAX {
                return false;
            }
        }
        true
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::PeerTick(peer, due) => self.peer_tick(peer, due),
            Event::CoordinatorTick(due) => self.coordinator_tick(due),
            Event::Dial(wire) => self.dial(wire),
            Event::Unreached(peer, why) => {
                self.peer_handles(peer, member::Input::Closed { why });
            }
            Event::Connected(wire) => {
                let (connection, nonce) = (wire.number, self.nonce());
                self.coordinator_handles(Input::Connected { connection, nonce });
            }
            Event::ToCoordinator(wire, message) => {
                self.heard_by_coordinator(wire.number, message);
            }
            Event::ToPeer(wire, message) => self.heard_by_peer(wire, message),
            Event::GoneAtCoordinator(wire) => self.gone_at_coordinator(wire),
            Event::GoneAtPeer(wire) => self.gone_at_peer(wire),
            Event::Commit(commit) => self.commit(&commit),
            Event::LateCommit(commit) => self.late_commit(&commit),
            Event::Committed(round, result) => {
                self.coordinator_handles(Input::Committed { round, result });
            }
            Event::Phase(agent, round, phase) => self.phase(agent, round, phase),
            Event::Step(agent) => self.step(agent),
            Event::Data(generation, connection, side, number) => {
                if generation == self.generation {
                    self.arrives(connection, side, number);
                }
            }
            Event::OperatorConnects => self.operator_connects(),
            Event::Order => self.order(),
            Event::Rested => self.rested(),
            Event::Look => self.look(),
        }
    }

    /// A machine has something to say to whom it belongs to.
    pub fn told(&mut self, peer: usize, event: member::Event) {
        if peer == self.operator_peer() {
            self.operator_told(event);
        } else {
            self.agent_told(peer, event);
        }
    }

    pub fn answered(&mut self, peer: usize, id: u64, result: Result<Answer, CallError>) {
        if peer == self.operator_peer() {
            self.operator_answered(id, result);
        } else {
            self.agent_answered(peer, id, result);
        }
    }

    pub fn step_later(&mut self, agent: usize) {
        let of = &mut self.agents[agent];
        if !of.is_stepping {
            of.is_stepping = true;
            let delay_ns = self.random.below(STEP_NS);
            self.engine.after(of.process, delay_ns, Event::Step(agent));
        }
    }

    /// A running program sends on some of its connections.
    fn step(&mut self, agent: usize) {
        let of = &mut self.agents[agent];
        of.is_stepping = false;
        if !of.is_running {
            return;
        }
        let runs = self.work.runs;
        for end in of.program.ends.iter_mut().filter(|end| end.sent < runs) {
            if self.random.one_in(2) {
                continue;
            }
            let (connection, side) = (end.connection, 1 - end.side);
            let peer = self.work.connections[connection][side];
            let data = Event::Data(self.generation, connection, side, end.sent);
            end.sent += 1;
            let lane = 2 * connection as u64 + side as u64;
            let to = self.peers[peer].process;
            let late_ns = self.random.below(LATENCY_NS);
            self.engine.send_late(of.process, to, lane, late_ns, data);
        }
        if self.agents[agent]
            .program
            .ends
            .iter()
            .any(|end| end.sent < runs)
        {
            self.step_later(agent);
        }
    }

    fn arrives(&mut self, connection: usize, side: usize, number: u64) {
        let agent = self.work.connections[connection][side];
        let mut ends = self.agents[agent].program.ends.iter_mut();
        let end = ends.find(|end| (end.connection, end.side) == (connection, side));
        if let Some(end) = end {
            end.queue.push_back(number);
        }
        self.program_reads(agent);
        self.received(agent);
    }

    /// A running program reads what came.
    pub fn program_reads(&mut self, agent: usize) {
        if self.agents[agent].is_running
            && let Some(wrong) = self.agents[agent].program.read()
        {
            self.violation(messages::NAME, wrong);
        }
    }

    /// A process dies.
    pub fn crash(&mut self, process: ProcessId) {
        self.engine.crash(process);
        if process == self.coordinator {
            return self.coordinator_gone();
        }
        let agent = self.agents.iter().position(|one| one.process == process);
        if let Some(agent) = agent {
            self.peer_gone(agent);
        }
    }

    /// A fault point is reached at a process: what is left of what was about to happen.
    pub fn fault(&mut self, at: ProcessId, point: &Point) -> Effect {
        if matches!(&self.tally.until, Some(Until::Point(name)) if name == point.name) {
            self.tally.until = Some(Until::Now);
        }
        let too_many = self.tally.faults >= FAULTS_MAX;
        if self.faults_off || too_many || self.engine.trace.events() > FAULTS_UNTIL {
            return Effect::None;
        }
        let Some(kind) = self.engine.point(at, point) else {
            return Effect::None;
        };
        self.tally.faults += 1;
        let process = kind.process().and_then(|name| self.engine.named(name));
        match (kind, process) {
            (Kind::Delay(by_ns), _) => {
                let until_ns = self.engine.now_ns().saturating_add(by_ns);
                self.late_until_ns = self.late_until_ns.max(until_ns);
                return Effect::Late(by_ns);
            }
            (Kind::Error(errno), _) => return Effect::Error(errno),
            (Kind::TornWrite(bytes), _) => return Effect::Torn(bytes),
            (Kind::Drop, _) => return Effect::Dropped,
            (Kind::DiskFull, _) => self.disk.fill(),
            (Kind::Crash(_), Some(process)) => self.crash(process),
            (Kind::Hang(_), Some(process)) if self.engine.is_alive(process) => {
                self.engine.hang(process);
            }
            _ => {}
        }
        match self.engine.is_alive(at) {
            true => Effect::None,
            false => Effect::Ended,
        }
    }

    /// What must never happen has happened.
    pub fn violation(&mut self, invariant: &'static str, what: impl Into<String>) {
        let (what, now) = (what.into(), self.engine.now_ns());
        self.engine.trace.broken(now, self.coordinator, &what);
        self.violations.push((invariant, what));
    }
}

/// Who tries again when it loses the coordinator: members do.
pub fn config(role: Role) -> member::Config {
    member::Config {
        is_persistent: role != Role::Control,
        job: JOB.into(),
        token: token(),
        role,
    }
}
