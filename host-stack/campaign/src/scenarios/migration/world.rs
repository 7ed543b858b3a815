//! The system: two supervisors, their trees and disks, and an operator who starts again whatever has died.

use std::hash::{Hash, Hasher};

use snaprig_coord::migration::{
    Id, Source, Target, WriteError, faults,
    message::{ToSource, ToTarget},
    source, target,
};
use snaprig_peers::Token;
use snaprig_sim::{Disk, Plan, ProcessId, Random, engine::Lane};
use xxhash_rust::xxh3::Xxh3;

use super::{
    Canary, Ended, Parameters,
    invariants::{NEVER_TWO, UNDISTURBED},
    net::Net,
    program::{Program, Tree},
};
use crate::{
    scenario::{Outcome, Watch},
    stage::{Effect, Stage, System},
};

/// One of the two sides.
pub type Side = usize;
pub const SOURCE: Side = 0;
pub const TARGET: Side = 1;

/// Longest time of a program's step.
const STEP_NS: u64 = 200_000;
/// An order comes before this, and so long after the one before it.
const ORDER_NS: u64 = 2_000_000;
/// What has died, or hangs, is started again within this time: at first soon.
const START_NS: [u64; 2] = [1_000_000, 200_000_000_000];
/// A full disk has room again after so long.
const ROOM_NS: u64 = 60_000_000_000;
/// After so many faults none happens any more: a plan may have a side die at each of its steps.
const FAULTS_MAX: u64 = 200;

/// What both sides know.
pub fn token() -> Token {
    Token::new([7; 32])
}

/// What goes over a connection.
#[derive(Clone, Debug)]
pub enum Message {
    ToTarget(ToTarget),
    ToSource(ToSource),
    Image(Vec<u8>),
}

/// Something that happens to a process.
#[derive(Debug)]
pub enum Event {
    /// To a side: its machine wants to be woken.
    Tick(Side, u64),
    /// To the source: the connection is made, or cannot be.
    Dial(u64),
    Unreached(String),
    /// To the target: somebody has connected.
    Accepted(u64),
    Said(u64, Message),
    /// To a side: a connection has ended.
    Gone(Side, u64),
    /// To a side: it does what its machine has said.
    Source(source::Output),
    Target(target::Output),
    /// To the source: all pages have left, in this copy.
    Copied(u64),
    SourceWrote(Result<(), WriteError>),
    TargetWrote(target::Input),
    /// To the target: a tree is restored.
    Restored(Id, Result<(), String>),
    /// To a tree: it does a step, in this life of it.
    Step(Side, u64),
    /// To the operator.
    Order,
    Start(Side),
    Room,
}

/// The system.
pub struct World {
    pub stage: Stage<Event>,
    pub random: Random,
    pub processes: [ProcessId; 2],
    operator: ProcessId,
    pub disks: [Disk; 2],
    pub trees: [Option<Tree>; 2],
    /// Lives of trees.
    lives: u64,
    pub source: Option<Source>,
    pub target: Option<Target>,
    ticks: [Option<u64>; 2],
    pub net: Net,
    /// The copy that is under way.
    pub copying: u64,
    /// The image that the target waits for.
    pub receiving: Option<(u64, Id)>,
    /// One that came before the target had read that it comes.
    pub early_image: Option<Vec<u8>>,
    steps: u64,
    orders: u16,
    pub results: Vec<u64>,
    pub has_moved: bool,
    pub canary: Option<Canary>,
}

impl World {
    pub fn new(plan: &Plan, parameters: &Parameters, watch: Watch<Canary>) -> Self {
        let canary = watch.canary;
        let mut stage = Stage::new(plan, faults::ALL, watch);
        let processes = ["source", "target"].map(|name| stage.engine.process(name));
        let operator = stage.engine.process("operator");
        Self {
            stage,
            random: Random::new(plan.seed, "migration of a tree"),
            processes,
            operator,
            disks: Default::default(),
            trees: [None; 2],
            lives: 0,
            source: None,
            target: None,
            ticks: [None; 2],
            net: Net::default(),
            copying: 0,
            receiving: None,
            early_image: None,
            steps: parameters.steps.into(),
            orders: parameters.orders,
            results: Vec::new(),
            has_moved: false,
            canary,
        }
    }

    /// Runs to the end, or to where it is to be looked at.
    pub fn finish(mut self) -> Outcome<Ended> {
        let ending = self.play();
        let end = Ended {
            results: self.results,
            has_moved: self.has_moved,
        };
        self.stage.into_outcome(ending, Vec::new(), end)
    }

    fn violation(&mut self, side: Side, invariant: &'static str, what: impl Into<String>) {
        let process = self.processes[side];
        self.stage.violation(process, invariant, what);
    }

    /// A side does something, soon or late, after what it was told before; whether it lives to do it.
    pub fn do_later(&mut self, side: Side, event: Event) -> bool {
        let process = self.processes[side];
        let late_ns = match self.fault(process, &faults::STEP) {
            Effect::Ended => return false,
            Effect::Late(by_ns) => by_ns,
            _ => 0,
        };
        let (engine, lane) = (&mut self.stage.engine, side as Lane);
        engine.send_late(process, process, lane, late_ns, event);
        true
    }

    /// A side's machine wants to be woken then.
    pub fn wake(&mut self, side: Side, due: Option<u64>) {
        let tick = &mut self.ticks[side];
        if let Some(due) = due.filter(|due| tick.is_none_or(|tick| tick > *due)) {
            *tick = Some(due);
            let process = self.processes[side];
            self.stage.engine.at(process, due, Event::Tick(side, due));
        }
    }

    fn tick(&mut self, side: Side, due: u64) {
        if self.ticks[side] != Some(due) {
            return;
        }
        self.ticks[side] = None;
        match side {
            SOURCE => self.source_handles(source::Input::Tick),
            _ => self.target_handles(target::Input::Tick),
        }
    }

    /// A tree runs from here on.
    pub fn runs(&mut self, side: Side, program: Program) {
        let other = 1 - side;
        if self.trees[other].is_some_and(|tree| tree.is_running) {
            self.violation(side, NEVER_TWO, "it runs at both sides");
        }
        if !self.results.is_empty() {
            self.violation(side, NEVER_TWO, "it runs, and has ended already");
        }
        self.trees[side] = Some(Tree {
            program,
            is_running: true,
        });
        self.lives += 1;
        self.step_later(side);
    }

    fn step_later(&mut self, side: Side) {
        let by_ns = self.random.below(STEP_NS);
        let event = Event::Step(side, self.lives);
        self.stage.engine.after(self.processes[side], by_ns, event);
    }

    fn step(&mut self, side: Side, life: u64) {
        let is_there = life == self.lives && self.trees[side].is_some_and(|tree| tree.is_running);
        if !is_there || self.fault(self.processes[side], &faults::RUN) == Effect::Ended {
            return;
        }
        let Some(tree) = &mut self.trees[side] else {
            return;
        };
        tree.program.step();
        let Program { done, value } = tree.program;
        if done < self.steps {
            return self.step_later(side);
        }
        self.trees[side] = None;
        self.results.push(value);
        if value != Program::result(self.steps) {
            self.violation(side, UNDISTURBED, format!("it has computed {value:x}"));
        }
        if self.results.len() > 1 {
            self.violation(side, NEVER_TWO, "it has ended twice");
        }
    }

    /// The next order.
    pub fn order_later(&mut self) {
        if self.orders > 0 {
            self.orders -= 1;
            let by_ns = self.random.below(ORDER_NS);
            self.stage.engine.after(self.operator, by_ns, Event::Order);
        }
    }

    /// A side that died, or hangs, is started again.
    fn start_later(&mut self, side: Side) {
        let most_ns = START_NS[self.random.below(2) as usize];
        let by_ns = self.random.below(most_ns);
        let event = Event::Start(side);
        self.stage.engine.after(self.operator, by_ns, event);
    }

    fn start_side(&mut self, side: Side) {
        let process = self.processes[side];
        if self.stage.engine.is_hung(process) {
            self.lose(side);
        } else if self.stage.engine.is_alive(process) {
            return;
        }
        self.stage.engine.restart(process);
        match side {
            // A program that has come to its end is not started again, but the other side may ask for it.
            SOURCE if !self.results.is_empty() && self.record().is_none() => {}
            SOURCE => self.start_source(),
            _ => self.start_target(),
        }
    }

    /// What a side's process had is gone; and if its machine went down, what was not synced.
    fn lose(&mut self, side: Side) {
        self.stage.engine.crash(self.processes[side]);
        if self.random.one_in(2) {
            self.disks[side].crash();
        }
        self.trees[side] = None;
        self.ticks[side] = None;
        match side {
            SOURCE => self.source = None,
            _ => {
                self.target = None;
                self.receiving = None;
                self.early_image = None;
            }
        }
        self.lose_connections(side);
    }

    fn side_of(&self, process: ProcessId) -> Option<Side> {
        self.processes.iter().position(|one| *one == process)
    }
}

impl System for World {
    type Event = Event;

    #[inline]
    fn stage(&mut self) -> &mut Stage<Event> {
        &mut self.stage
    }

    #[inline]
    fn look(&self) -> &Stage<Event> {
        &self.stage
    }

    fn start(&mut self) {
        self.write_checkpoint(&Program::default());
        self.start_target();
        self.runs(SOURCE, Program::default());
        self.order_later();
    }

    #[inline]
    fn happen(&mut self, _: ProcessId, event: Event) {
        let stepped = match &event {
            Event::Source(_) => Some(SOURCE),
            Event::Target(_) => Some(TARGET),
            _ => None,
        };
        match event {
            Event::Tick(side, due) => self.tick(side, due),
            Event::Dial(wire) => self.dial(wire),
            Event::Unreached(why) => self.source_closed(why),
            Event::Accepted(wire) => self.accepted(wire),
            Event::Said(wire, said) => self.said(wire, said),
            Event::Gone(side, wire) => self.gone(side, wire),
            Event::Source(output) => self.source_does(output),
            Event::Target(output) => self.target_does(output),
            Event::Copied(copying) => self.copied(copying),
            Event::SourceWrote(result) => self.source_wrote(result),
            Event::TargetWrote(input) => self.target_wrote(input),
            Event::Restored(id, result) => self.restored(id, result),
            Event::Step(side, life) => self.step(side, life),
            Event::Order => self.order(),
            Event::Start(side) => self.start_side(side),
            Event::Room => self.disks.iter_mut().for_each(Disk::make_room),
        }
        if let Some(side) = stepped
            && self.stage.engine.is_alive(self.processes[side])
        {
            self.fault(self.processes[side], &faults::STEPPED);
        }
    }

    fn describe(&self) -> String {
        let now = self.stage.engine.now_ns();
        let names = ["source", "target"].into_iter().enumerate();
        let side = |(side, name): (usize, &str)| {
            let life = match self.stage.engine.is_alive(self.processes[side]) {
                true => "",
                false => " (not alive)",
            };
            let files = self.disks[side].names("").join(" ");
            format!("{name}{life}: {:?}; {files}\n", self.trees[side])
        };
        let sides: String = names.map(side).collect();
        let machines = format!("{:?}\n{:?}\n", self.source, self.target);
        format!("at {now} ns\n{sides}{machines}")
    }

    fn state(&self) -> u64 {
        let mut hash = Xxh3::new();
        if let Some(source) = &self.source {
            source.hash_state(&mut hash);
        }
        if let Some(target) = &self.target {
            target.hash_state(&mut hash);
        }
        for side in [SOURCE, TARGET] {
            let runs = self.trees[side].map(|tree| tree.is_running);
            let is_alive = self.stage.engine.is_alive(self.processes[side]);
            let files = self.disks[side].names("").len();
            (runs, is_alive, files).hash(&mut hash);
        }
        hash.finish()
    }

    /// The operator heals.
    fn heal(&mut self) -> bool {
        false
    }

    fn has_faults(&self) -> bool {
        self.stage.may_have_faults(FAULTS_MAX)
    }

    fn crash(&mut self, process: ProcessId) {
        if let Some(side) = self.side_of(process)
            && self.stage.engine.is_alive(process)
        {
            self.lose(side);
            self.start_later(side);
        }
    }

    fn hang(&mut self, process: ProcessId) {
        if let Some(side) = self.side_of(process)
            && self.stage.engine.is_alive(process)
        {
            self.stage.engine.hang(process);
            self.start_later(side);
        }
    }

    fn restart(&mut self, process: ProcessId) {
        if let Some(side) = self.side_of(process)
            && self.stage.engine.is_alive(process)
        {
            self.lose(side);
            let event = Event::Start(side);
            self.stage.engine.after(self.operator, 0, event);
        }
    }

    fn cut_link(&mut self, _: ProcessId) {
        self.break_all();
    }

    fn partition(&mut self, _: ProcessId) {
        self.lose_everything();
    }

    fn fill_disk(&mut self) {
        self.disks.iter_mut().for_each(Disk::fill);
        self.stage.engine.after(self.operator, ROOM_NS, Event::Room);
    }
}
