//! Who orders: checkpoints, the last one, and the restart; and looks after what has died, as people or
//! their tools do.

use snaprig_coord::{
    member::{Event as Told, Input, Machine},
    message::{Answer, Call, CallError, Outcome, Role},
    phase::{Kind, Order},
};

use super::invariants::{RESTARTS, RESUMED};
use super::{
    agent::Agent,
    net::Peer,
    run::{Event, World, config},
};
use crate::stage::System as _;

/// How long each phase may take.
const PHASE_MS: u32 = 2000;
/// How long to wait for who is missing: longer than a member that is alive takes to come again.
const GATHER_MS: u32 = 6000;
/// Between an order's end and the next.
const PAUSE_NS: u64 = 200_000;
/// Longest time before anything is tried again.
const AGAIN_NS: u64 = 2_000_000_000;
/// By then, whoever was stopped runs, or has been told of a mistake: silence, a phase, the patience
/// with what comes after it, and some.
const REST_NS: u64 = 200_000_000_000;
/// How often an order is given while things go wrong, and when nothing does.
const TRIES: [u32; 2] = [3, 20];
/// How often is looked whether restarted programs have ended, and how many times.
const LOOK_NS: u64 = 1_000_000;
const LOOKS: u32 = 1000;

/// The part that a run has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// So many checkpoints are to come.
    Work(u16),
    /// Everything comes to rest.
    Rest,
    /// The last one, of all that live.
    Last,
    /// The last complete checkpoint is restarted: the nth attempt.
    Restart(u32),
    /// It runs: so many looks are left.
    Running(u32),
    /// That was it.
    Over,
}

/// Who orders.
#[derive(Debug)]
pub struct Operator {
    pub part: Part,
    tries: u32,
    /// The order that has not been answered.
    order: Option<(u64, Kind)>,
    /// Why the last one failed.
    why: String,
}

impl Operator {
    pub fn new(checkpoints: u16) -> Self {
        Self {
            part: Part::Work(checkpoints),
            tries: 0,
            order: None,
            why: "nobody answers".into(),
        }
    }
}

impl World {
    /// The operator's place among the peers.
    pub fn operator_peer(&self) -> usize {
        self.agents.len()
    }

    /// Connects, with a new machine.
    pub fn operator_connects(&mut self) {
        self.look_after_coordinator();
        // What was ordered over the connection before is not answered any more.
        self.operator.order = None;
        let peer = self.operator_peer();
        let machine = Machine::new(config(Role::Control), self.stage.engine.now_ns());
        self.peers[peer] = Peer::new(machine, self.peers[peer].process);
        self.peer_handles(peer, Input::Tick);
    }

    /// One that does not answer any more is ended: until then it has the job's lock.
    fn look_after_coordinator(&mut self) {
        if self.stage.engine.is_hung(self.coordinator) {
            self.crash(self.coordinator);
        }
        if !self.stage.engine.is_alive(self.coordinator) || self.keeper.is_none() {
            self.start_coordinator();
        }
    }

    pub fn operator_told(&mut self, event: Told) {
        match event {
            Told::Joined => {
                let pause_ns = match self.operator.tries {
                    0 => PAUSE_NS,
                    _ => self.again_ns(),
                };
                self.operator_later(pause_ns, Event::Order);
            }
            Told::Apart { why } => {
                self.operator.order = None;
                self.operator.why = why;
                self.try_again();
                let again_ns = self.again_ns();
                self.operator_later(again_ns, Event::OperatorConnects);
            }
            _ => {}
        }
    }

    /// Often at once, before members have noticed what happened; or when they have.
    fn again_ns(&mut self) -> u64 {
        let most_ns = AGAIN_NS >> self.random.below(7);
        self.random.below(most_ns)
    }

    fn operator_later(&mut self, by_ns: u64, event: Event) {
        let process = self.peers[self.operator_peer()].process;
        self.stage.engine.after(process, by_ns, event);
    }

    /// An order has failed.
    fn try_again(&mut self) {
        let operator = &mut self.operator;
        operator.tries += 1;
        let most = TRIES[usize::from(self.faults_off)];
        if operator.tries < most {
            return;
        }
        operator.tries = 0;
        match operator.part {
            Part::Work(0) => self.rest_begins(),
            Part::Work(left) => operator.part = Part::Work(left - 1),
            Part::Restart(1) => self.restart(2),
            Part::Rest | Part::Last | Part::Restart(_) | Part::Running(_) => {
                let why = format!("{:?} comes to nothing: {}", operator.part, operator.why);
                self.stuck = Some(why);
            }
            Part::Over => {}
        }
    }

    /// The next order is due.
    pub fn order(&mut self) {
        if self.operator.order.is_some() {
            return;
        }
        let kind = match self.operator.part {
            Part::Work(0) => return self.rest_begins(),
            Part::Work(_) if self.random.one_in(2) => Kind::Background,
            Part::Work(_) => Kind::Checkpoint,
            Part::Last => match self.random.below(3) {
                0 => Kind::Final,
                1 => Kind::Background,
                _ => Kind::Checkpoint,
            },
            Part::Restart(_) => Kind::Restart,
            Part::Rest | Part::Running(_) | Part::Over => return,
        };
        let order = Order {
            kind,
            phase_ms: PHASE_MS,
            gather_ms: GATHER_MS,
            note: Vec::new(),
            moves: None,
        };
        self.operator_call(Call::Order(order), Some(kind));
    }

    fn operator_call(&mut self, call: Call, kind: Option<Kind>) {
        let peer = self.operator_peer();
        self.peers[peer].last_call += 1;
        let id = self.peers[peer].last_call;
        if let Some(kind) = kind {
            self.operator.order = Some((id, kind));
        }
        self.peer_handles(peer, Input::Call { id, call });
    }

    pub fn operator_answered(&mut self, id: u64, result: Result<Answer, CallError>) {
        // Others are about members that were not missing any more.
        let Some((_, kind)) = self.operator.order.filter(|(order, _)| *order == id) else {
            return;
        };
        self.operator.order = None;
        match result {
            Ok(Answer::Round(summary)) => match summary.outcome {
                Outcome::Complete => {
                    self.operator.tries = 0;
                    self.completed(kind);
                }
                Outcome::Undone { reason } => self.undone(reason),
            },
            Err(CallError::Nobody) => self.nobody(),
            Err(CallError::Apart { .. }) => {}
            Err(error) => self.undone(error.to_string()),
            Ok(other) => self.undone(format!("{other:?}")),
        }
    }

    /// Of members that are dead, that is said: nobody waits for them any more.
    fn undone(&mut self, why: String) {
        self.operator.why = why;
        self.end_hung();
        let dead: Vec<_> = (0..self.agents.len())
            .filter(|one| !self.lives(*one))
            .collect();
        for agent in dead {
            let name = agent.to_string();
            self.operator_call(Call::Forget { name }, None);
        }
        self.try_again();
        let again_ns = self.again_ns();
        self.operator_later(again_ns, Event::Order);
    }

    fn end_hung(&mut self) {
        for agent in 0..self.agents.len() {
            if self.stage.engine.is_hung(self.agents[agent].process) {
                self.crash(self.agents[agent].process);
            }
        }
    }

    fn nobody(&mut self) {
        let somebody = (0..self.agents.len()).any(|agent| self.lives(agent));
        match self.operator.part {
            // It comes.
            _ if somebody => self.undone("nobody has come yet".into()),
            Part::Work(_) | Part::Last => self.restart(1),
            _ => self.undone("nobody is there".into()),
        }
    }

    fn completed(&mut self, kind: Kind) {
        match self.operator.part {
            Part::Work(left) => {
                self.operator.part = Part::Work(left.saturating_sub(1));
                let pause_ns = self.random.below(PAUSE_NS);
                self.operator_later(pause_ns, Event::Order);
            }
            Part::Last => {
                let lives = (0..self.agents.len()).find(|agent| self.lives(*agent));
                if let Some(agent) = lives.filter(|_| kind == Kind::Final) {
                    let what = format!("agent{} lives after a final checkpoint", agent + 1);
                    self.violation(RESUMED, what);
                }
                self.restart(1);
            }
            Part::Restart(_) => self.runs(),
            Part::Rest | Part::Running(_) | Part::Over => {}
        }
    }

    /// Nothing goes wrong any more.
    fn rest_begins(&mut self) {
        self.operator.part = Part::Rest;
        self.operator.tries = 0;
        self.faults_off = true;
        self.disk.make_room();
        self.end_hung();
        self.look_after_coordinator();
        let late_ns = self
            .late_until_ns
            .saturating_sub(self.stage.engine.now_ns());
        let rest_ns = match self.stage.tally.faults {
            0 => PAUSE_NS,
            _ => late_ns.saturating_add(REST_NS),
        };
        self.operator_later(rest_ns, Event::Rested);
    }

    /// Whoever lives runs. Then there is a last checkpoint.
    pub fn rested(&mut self) {
        let stopped = self.agents.iter();
        let mut stopped = stopped.enumerate().filter(|(_, agent)| !agent.is_running);
        let stopped = stopped.find(|(agent, _)| self.lives(*agent));
        if let Some((agent, _)) = stopped {
            let what = format!("agent{} is stopped, and no round is under way", agent + 1);
            self.violation(RESUMED, what);
        }
        self.operator.part = Part::Last;
        self.order();
    }

    /// All is killed, and comes back as it was in the last complete checkpoint.
    fn restart(&mut self, attempt: u32) {
        self.operator.part = Part::Restart(attempt);
        self.operator.order = None;
        self.operator.tries = 0;
        // At first, things go wrong in a restart, too.
        self.faults_off = attempt > 1;
        self.disk.make_room();
        for agent in 0..self.agents.len() {
            self.crash(self.agents[agent].process);
        }
        self.crash(self.coordinator);
        let Some(round) = self.last_checkpoint() else {
            self.operator.part = Part::Over;
            return;
        };
        let programs = match self.load(round) {
            Ok(programs) => programs,
            Err(what) => {
                self.operator.part = Part::Over;
                return self.violation(RESTARTS, format!("round {round}: {what}"));
            }
        };
        self.generation += 1;
        self.roster = programs.keys().map(usize::to_string).collect();
        self.restarted = programs.keys().copied().collect();
        for (agent, program) in programs {
            let process = self.agents[agent].process;
            self.stage.engine.restart(process);
            self.agents[agent] = Agent::restored(process, program);
            self.start_agent(agent);
        }
        // The connection to the coordinator before this one is of no interest.
        let operator = self.operator_peer();
        let process = self.peers[operator].process;
        let idle = Machine::new(config(Role::Control), self.stage.engine.now_ns());
        self.peers[operator] = Peer::new(idle, process);
        self.operator_later(0, Event::OperatorConnects);
    }

    /// The restart is complete.
    fn runs(&mut self) {
        let lost = self.restarted.iter().find(|agent| !self.lives(**agent));
        match (lost, self.operator.part) {
            (Some(_), Part::Restart(1)) => self.restart(2),
            (Some(agent), _) => {
                let what = format!("agent{} is gone", agent + 1);
                self.operator.part = Part::Over;
                self.violation(RESTARTS, what);
            }
            (None, _) => {
                self.faults_off = true;
                self.operator.part = Part::Running(LOOKS);
                self.operator_later(LOOK_NS, Event::Look);
            }
        }
    }

    /// Whether restarted programs have done all that they had to do.
    pub fn look(&mut self) {
        let Part::Running(left) = self.operator.part else {
            return;
        };
        if let Some(agent) = self.restarted.iter().find(|agent| !self.lives(**agent)) {
            // What went wrong at the end of the restart shows now.
            if self.generation == 1 {
                return self.restart(2);
            }
            let what = format!("agent{} is gone", agent + 1);
            self.operator.part = Part::Over;
            return self.violation(RESTARTS, what);
        }
        if self.restarted.iter().all(|agent| self.has_ended(*agent)) {
            self.operator.part = Part::Over;
        } else if left == 0 && self.generation == 1 {
            // Something is late there, by hours perhaps.
            self.restart(2);
        } else if left == 0 {
            self.stuck = Some("restarted programs do not come to their end".into());
        } else {
            self.operator.part = Part::Running(left - 1);
            self.operator_later(LOOK_NS, Event::Look);
        }
    }

    fn has_ended(&self, agent: usize) -> bool {
        let of = &self.agents[agent];
        let mut ends = of.program.ends.iter();
        of.is_running
            && ends.all(|end| {
                let peer = self.work.connections[end.connection][1 - end.side];
                let runs = self.work.runs;
                !self.restarted.contains(&peer) || (end.sent, end.read) == (runs, runs)
            })
    }
}
