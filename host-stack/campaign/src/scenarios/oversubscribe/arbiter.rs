//! The driver of the policy: sees all cards and processes whenever something happens, and has its orders carried out.

use std::time::Duration;

use snaprig_sim::ProcessId;
use snaprig_snapify::oversubscribe::{
    faults,
    policy::{Card, Input, Output, Policy, RequestId, Seen, Settings, Sight, Who},
};

use super::{
    Canary,
    invariants::{PROMISED, WORTH},
    program::At,
    run::{Event, MEMORY, World},
};
use crate::stage::{Effect, System as _};

/// As the arbiter is told.
const SETTINGS: Settings = Settings {
    quantum: Duration::from_micros(500),
    worth: 4,
    patience: Duration::from_millis(2),
};

/// The arbiter.
#[derive(Debug)]
pub struct Arbiter {
    pub process: ProcessId,
    policy: Policy,
    /// Orders of earlier lives are nobody's.
    life: u64,
    tick: Option<u64>,
}

impl Arbiter {
    pub fn new(process: ProcessId, canary: Option<Canary>) -> Self {
        let settings = match canary {
            Some(Canary::ShortStay) => Settings {
                quantum: Duration::from_nanos(1),
                worth: 0,
                ..SETTINGS
            },
            _ => SETTINGS,
        };
        Self {
            process,
            policy: Policy::new(settings),
            life: 0,
            tick: None,
        }
    }
}

fn who(program: usize) -> Who {
    Who {
        host: program as u32,
        process: 1,
    }
}

fn node(card: usize) -> u16 {
    card as u16 + 1
}

impl World {
    /// A program asks for room.
    pub fn asked(&mut self, number: usize, id: RequestId, bytes: u64) {
        self.arbiter_looks();
        let at = self.programs[number].at;
        let is_away = matches!(at, At::Out | At::Leaving(_));
        if self.programs[number].asked != Some(id)
            || self.canary == Some(Canary::LostRequest) && is_away
        {
            return;
        }
        self.arbiter_is_told(Input::Request {
            id,
            who: (at != At::Nowhere).then_some(who(number)),
            node: node(self.home(number)),
            bytes,
        });
    }

    /// A program does not ask any more, or has used what it was granted.
    pub fn over(&mut self, id: RequestId) {
        self.arbiter_looks();
        if self.canary != Some(Canary::ForgottenGrant) {
            self.arbiter_is_told(Input::RequestOver(id));
        }
    }

    /// A swap has ended.
    pub fn swapped(&mut self, number: usize, life: u64, is_well: bool) {
        self.arbiter_looks();
        if life == self.arbiter.life {
            self.arbiter_is_told(Input::Swapped(who(number), is_well));
        }
    }

    pub fn tick(&mut self, due: u64) {
        if self.arbiter.tick == Some(due) {
            self.arbiter.tick = None;
            self.arbiter_looks();
            self.arbiter_is_told(Input::Tick);
        }
    }

    /// The arbiter sees all that there is.
    pub fn arbiter_looks(&mut self) {
        let cards = (0..self.cards.len()).filter(|card| self.is_there(*card));
        let cards = cards.map(|card| (node(card), self.seen_card(card)));
        let all = (0..self.programs.len()).map(|number| (who(number), self.seen_process(number)));
        let processes = all.filter_map(|(who, seen)| Some((who, seen?)));
        let sight = Sight {
            has_unknown: false,
            cards: cards.collect(),
            processes: processes.collect(),
        };
        self.arbiter_is_told(Input::Sight(sight));
    }

    fn seen_card(&self, card: usize) -> Card {
        let extra = match self.canary {
            Some(Canary::DoublePromise) => self.promised_on(card),
            _ => 0,
        };
        let is_heard = self.canary != Some(Canary::DeafToWarnings);
        Card {
            memory_bytes: MEMORY,
            free_bytes: MEMORY - self.used(card) + extra,
            is_failing: self.cards[card].is_failing && is_heard,
        }
    }

    /// A process, if it is there, and nobody else has it swapped.
    fn seen_process(&self, number: usize) -> Option<Seen> {
        let program = &self.programs[number];
        let is_known = self.arbiter.policy.account(who(number)).is_some();
        let is_there = match program.at {
            At::Nowhere => false,
            At::Leaving(_) | At::Coming(_) => is_known,
            At::On(_) | At::Out => true,
        };
        let seen = Seen {
            node: program.at.card().map(node),
            bytes: program.bytes(),
            is_wanted: program.is_wanted(),
        };
        is_there.then_some(seen)
    }

    fn promised_on(&self, card: usize) -> u64 {
        let here = self.promised.values().filter(|(at, _)| *at == card);
        here.map(|(_, bytes)| bytes).sum()
    }

    fn arbiter_is_told(&mut self, input: Input) {
        let now = self.stage.engine.now_ns();
        let policy = &mut self.arbiter.policy;
        policy.handle(input, Duration::from_nanos(now));
        let mut outputs = Vec::new();
        while let Some(output) = policy.poll_output() {
            outputs.push(output);
        }
        for output in outputs {
            self.obey(output);
        }
        self.set_tick();
    }

    fn set_tick(&mut self) {
        let due = self.arbiter.policy.deadline();
        let due = due.map(|due| due.as_nanos() as u64);
        if due != self.arbiter.tick {
            self.arbiter.tick = due;
            if let Some(due) = due {
                let arbiter = self.arbiter.process;
                self.stage.engine.at(arbiter, due, Event::Tick(due));
            }
        }
    }

    fn obey(&mut self, output: Output) {
        let life = self.arbiter.life;
        match output {
            Output::SwapOut(Who { host, .. }) => {
                let number = host as usize;
                self.check_stay(number);
                self.order(number, Event::SwapOut(number, life));
            }
            Output::SwapIn(Who { host, .. }, node) => {
                let (number, card) = (host as usize, usize::from(node) - 1);
                self.check_promise(card, self.programs[number].bytes());
                self.order(number, Event::SwapIn(number, card, life));
            }
            Output::Grant(id) => self.answer(id, true),
            Output::Refuse(id) => self.answer(id, false),
        }
    }

    fn order(&mut self, number: usize, event: Event) {
        let (from, to) = (self.arbiter.process, self.programs[number].process);
        let lane = u64::from(to.0);
        self.stage.engine.send(from, to, lane, event);
    }

    fn answer(&mut self, id: RequestId, granted: bool) {
        let mut programs = self.programs.iter();
        let Some(number) = programs.position(|one| one.asked == Some(id)) else {
            return;
        };
        if granted {
            let (card, bytes) = (self.home(number), self.programs[number].asks());
            self.check_promise(card, bytes);
            self.promised.insert(id, (card, bytes));
        }
        let late_ns = match self.fault(self.arbiter.process, &faults::ANSWER) {
            Effect::Ended => return,
            Effect::Late(by_ns) => by_ns,
            _ => 0,
        };
        let (from, to) = (self.arbiter.process, self.programs[number].process);
        let lane = u64::from(to.0);
        let event = Event::Answer(number, id, granted);
        self.stage.engine.send_late(from, to, lane, late_ns, event);
    }

    fn check_promise(&mut self, card: usize, bytes: u64) {
        let taken = self.used(card) + self.promised_on(card);
        if taken + bytes > MEMORY {
            let what = format!("card{}: {bytes} more than {taken} of {MEMORY}", card + 1);
            let arbiter = self.arbiter.process;
            self.stage.violation(arbiter, PROMISED, what);
        }
    }

    /// A process is to leave: either it may, or its card is about to fail.
    fn check_stay(&mut self, number: usize) {
        let now = self.stage.engine.now_ns();
        let program = &mut self.programs[number];
        let At::On(card) = program.at else {
            return;
        };
        let stay_ns = now - program.arrived_ns;
        let worth = u64::from(SETTINGS.worth);
        let least_ns = (SETTINGS.quantum.as_nanos() as u64).max(program.unpaid_ns * worth);
        program.unpaid_ns = program.unpaid_ns.saturating_sub(stay_ns / worth);
        if stay_ns < least_ns && !self.cards[card].is_failing {
            let what = format!("program{}: {stay_ns} ns of {least_ns}", number + 1);
            let arbiter = self.arbiter.process;
            self.stage.violation(arbiter, WORTH, what);
        }
    }

    /// Whoever waits for its answer finds its connection closed.
    pub fn arbiter_died(&mut self) {
        self.promised.clear();
        for number in 0..self.programs.len() {
            let program = &self.programs[number];
            if let Some(id) = program.asked {
                let event = Event::Answer(number, id, false);
                let process = program.process;
                self.stage.engine.after(process, 0, event);
            }
        }
    }

    pub fn start_arbiter(&mut self) {
        let process = self.arbiter.process;
        if self.lives(process) || self.stage.engine.is_hung(process) {
            return;
        }
        self.stage.engine.restart(process);
        let life = self.arbiter.life + 1;
        self.arbiter = Arbiter {
            life,
            ..Arbiter::new(process, self.canary)
        };
        // It knows of no swaps before.
        self.programs.iter_mut().for_each(|one| one.unpaid_ns = 0);
        self.arbiter_looks();
    }
}
