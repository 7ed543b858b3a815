//! An agent: it takes its program through the phases of rounds, and starts it again from an image.
//!
//! Look: all say which ends they have, and a barrier is the end of it. Programs run.
//!
//! Drain, for each connection whose other end lives: both ends publish how much they have sent, and
//! each waits until it has received as much as its peer has sent. A barrier is the end of it.

use snaprig_coord::{
    faults,
    member::{Event as Told, Input},
    message::{Answer, Call, CallError, Outcome},
    phase::{Kind, Phase},
};
use snaprig_sim::ProcessId;
use snaprig_wire::frame;

use super::invariants::{HALF, RESUMED};
use super::{
    cut::report,
    keeper::{folder, manifest_of},
    program::{End, Program},
    run::{Event, World},
};
use crate::{
    scenarios::coord::Canary,
    stage::{Effect, System as _},
};

/// How long a lookup or a barrier may take: less than a phase.
const PATIENCE_MS: u32 = 1500;

/// An agent, and its program.
#[derive(Debug)]
pub struct Agent {
    pub process: ProcessId,
    pub program: Program,
    pub is_running: bool,
    /// Its next step is to come.
    pub is_stepping: bool,
    /// Restored, and has not run yet.
    pub is_restoring: bool,
    /// When it was first taken in.
    pub joined_ns: Option<u64>,
    /// Since when it has been kept from the coordinator, if it is.
    pub apart_ns: Option<u64>,
    /// The round that it is in.
    round: Option<(u64, Kind)>,
    doing: Doing,
    /// What the image will hold, if that is fixed.
    frozen: Option<Vec<u8>>,
}

/// What it waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Doing {
    Nothing,
    /// Its call to publish; then it looks up peers' ends.
    Publishing(u64),
    /// Its lookup.
    LookingUp(u64),
    /// So much is to come at these of its ends.
    Receiving(Vec<(usize, u64)>),
    /// Its barrier.
    Waiting(u64),
}

impl Agent {
    pub fn new(process: ProcessId, program: Program) -> Self {
        Self {
            process,
            program,
            is_running: true,
            is_stepping: false,
            is_restoring: false,
            joined_ns: None,
            apart_ns: None,
            round: None,
            doing: Doing::Nothing,
            frozen: None,
        }
    }

    /// From an image.
    pub fn restored(process: ProcessId, program: Program) -> Self {
        Self {
            is_running: false,
            is_restoring: true,
            ..Self::new(process, program)
        }
    }
}

impl World {
    /// Whether an agent and its program are there.
    pub fn lives(&self, agent: usize) -> bool {
        self.stage.engine.is_alive(self.agents[agent].process)
    }

    /// What the coordinator, or the agent's own machine, has told it.
    pub fn agent_told(&mut self, agent: usize, event: Told) {
        let now = self.stage.engine.now_ns();
        match event {
            Told::Joined => {
                self.agents[agent].joined_ns.get_or_insert(now);
                self.agents[agent].apart_ns = None;
            }
            Told::Apart { .. } => {
                self.agents[agent].apart_ns.get_or_insert(now);
            }
            Told::Refused(_) => {}
            Told::Begin {
                round,
                phase,
                order,
            } => {
                self.agents[agent].round = Some((round, order.kind));
                self.phase_begins(agent, round, phase);
            }
            Told::Undo {
                round, in_doubt, ..
            } => self.undo(agent, round, in_doubt),
            Told::Finished { outcome, round } => {
                let is_running = self.agents[agent].is_running;
                if matches!(outcome, Outcome::Undone { .. }) && !is_running {
                    let what = format!("agent{} is stopped after round {round}", agent + 1);
                    self.violation(RESUMED, what);
                }
                self.agents[agent].frozen = None;
            }
        }
    }

    fn phase_begins(&mut self, agent: usize, round: u64, phase: Phase) {
        let process = self.agents[agent].process;
        let late_ns = match self.fault(process, &faults::PHASE) {
            Effect::Ended => return,
            Effect::Error(errno) => {
                let result = Err(format!("{}: errno {errno}", phase.name()));
                self.done(agent, round, phase, result);
                // A program that cannot be made to run, or to end, is lost.
                if matches!(phase, Phase::Resume | Phase::End | Phase::Go) && self.lives(agent) {
                    self.crash(process);
                }
                return;
            }
            Effect::Late(by_ns) => {
                self.peer_handles(agent, Input::GetsOn { round, phase });
                by_ns
            }
            _ => 0,
        };
        let event = Event::Phase(agent, round, phase);
        self.stage.engine.after(process, late_ns, event);
    }

    fn done(&mut self, agent: usize, round: u64, phase: Phase, result: Result<String, String>) {
        let input = Input::Done {
            round,
            phase,
            result,
        };
        self.peer_handles(agent, input);
    }

    /// An agent does a phase; unless that has been undone.
    pub fn phase(&mut self, agent: usize, round: u64, phase: Phase) {
        // The coordinator may be lost after it was decided: then that is finished alone.
        let current = self.peers[agent].machine.round();
        let goes_on = matches!(phase, Phase::Resume | Phase::End | Phase::Go);
        let is_now = current == Some((round, phase));
        let is_alone = goes_on && current.is_none() && !self.agents[agent].is_running;
        if !is_now && !is_alone {
            return;
        }
        let said = match phase {
            Phase::Stop => {
                self.agents[agent].is_running = false;
                String::new()
            }
            Phase::Look | Phase::Drain | Phase::Connect => {
                return self.publish(agent, round, phase);
            }
            Phase::Freeze => {
                let image = frame::encode(&self.agents[agent].program);
                self.agents[agent].frozen = Some(image);
                String::new()
            }
            Phase::Write => {
                let result = self.write_image(agent, round);
                if self.lives(agent) {
                    self.done(agent, round, phase, result);
                }
                return;
            }
            Phase::Resume | Phase::Go => {
                self.run_on(agent);
                String::new()
            }
            Phase::Refill => {
                if self.canary == Some(Canary::DoubledRefill) {
                    for end in &mut self.agents[agent].program.ends {
                        end.queue.extend(end.queue.clone());
                    }
                }
                String::new()
            }
            Phase::End => {
                self.done(agent, round, phase, Ok(String::new()));
                return self.exit(agent);
            }
            Phase::Undo => return,
        };
        self.done(agent, round, phase, Ok(said));
    }

    /// The program runs, and reads what came meanwhile.
    fn run_on(&mut self, agent: usize) {
        let of = &mut self.agents[agent];
        of.is_running = true;
        of.is_restoring = false;
        self.program_reads(agent);
        self.step_later(agent);
    }

    /// The agent ends, and its program with it.
    fn exit(&mut self, agent: usize) {
        if self.lives(agent) {
            self.peer_handles(agent, Input::Leave);
            self.crash(self.agents[agent].process);
        }
    }

    fn undo(&mut self, agent: usize, round: u64, in_doubt: bool) {
        if self.canary == Some(Canary::DeafAgent) {
            return self.done(agent, round, Phase::Undo, Ok(String::new()));
        }
        let of = &mut self.agents[agent];
        of.doing = Doing::Nothing;
        of.frozen = None;
        let kind = of.round.map(|(_, kind)| kind);
        if of.is_restoring {
            return self.exit(agent);
        }
        let is_there = self.disk.read(&manifest_of(round)).is_some();
        if in_doubt && is_there && kind == Some(Kind::Final) {
            return self.exit(agent);
        }
        if !in_doubt || self.canary == Some(Canary::DoubtfulRemoval) {
            let image = format!("{}{agent}", folder(round));
            self.disk.remove(&image);
            if is_there {
                let what = format!("{image} is removed, and its manifest is there");
                self.violation(HALF, what);
            }
        }
        self.run_on(agent);
        self.done(agent, round, Phase::Undo, Ok(String::new()));
    }

    fn write_image(&mut self, agent: usize, round: u64) -> Result<String, String> {
        let process = self.agents[agent].process;
        let frozen = self.agents[agent].frozen.take();
        let image = frozen.unwrap_or_else(|| frame::encode(&self.agents[agent].program));
        let mut most = image.len();
        match self.fault(process, &faults::IMAGE) {
            Effect::Error(errno) => return Err(format!("errno {errno}")),
            Effect::Torn(bytes) => most = bytes as usize % image.len().max(1),
            _ => {}
        }
        let errno = |errno: i32| format!("errno {errno}");
        let name = format!("{}{agent}", folder(round));
        self.disk.create(&name).map_err(errno)?;
        self.disk.append(&name, &image, most).map_err(errno)?;
        if most < image.len() {
            return Err("the image is torn".into());
        }
        self.disk.sync(&name).map_err(errno)?;
        Ok(report(&image))
    }

    /// Its ends whose peers live, by index: of the others, the kernel says that they are closed.
    fn open_ends(&self, agent: usize) -> Vec<usize> {
        let ends = self.agents[agent].program.ends.iter().enumerate();
        let is_open = |end: &End| {
            let peer = self.work.connections[end.connection][1 - end.side];
            self.lives(peer) || self.stage.engine.is_hung(self.agents[peer].process)
        };
        let open = ends.filter(|(_, end)| is_open(end));
        open.map(|(index, _)| index).collect()
    }

    fn publish(&mut self, agent: usize, round: u64, phase: Phase) {
        let ends = &self.agents[agent].program.ends;
        let entry = |end: &End| {
            let key = End::key(end.connection, end.side);
            // When connections are made anew, an address; else what there is to come.
            let (key, number) = match phase {
                Phase::Look => ([b"seen: ".to_vec(), key].concat(), 0),
                Phase::Connect => (key, agent as u64),
                _ => (key, end.sent),
            };
            (key, number.to_le_bytes().to_vec())
        };
        let entries = ends.iter().map(entry).collect();
        let id = self.agent_calls(agent, Call::Publish { round, entries });
        self.agents[agent].doing = Doing::Publishing(id);
        self.make_call(agent);
    }

    /// The number of a call that [`Self::make_call`] makes.
    fn agent_calls(&mut self, agent: usize, call: Call) -> u64 {
        let peer = &mut self.peers[agent];
        peer.last_call += 1;
        self.next_call = Some((peer.last_call, call));
        peer.last_call
    }

    /// Its answer may come at once.
    fn make_call(&mut self, agent: usize) {
        if let Some((id, call)) = self.next_call.take() {
            self.peer_handles(agent, Input::Call { id, call });
        }
    }

    /// A call of an agent's has ended.
    pub fn agent_answered(&mut self, agent: usize, id: u64, result: Result<Answer, CallError>) {
        let doing = self.agents[agent].doing.clone();
        let Some((round, phase)) = self.peers[agent].machine.round() else {
            return;
        };
        let result = match (result, &doing) {
            (Ok(result), _) => result,
            // The round is undone: the agent hears of that, too.
            (Err(_), _) if phase == Phase::Undo => return,
            (Err(error), _) => {
                self.agents[agent].doing = Doing::Nothing;
                return self.done(agent, round, phase, Err(error.to_string()));
            }
        };
        match (doing, result) {
            (Doing::Publishing(due), _) if due == id && phase == Phase::Look => {
                self.meet(agent, round, phase);
            }
            (Doing::Publishing(due), _) if due == id => {
                let ends = self.open_ends(agent);
                let ends = ends
                    .into_iter()
                    .map(|at| &self.agents[agent].program.ends[at]);
                let keys = ends.map(|end| End::key(end.connection, 1 - end.side));
                let call = Call::Lookup {
                    round,
                    keys: keys.collect(),
                    patience_ms: PATIENCE_MS,
                };
                let id = self.agent_calls(agent, call);
                self.agents[agent].doing = Doing::LookingUp(id);
                self.make_call(agent);
            }
            (Doing::LookingUp(due), Answer::Values(values)) if due == id => {
                let number = |value: &Vec<u8>| {
                    let bytes = value.first_chunk().copied();
                    u64::from_le_bytes(bytes.unwrap_or_default())
                };
                // An end whose peer has died since: the round fails anyhow.
                let ends = self.open_ends(agent).into_iter();
                let due = ends.zip(values.iter().map(number)).collect();
                self.agents[agent].doing = match phase {
                    Phase::Connect => Doing::Receiving(Vec::new()),
                    _ => Doing::Receiving(due),
                };
                self.received(agent);
            }
            (Doing::Waiting(due), _) if due == id => {
                self.agents[agent].doing = Doing::Nothing;
                self.done(agent, round, phase, Ok(String::new()));
            }
            _ => {}
        }
    }

    /// Something came, or is being waited for.
    pub fn received(&mut self, agent: usize) {
        let of = &self.agents[agent];
        let Doing::Receiving(due) = &of.doing else {
            return;
        };
        let has_come = |(at, sent): &(usize, u64)| of.program.ends[*at].came() >= *sent;
        if self.canary != Some(Canary::UncountedBytes) && !due.iter().all(has_come) {
            return;
        }
        let Some((round, phase)) = self.peers[agent].machine.round() else {
            return;
        };
        self.meet(agent, round, phase);
    }

    /// Waits for all others.
    fn meet(&mut self, agent: usize, round: u64, phase: Phase) {
        let call = Call::Barrier {
            round,
            name: phase.name().into(),
            patience_ms: PATIENCE_MS,
        };
        let id = self.agent_calls(agent, call);
        self.agents[agent].doing = Doing::Waiting(id);
        self.make_call(agent);
    }
}
