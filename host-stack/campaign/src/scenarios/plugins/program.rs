//! A program that sends numbered messages to its neighbour, and the plugin that saves what is on its way.

use std::collections::VecDeque;

use snaprig_ckpt_plugin::{
    message::{Answer, Descriptor, Entry, Question, Registered, ToPlugin, ToSupervisor, VERSION},
    phase::{Phase, Phases, Span},
};
use snaprig_coord::plugins::faults;
use snaprig_sim::ProcessId;

use super::{
    invariants::{BEFORE_GO, TOGETHER},
    run::{Event, PATIENCE_MS, World},
};
use crate::{
    scenario::invariant::MESSAGES,
    stage::{Effect, System as _},
};

/// A program sends about once in so long.
const STEP_NS: u64 = 60_000;
/// A plugin that waits for messages asks so often whether the round is still one.
const ASK_NS: u64 = 200_000;
/// Lanes: of messages on the ring, and of plugins to their supervisors.
const RING: u64 = 1 << 32;
const UP: u64 = 2 << 32;

/// What a program has seen: what is saved of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Messages that it has sent.
    pub sent: u64,
    /// Messages that it has received.
    pub received: u64,
}

/// A program.
#[derive(Debug)]
pub struct Program {
    pub process: ProcessId,
    pub tree: usize,
    pub seen: Seen,
    /// Its plugin keeps it from sending.
    pub is_quiet: bool,
    /// What it has put into the checkpoint.
    pub saved: Option<Seen>,
    /// Of that, something is to be finished while it runs on.
    pub is_unfinished: bool,
    /// The last phase that its plugin has passed, and in which round.
    passed: Option<(u64, Phase)>,
    /// When it has ended, if it has.
    pub ended_ns: Option<u64>,
    /// In a restart: its plugin has refilled.
    pub has_refilled: bool,
    /// Its supervisor is gone.
    is_alone: bool,
    /// What its plugin is doing, and how far it is.
    doing: Option<(Task, Stage)>,
    /// Its plugin is slow to begin: what it is told meanwhile it hears when it has begun.
    unheard: Option<VecDeque<(u64, ToPlugin)>>,
}

/// A phase that a plugin is told to do, in a round of the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task {
    round: u64,
    serial: u64,
    phase: Phase,
    span: Span,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Publishing,
    /// Is its neighbour in the round?
    Collecting,
    LookingUp,
    /// So many messages must have come; meanwhile it may have asked whether the round is still one.
    Awaiting(u64, bool),
}

impl Program {
    pub fn new(process: ProcessId, tree: usize) -> Self {
        Self {
            process,
            tree,
            seen: Seen::default(),
            is_quiet: false,
            saved: None,
            is_unfinished: false,
            passed: None,
            ended_ns: None,
            has_refilled: false,
            is_alone: false,
            doing: None,
            unheard: None,
        }
    }

    /// A process that is restarted from what was saved.
    pub fn again(&mut self, seen: Seen) {
        *self = Self {
            seen,
            is_quiet: true,
            ..Self::new(self.process, self.tree)
        };
    }
}

impl World {
    fn behind(&self, program: usize) -> usize {
        (program + self.programs.len() - 1) % self.programs.len()
    }

    pub fn step_later(&mut self, program: usize) {
        let process = self.programs[program].process;
        self.stage
            .engine
            .after(process, STEP_NS, Event::Step(program));
    }

    /// The program's own code runs.
    pub fn step(&mut self, program: usize) {
        if self.programs[program].is_quiet {
            return;
        }
        let process = self.programs[program].process;
        if self.is_restarting && self.programs.iter().any(|one| !one.has_refilled) {
            self.stage
                .violation(process, BEFORE_GO, format!("program{} runs", program + 1));
        }
        if self.programs[program].seen.sent == u64::from(self.parameters.messages) {
            return;
        }
        let number = self.programs[program].seen.sent;
        self.programs[program].seen.sent += 1;
        let to = (program + 1) % self.programs.len();
        let to_process = self.programs[to].process;
        let lane = self.lane(RING, program);
        let data = Event::Data(to, self.generation, number);
        self.stage.engine.send(process, to_process, lane, data);
        self.step_later(program);
    }

    /// A message arrives; unless its sender has ended, which takes with it what was on its way.
    pub fn data(&mut self, program: usize, generation: u64, number: u64) {
        let sender = &self.programs[self.behind(program)];
        if generation != self.generation || sender.ended_ns.is_some() {
            return;
        }
        let of = &mut self.programs[program];
        let (process, expected) = (of.process, of.seen.received);
        of.seen.received += 1;
        if number != expected {
            let what = format!("program{}: message {number}, not {expected}", program + 1);
            self.stage.violation(process, MESSAGES, what);
        }
        self.check_drained(program);
    }

    pub fn introduce(&mut self, program: usize) {
        let plugin = Registered {
            name: "ring".into(),
            order: 0,
            patience_ms: PATIENCE_MS,
            phases: Phases::ALL,
            follows_moves: false,
            passed: None,
        };
        let descriptor = Descriptor {
            fd: 500,
            device: 1,
            inode: program as u64,
        };
        let hello = ToSupervisor::Hello {
            version: VERSION,
            descriptor,
            plugin,
        };
        self.say(program, hello);
    }

    /// A plugin's message to its supervisor.
    fn say(&mut self, program: usize, message: ToSupervisor) {
        let (from, tree) = (self.programs[program].process, self.programs[program].tree);
        let late_ns = match self.fault(from, &faults::MESSAGE) {
            Effect::Ended => return,
            Effect::Late(by_ns) => by_ns,
            _ => 0,
        };
        let to = self.trees[tree].process;
        let event = Event::Up(program, message);
        let lane = self.lane(UP, program);
        self.stage.engine.send_late(from, to, lane, late_ns, event);
    }

    /// A supervisor's message to a plugin, in a round of the job.
    pub fn hears(&mut self, program: usize, round: u64, message: ToPlugin) {
        if let Some(unheard) = &mut self.programs[program].unheard {
            return unheard.push_back((round, message));
        }
        match message {
            ToPlugin::Do {
                serial,
                phase,
                span,
                ..
            } => {
                let task = Task {
                    round,
                    serial,
                    phase,
                    span,
                };
                self.begins(program, task);
            }
            ToPlugin::Restarted { .. } => self.introduce(program),
            ToPlugin::Answer(answer) => self.told(program, answer),
        }
    }

    fn begins(&mut self, program: usize, task: Task) {
        let Task { serial, phase, .. } = task;
        let process = self.programs[program].process;
        match self.fault(process, &faults::PHASE) {
            Effect::Ended => {}
            Effect::Late(by_ns) => {
                self.programs[program].unheard = Some(VecDeque::new());
                let late = Event::Does(program, task);
                self.stage.engine.after(process, by_ns, late);
            }
            Effect::Error(errno) if phase.may_fail() => {
                let done = ToSupervisor::Done {
                    serial,
                    refusal: Some(format!("errno {errno}")),
                    finishes_later: false,
                    published: Vec::new(),
                };
                self.say(program, done);
            }
            // What it was to finish it does not, and resumes.
            Effect::Error(errno) if self.programs[program].is_unfinished => {
                self.programs[program].doing = Some((task, Stage::Publishing));
                self.runs_on(program);
                self.done(program, Some(format!("errno {errno}")));
            }
            _ => self.does(program, task),
        }
    }

    /// A plugin that was slow to begin has begun.
    pub fn does_late(&mut self, program: usize, task: Task) {
        let unheard = self.programs[program].unheard.take();
        self.does(program, task);
        for (round, message) in unheard.unwrap_or_default() {
            self.hears(program, round, message);
        }
    }

    fn does(&mut self, program: usize, task: Task) {
        let Task { phase, .. } = task;
        let of = &mut self.programs[program];
        if of.is_alone {
            // It ends what it was told to do, finds that nobody waits for it, and resumes.
            return;
        }
        of.doing = Some((task, Stage::Publishing));
        self.check_phase(program, task);
        let of = &mut self.programs[program];
        let (seen, generation) = (of.seen, self.generation);
        match phase {
            Phase::Quiesce => {
                of.is_quiet = true;
                let is_here = vec![(roster(program), Vec::new())];
                return self.leave(program, is_here);
            }
            Phase::Drain => return self.publish(program, seen.sent),
            Phase::Save => {
                of.saved = Some(seen);
                // Every other one.
                of.is_unfinished = task.span >= Span::SaveToResume && program.is_multiple_of(2);
            }
            Phase::Rebuild => {
                let published = vec![(key(program), generation.to_le_bytes().to_vec())];
                return self.leave(program, published);
            }
            Phase::Exchange => {
                of.doing = Some((task, Stage::LookingUp));
                return self.look_up(program);
            }
            Phase::Refill => of.has_refilled = true,
            Phase::Resume | Phase::Go => {
                of.is_unfinished = false;
                self.runs_on(program);
            }
        }
        self.done(program, None);
    }

    fn runs_on(&mut self, program: usize) {
        self.programs[program].is_quiet = false;
        self.step_later(program);
    }

    /// Whether everybody has passed the phase before this one.
    fn check_phase(&mut self, program: usize, task: Task) {
        let Task { round, phase, .. } = task;
        let before = match phase {
            Phase::Drain => Phase::Quiesce,
            Phase::Save => Phase::Drain,
            Phase::Exchange => Phase::Rebuild,
            Phase::Refill => Phase::Exchange,
            _ => return,
        };
        let is_behind = |one: &Self, other: usize| {
            let of = &one.programs[other];
            one.stage.engine.is_alive(of.process) && of.passed < Some((round, before))
        };
        let mut others = 0..self.programs.len();
        if let Some(other) = others.find(|other| is_behind(self, *other)) {
            let (own, phase) = (program + 1, phase.name());
            let what = format!(
                "program{own} does {phase} before program{} is there",
                other + 1
            );
            let process = self.programs[program].process;
            self.stage.violation(process, TOGETHER, what);
        }
    }

    fn publish(&mut self, program: usize, value: u64) {
        let entry = (key(program), value.to_le_bytes().to_vec());
        self.say(program, ToSupervisor::Ask(Question::Publish(vec![entry])));
    }

    fn look_up(&mut self, program: usize) {
        let behind = key(self.behind(program));
        self.say(program, ToSupervisor::Ask(Question::Lookup(vec![behind])));
    }

    fn collect(&mut self, program: usize) {
        let (prefix, after) = (ROSTER.to_vec(), Vec::new());
        self.say(
            program,
            ToSupervisor::Ask(Question::Collect { prefix, after }),
        );
    }

    /// A plugin that waits for messages asks whether the round is still one.
    pub fn asks(&mut self, program: usize, task: Task) {
        if let Some((its, Stage::Awaiting(count, false))) = self.programs[program].doing
            && its == task
        {
            self.programs[program].doing = Some((task, Stage::Awaiting(count, true)));
            self.collect(program);
        }
    }

    fn awaits(&mut self, program: usize, task: Task, count: u64) {
        let process = self.programs[program].process;
        self.programs[program].doing = Some((task, Stage::Awaiting(count, false)));
        let asks = Event::Asks(program, task);
        self.stage.engine.after(process, ASK_NS, asks);
        self.check_drained(program);
    }

    /// Whether a plugin waits for something of its neighbour in a checkpoint.
    pub fn waits_for_neighbour(&self, program: usize) -> bool {
        let of = &self.programs[program];
        let waits = matches!(of.doing, Some((_, Stage::LookingUp | Stage::Awaiting(..))));
        waits && self.stage.engine.is_alive(of.process)
    }

    /// A plugin's question has an answer.
    fn told(&mut self, program: usize, answer: Result<Answer, String>) {
        let Some((task, stage)) = self.programs[program].doing else {
            return;
        };
        let behind = roster(self.behind(program));
        let mut is_there = false;
        let value = match answer {
            Err(why) => return self.done(program, Some(why)),
            Ok(Answer::Entries { entries, .. }) => {
                is_there = entries.iter().any(|(key, _)| *key == behind);
                None
            }
            Ok(Answer::Values(values)) => {
                let value = values.first().and_then(|value| value[..].try_into().ok());
                value.map(u64::from_le_bytes)
            }
            Ok(_) => None,
        };
        match (task.phase, stage, value) {
            (Phase::Drain, Stage::Publishing, _) => {
                self.programs[program].doing = Some((task, Stage::Collecting));
                self.collect(program);
            }
            (Phase::Drain, Stage::Collecting, _) if is_there => {
                self.programs[program].doing = Some((task, Stage::LookingUp));
                self.look_up(program);
            }
            (Phase::Drain, Stage::LookingUp, Some(count))
            | (Phase::Drain, Stage::Awaiting(count, true), _) => self.awaits(program, task, count),
            (Phase::Exchange, _, Some(generation)) if generation != self.generation => {
                self.done(program, Some("it is an earlier one".into()));
            }
            _ => self.done(program, None),
        }
    }

    /// Whether all has come that was on its way.
    fn check_drained(&mut self, program: usize) {
        let of = &self.programs[program];
        if let Some((_, Stage::Awaiting(count, false))) = of.doing
            && of.seen.received >= count
        {
            self.done(program, None);
        }
    }

    fn done(&mut self, program: usize, refusal: Option<String>) {
        self.end(program, refusal, Vec::new());
    }

    /// It is done, and publishes something with that.
    fn leave(&mut self, program: usize, published: Vec<Entry>) {
        self.end(program, None, published);
    }

    fn end(&mut self, program: usize, refusal: Option<String>, published: Vec<Entry>) {
        if let Some((task, _)) = self.programs[program].doing.take() {
            let Task {
                round,
                serial,
                phase,
                ..
            } = task;
            if refusal.is_none() {
                self.programs[program].passed = Some((round, phase));
            }
            let finishes_later = phase == Phase::Save && self.programs[program].is_unfinished;
            let done = ToSupervisor::Done {
                serial,
                refusal,
                finishes_later,
                published,
            };
            self.say(program, done);
        }
    }

    /// The supervisor is gone: the plugin resumes by itself.
    pub fn is_left(&mut self, program: usize) {
        let of = &mut self.programs[program];
        (of.doing, of.is_alone) = (None, true);
        if of.is_quiet && !self.is_restarting {
            of.is_quiet = false;
            self.step_later(program);
        }
    }
}

/// What the keys begin with by which programs say that they are in a round.
const ROSTER: &[u8] = b"in/";

fn roster(program: usize) -> Vec<u8> {
    [ROSTER, &key(program)].concat()
}

fn key(program: usize) -> Vec<u8> {
    format!("program{program}").into_bytes()
}
