//! One run of a plan: to the end of its restart.

use std::collections::{BTreeMap, BTreeSet};

use snaprig_coord::{
    faults,
    member::{self, Machine},
    message::{Answer, Call, CallError, Role, ToCoordinator, ToMember},
    phase::Phase,
};
use snaprig_peers::Token;
use snaprig_sim::{Disk, Plan, ProcessId, Random};

use super::{
    COORDINATOR, Canary, Parameters,
    agent::Agent,
    keeper::{Commit, Keeper},
    net::{Peer, Wire},
    operator::Operator,
    program::Work,
};
use crate::{
    scenario::{Watch, invariant::MESSAGES},
    stage::Stage,
};

/// The job's name.
pub const JOB: &str = "job";
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
    /// To the coordinator: its disk comes to who the members are.
    Members,
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

/// An event as a record shows it.
pub fn label(event: &Event) -> String {
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
    pub stage: Stage<Event>,
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
}

impl World {
    pub fn new(plan: &Plan, parameters: &Parameters, watch: Watch<Canary>) -> Self {
        let canary = watch.canary;
        let mut stage = Stage::new(plan, faults::ALL, watch);
        let engine = &mut stage.engine;
        let coordinator = engine.process(COORDINATOR);
        let work = Work::new(plan.seed, &parameters.workload);
        let agents = 0..usize::from(parameters.workload.processes);
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
            stage,
            random: Random::new(plan.seed, "coord"),
            disk: Disk::default(),
            coordinator,
            keeper: None,
            roster: Vec::new(),
            agents,
            operator: Operator::new(parameters.workload.checkpoints),
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
        }
    }

    /// An agent's machine begins.
    pub fn start_agent(&mut self, agent: usize) {
        let role = Role::Member {
            name: agent.to_string(),
            incarnation: self.random.number(),
            is_heir: false,
        };
        let machine = Machine::new(config(role), self.stage.engine.now_ns());
        self.peers[agent] = Peer::new(machine, self.agents[agent].process);
        self.peer_handles(agent, member::Input::Tick);
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
            self.stage
                .engine
                .after(of.process, delay_ns, Event::Step(agent));
        }
    }

    /// A running program sends on some of its connections.
    pub fn step(&mut self, agent: usize) {
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
            self.stage
                .engine
                .send_late(of.process, to, lane, late_ns, data);
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

    pub fn arrives(&mut self, connection: usize, side: usize, number: u64) {
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
            self.violation(MESSAGES, wrong);
        }
    }

    /// What must never happen has happened.
    pub fn violation(&mut self, invariant: &'static str, what: impl Into<String>) {
        let coordinator = self.coordinator;
        self.stage.violation(coordinator, invariant, what);
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
