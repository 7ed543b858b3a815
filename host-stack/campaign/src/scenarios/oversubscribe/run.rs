//! One run of a plan: cards, programs, the arbiter, and an operator who starts again what has died.

use std::{
    collections::BTreeMap,
    hash::{Hash, Hasher},
};

use snaprig_sim::{Plan, ProcessId, Random};
use snaprig_snapify::oversubscribe::{faults, policy::RequestId};
use xxhash_rust::xxh3::Xxh3;

use super::{
    Canary, Ended, Parameters,
    arbiter::Arbiter,
    invariants::EVACUATED,
    program::{At, Program, Work},
};
use crate::{
    scenario::{Outcome, Watch},
    stage::{Stage, System},
};

/// Memory of a card, in units of a size that does not matter.
pub const MEMORY: u64 = 100;
/// Programs begin before this.
const BEGIN_NS: u64 = 200_000;
/// A card is said to be about to fail before this, and does so long after.
const WARNING_NS: u64 = 4_000_000;
const GRACE_NS: u64 = 2_000_000;
/// What has died is started again within this time.
const START_NS: u64 = 5_000_000;

/// Something that happens to a process.
#[derive(Clone, Debug)]
pub enum Event {
    /// To a program.
    Begin(usize),
    GoOn(usize),
    /// A run function returns that was sent at this place.
    Returned(usize, u64),
    Answer(usize, RequestId, bool),
    /// It has used what it was granted.
    Used(usize, RequestId),
    /// The arbiter of this life orders a swap, and the last swap ends.
    SwapOut(usize, u64),
    SwapIn(usize, usize, u64),
    SwapEnds(usize, u64, bool),
    /// To the arbiter.
    Ask(usize, RequestId, u64),
    Over(RequestId),
    Swapped(usize, u64, bool),
    Look,
    Tick(u64),
    /// To the operator.
    Warn(usize),
    Fail(usize, u64),
    StartCard(usize),
    StartArbiter,
}

/// A card.
#[derive(Debug)]
pub struct Card {
    pub process: ProcessId,
    pub is_failing: bool,
    life: u64,
}

/// The system.
pub struct World {
    pub stage: Stage<Event>,
    pub random: Random,
    pub runs: u16,
    failing: u16,
    pub cards: Vec<Card>,
    pub programs: Vec<Program>,
    pub arbiter: Arbiter,
    operator: ProcessId,
    pub canary: Option<Canary>,
    /// What was granted, and not used yet: cards and bytes.
    pub promised: BTreeMap<RequestId, (usize, u64)>,
    pub requests: RequestId,
    pub swaps: u64,
}

impl World {
    pub fn new(plan: &Plan, parameters: &Parameters, watch: Watch<Canary>) -> Self {
        let canary = watch.canary;
        let mut stage = Stage::new(plan, faults::ALL, watch);
        let mut random = Random::new(plan.seed, "oversubscribed cards");
        let engine = &mut stage.engine;
        let arbiter = Arbiter::new(engine.process("arbiter"), canary);
        let cards = (1..=parameters.cards).map(|number| Card {
            process: engine.process(&format!("card{number}")),
            is_failing: false,
            life: 0,
        });
        let cards = cards.collect();
        let programs = (1..=parameters.programs).map(|number| {
            let process = engine.process(&format!("program{number}"));
            Program::new(process, &mut random)
        });
        let programs = programs.collect();
        let operator = engine.process("operator");
        Self {
            stage,
            random,
            runs: parameters.runs,
            failing: parameters.failing,
            cards,
            programs,
            arbiter,
            operator,
            canary,
            promised: BTreeMap::new(),
            requests: 0,
            swaps: 0,
        }
    }

    /// Runs to the end, or to where it is to be looked at.
    pub fn finish(mut self) -> Outcome<Ended> {
        let ending = self.play();
        let mut end = Ended {
            swaps: self.swaps,
            ..Ended::default()
        };
        for program in &self.programs {
            match program.work {
                Work::Finished => end.finished += 1,
                Work::Failed(why) => end.failed.push(why),
                _ => {}
            }
        }
        self.stage.into_outcome(ending, Vec::new(), end)
    }

    pub fn lives(&self, process: ProcessId) -> bool {
        self.stage.engine.is_alive(process)
    }

    /// Whether a card is there, whatever it does.
    pub fn is_there(&self, card: usize) -> bool {
        let process = self.cards[card].process;
        self.lives(process) || self.stage.engine.is_hung(process)
    }

    /// Memory of a card that is taken.
    pub fn used(&self, card: usize) -> u64 {
        let here = self
            .programs
            .iter()
            .filter(|one| one.at.card() == Some(card));
        here.map(Program::bytes).sum()
    }

    /// Something may be different: the arbiter looks.
    pub fn look_later(&mut self) {
        let arbiter = self.arbiter.process;
        self.stage.engine.after(arbiter, 0, Event::Look);
    }

    fn warn(&mut self, card: usize) {
        if self.lives(self.cards[card].process) {
            self.cards[card].is_failing = true;
            self.look_later();
            let fail = Event::Fail(card, self.cards[card].life);
            self.stage.engine.after(self.operator, GRACE_NS, fail);
        }
    }

    fn fail(&mut self, card: usize, life: u64) {
        let process = self.cards[card].process;
        if self.cards[card].life != life || !self.is_there(card) {
            return;
        }
        let left = self
            .programs
            .iter()
            .position(|one| one.at.card() == Some(card));
        if let Some(left) = left.filter(|_| self.stage.tally.faults == 0) {
            let what = format!("program{}: {:?}", left + 1, self.programs[left]);
            self.stage.violation(process, EVACUATED, what);
        }
        self.crash(process);
    }

    /// A card is gone, with all that was on it.
    fn lose_card(&mut self, card: usize) {
        self.cards[card].life += 1;
        self.promised.retain(|_, (at, _)| *at != card);
        for number in 0..self.programs.len() {
            match self.programs[number].at {
                At::On(at) | At::Leaving(at) if at == card => {
                    self.give_up(number, "its card is gone");
                }
                At::Coming(at) if at == card => self.swap_ended(number, false),
                _ => {}
            }
        }
        self.look_later();
        self.start_later(Event::StartCard(card));
    }

    fn start_later(&mut self, event: Event) {
        let by_ns = self.random.below(START_NS);
        self.stage.engine.after(self.operator, by_ns, event);
    }

    fn start_card(&mut self, card: usize) {
        let process = self.cards[card].process;
        if !self.is_there(card) {
            self.stage.engine.restart(process);
            self.cards[card].is_failing = false;
            self.look_later();
        }
    }
}

impl System for World {
    type Event = Event;

    fn stage(&mut self) -> &mut Stage<Event> {
        &mut self.stage
    }

    fn look(&self) -> &Stage<Event> {
        &self.stage
    }

    fn start(&mut self) {
        for number in 0..self.programs.len() {
            let by_ns = self.random.below(BEGIN_NS);
            let process = self.programs[number].process;
            self.stage
                .engine
                .after(process, by_ns, Event::Begin(number));
        }
        for card in 0..usize::from(self.failing) {
            let by_ns = self.random.below(WARNING_NS);
            self.stage
                .engine
                .after(self.operator, by_ns, Event::Warn(card));
        }
    }

    fn happen(&mut self, _: ProcessId, event: Event) {
        match event {
            Event::Begin(number) => self.begin(number),
            Event::GoOn(number) => self.go_on(number),
            Event::Returned(number, place) => self.returned(number, place),
            Event::Answer(number, id, granted) => self.answered(number, id, granted),
            Event::Used(number, id) => self.used_up(number, id),
            Event::SwapOut(number, life) => self.swap_out(number, life),
            Event::SwapIn(number, card, life) => self.swap_in(number, card, life),
            Event::SwapEnds(number, place, is_well) => self.swap_ends(number, place, is_well),
            Event::Ask(number, id, bytes) => self.asked(number, id, bytes),
            Event::Over(id) => self.over(id),
            Event::Swapped(number, life, is_well) => self.swapped(number, life, is_well),
            Event::Look => self.arbiter_looks(),
            Event::Tick(due) => self.tick(due),
            Event::Warn(card) => self.warn(card),
            Event::Fail(card, life) => self.fail(card, life),
            Event::StartCard(card) => self.start_card(card),
            Event::StartArbiter => self.start_arbiter(),
        }
    }

    fn waits(&self) -> Option<String> {
        let mut programs = self.programs.iter().enumerate();
        let waiting = programs.find(|(_, one)| self.lives(one.process) && !one.has_ended());
        waiting.map(|(number, program)| format!("program{}: {program:?}", number + 1))
    }

    fn crash(&mut self, process: ProcessId) {
        self.stage.engine.crash(process);
        if let Some(card) = self.cards.iter().position(|one| one.process == process) {
            return self.lose_card(card);
        }
        if let Some(number) = self.programs.iter().position(|one| one.process == process) {
            return self.program_died(number);
        }
        if process == self.arbiter.process {
            self.arbiter_died();
            self.start_later(Event::StartArbiter);
        }
    }

    fn state(&self) -> u64 {
        let mut hash = Xxh3::new();
        for program in &self.programs {
            (program.at, &program.work, program.asked.is_some()).hash(&mut hash);
        }
        for card in &self.cards {
            (self.lives(card.process), card.is_failing).hash(&mut hash);
        }
        hash.finish()
    }

    fn describe(&self) -> String {
        let programs = self.programs.iter().enumerate();
        let lines = programs.map(|(number, one)| format!("program{}: {one:?}\n", number + 1));
        let all: String = lines.collect();
        format!("{all}{:?}\n{:?}\n", self.cards, self.arbiter)
    }
}
