//! A program and its offload process: what it does with it, and what the process's host does when it is to be swapped.

use snaprig_sim::{ProcessId, Random};
use snaprig_snapify::oversubscribe::{faults, policy::RequestId};

use super::{
    invariants::FAILING,
    run::{Event, MEMORY, World},
};
use crate::stage::{Effect, System as _};

/// Memory of a process, and of its buffer, at least and below.
const BYTES: [u64; 2] = [20, 60];
const BUFFER: [u64; 2] = [5, 30];
/// After how many run functions it makes a buffer, and after how many more it has no use for that.
const BUFFER_RUNS: u16 = 3;
/// Longest time of a run function, and of what the program does itself.
const RUN_NS: u64 = 200_000;
const COMPUTE_NS: u64 = 200_000;
/// How long it takes to use what was granted.
const USE_NS: u64 = 5_000;
/// How long a swap takes, for each unit of memory.
const SWAP_NS: u64 = 2_000;

/// Where a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum At {
    /// It is not there, or not any more.
    Nowhere,
    On(usize),
    Leaving(usize),
    Out,
    Coming(usize),
}

impl At {
    /// The card whose memory it takes.
    pub fn card(self) -> Option<usize> {
        match self {
            Self::On(card) | Self::Leaving(card) | Self::Coming(card) => Some(card),
            Self::Nowhere | Self::Out => None,
        }
    }
}

/// What a program does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Work {
    /// It makes its process.
    Creating,
    /// It needs no process now.
    Computing,
    /// It waits for a run function.
    Running,
    /// It makes a buffer.
    Growing,
    /// It has its results.
    Finished,
    /// It has none.
    Failed(&'static str),
}

/// A program.
#[derive(Debug)]
pub struct Program {
    pub process: ProcessId,
    pub at: At,
    pub work: Work,
    own_bytes: u64,
    buffer_bytes: u64,
    /// The buffer that there is.
    buffer: u64,
    /// Run functions that have returned.
    done: u16,
    /// What it has asked for; and what it was granted, and uses.
    pub asked: Option<RequestId>,
    using: Option<RequestId>,
    /// How often its process has begun to move, or has arrived.
    place: u64,
    /// Who has ordered the swap under way.
    ordered_by: u64,
    swap_from_ns: u64,
    /// Since when its process is there, and what of its swaps that is to be worth.
    pub arrived_ns: u64,
    pub unpaid_ns: u64,
}

fn between([least, end]: [u64; 2], random: &mut Random) -> u64 {
    least + random.below(end - least)
}

impl Program {
    pub fn new(process: ProcessId, random: &mut Random) -> Self {
        Self {
            process,
            at: At::Nowhere,
            work: Work::Creating,
            own_bytes: between(BYTES, random),
            buffer_bytes: between(BUFFER, random),
            buffer: 0,
            done: 0,
            asked: None,
            using: None,
            place: 0,
            ordered_by: 0,
            swap_from_ns: 0,
            arrived_ns: 0,
            unpaid_ns: 0,
        }
    }

    /// Memory of its process.
    pub fn bytes(&self) -> u64 {
        self.own_bytes + self.buffer
    }

    /// What it asks for, if it asks.
    pub fn asks(&self) -> u64 {
        match self.work {
            Work::Creating => self.own_bytes,
            _ => self.buffer_bytes,
        }
    }

    /// Whether it waits for its process.
    pub fn is_wanted(&self) -> bool {
        matches!(self.work, Work::Running | Work::Growing)
    }

    pub fn has_ended(&self) -> bool {
        matches!(self.work, Work::Finished | Work::Failed(_))
    }
}

impl World {
    /// The card where a program's process is, or is to be made.
    pub fn home(&self, number: usize) -> usize {
        let card = self.programs[number].at.card();
        card.unwrap_or(number % self.cards.len())
    }

    pub fn begin(&mut self, number: usize) {
        self.take_room(number);
    }

    /// Takes the room that it needs, or asks for it. Whether it has it.
    fn take_room(&mut self, number: usize) -> bool {
        let card = self.home(number);
        let program = &self.programs[number];
        let is_new = program.work == Work::Creating;
        if is_new && !self.lives(self.cards[card].process) {
            self.give_up(number, "its card is gone");
            return false;
        }
        if !is_new && program.at != At::On(card) {
            // The call goes on when its process is back.
            return false;
        }
        let bytes = program.asks();
        if self.used(card) + bytes > MEMORY {
            self.ask(number, bytes);
            return false;
        }
        let now = self.stage.engine.now_ns();
        let program = &mut self.programs[number];
        match is_new {
            true => (program.at, program.arrived_ns) = (At::On(card), now),
            false => program.buffer = bytes,
        }
        self.compute(number);
        true
    }

    fn ask(&mut self, number: usize, bytes: u64) {
        let (process, arbiter) = (self.programs[number].process, self.arbiter.process);
        let late_ns = match self.fault(process, &faults::ASK) {
            Effect::Ended => return,
            Effect::Error(_) => return self.give_up(number, "there is no room"),
            Effect::Late(by_ns) => by_ns,
            _ => 0,
        };
        // The fault may have been its card's end.
        if self.programs[number].has_ended() {
            return;
        }
        if !self.lives(arbiter) && !self.stage.engine.is_hung(arbiter) {
            return self.give_up(number, "there is no room");
        }
        self.requests += 1;
        let id = self.requests;
        self.programs[number].asked = Some(id);
        let lane = u64::from(arbiter.0) << 16 | u64::from(process.0);
        let event = Event::Ask(number, id, bytes);
        let engine = &mut self.stage.engine;
        engine.send_late(process, arbiter, lane, late_ns, event);
    }

    pub fn answered(&mut self, number: usize, id: RequestId, granted: bool) {
        if self.programs[number].asked != Some(id) {
            return;
        }
        self.programs[number].asked = None;
        self.promised.remove(&id);
        if !granted {
            let is_failing = self.cards[self.home(number)].is_failing;
            self.tell_over(number, id);
            let why = if is_failing {
                FAILING
            } else {
                "there is no room"
            };
            return self.give_up(number, why);
        }
        match self.take_room(number) {
            true => {
                let program = &mut self.programs[number];
                program.using = Some(id);
                let process = program.process;
                let used = Event::Used(number, id);
                self.stage.engine.after(process, USE_NS, used);
            }
            false => self.tell_over(number, id),
        }
    }

    /// It has used what it was granted.
    pub fn used_up(&mut self, number: usize, id: RequestId) {
        if self.programs[number]
            .using
            .take_if(|own| *own == id)
            .is_some()
        {
            self.tell_over(number, id);
        }
    }

    /// The connection to the arbiter is closed.
    fn tell_over(&mut self, number: usize, id: RequestId) {
        let (process, arbiter) = (self.programs[number].process, self.arbiter.process);
        let lane = u64::from(arbiter.0) << 16 | u64::from(process.0);
        let over = Event::Over(id);
        self.stage.engine.send(process, arbiter, lane, over);
    }

    /// It computes for a while itself.
    fn compute(&mut self, number: usize) {
        self.programs[number].work = Work::Computing;
        self.look_later();
        let by_ns = self.random.below(COMPUTE_NS);
        let process = self.programs[number].process;
        self.stage.engine.after(process, by_ns, Event::GoOn(number));
    }

    /// It has computed, and needs its process.
    pub fn go_on(&mut self, number: usize) {
        let runs = self.runs;
        let program = &mut self.programs[number];
        if program.work != Work::Computing {
            return;
        }
        if program.done >= runs {
            return self.end(number, Work::Finished);
        }
        let is_growing = program.done % (2 * BUFFER_RUNS) >= BUFFER_RUNS;
        program.work = match is_growing && program.buffer == 0 {
            true => Work::Growing,
            false => Work::Running,
        };
        self.look_later();
        self.needs_process(number);
    }

    /// It goes on with what it needs its process for, if that is there.
    fn needs_process(&mut self, number: usize) {
        let program = &mut self.programs[number];
        if !matches!(program.at, At::On(_)) {
            return;
        }
        match program.work {
            Work::Running => {
                if program.done % (2 * BUFFER_RUNS) < BUFFER_RUNS {
                    program.buffer = 0;
                }
                let event = Event::Returned(number, program.place);
                let process = program.process;
                let by_ns = self.random.below(RUN_NS);
                self.stage.engine.after(process, by_ns, event);
            }
            Work::Growing if program.asked.is_none() => drop(self.take_room(number)),
            _ => {}
        }
    }

    pub fn returned(&mut self, number: usize, place: u64) {
        let program = &self.programs[number];
        let At::On(card) = program.at else {
            return;
        };
        let process = program.process;
        if program.place != place || !self.lives(self.cards[card].process) {
            return;
        }
        match self.fault(process, &faults::RETURN) {
            Effect::Ended => return,
            Effect::Late(by_ns) => {
                let event = Event::Returned(number, place);
                return self.stage.engine.after(process, by_ns, event);
            }
            _ => {}
        }
        let is_hung = !self.lives(self.cards[card].process);
        if self.programs[number].work == Work::Running && !is_hung {
            self.programs[number].done += 1;
            self.compute(number);
        }
    }

    fn end(&mut self, number: usize, work: Work) {
        let program = &mut self.programs[number];
        (program.work, program.at) = (work, At::Nowhere);
        program.place += 1;
        self.look_later();
    }

    /// It cannot go on.
    pub fn give_up(&mut self, number: usize, why: &'static str) {
        if let Some(id) = self.programs[number].asked.take() {
            self.promised.remove(&id);
            self.tell_over(number, id);
        }
        self.end(number, Work::Failed(why));
    }

    /// Its process ends with it.
    pub fn program_died(&mut self, number: usize) {
        let program = &mut self.programs[number];
        for id in [program.asked.take(), program.using.take()]
            .into_iter()
            .flatten()
        {
            self.promised.remove(&id);
            let arbiter = self.arbiter.process;
            self.stage.engine.after(arbiter, 0, Event::Over(id));
        }
        self.end(number, Work::Failed("it died"));
    }

    /// The arbiter of this life has it leave.
    pub fn swap_out(&mut self, number: usize, life: u64) {
        let At::On(card) = self.programs[number].at else {
            return self.tell_swapped(number, life, false);
        };
        self.swap(number, life, At::Leaving(card));
    }

    /// The arbiter of this life has it come.
    pub fn swap_in(&mut self, number: usize, card: usize, life: u64) {
        let bytes = self.programs[number].bytes();
        let fits = self.is_there(card) && self.used(card) + bytes <= MEMORY;
        if self.programs[number].at != At::Out || !fits {
            return self.tell_swapped(number, life, false);
        }
        self.swap(number, life, At::Coming(card));
    }

    fn swap(&mut self, number: usize, life: u64, way: At) {
        let now = self.stage.engine.now_ns();
        let program = &mut self.programs[number];
        program.at = way;
        program.place += 1;
        program.ordered_by = life;
        program.swap_from_ns = now;
        let (process, place) = (program.process, program.place);
        let takes_ns = program.bytes() * SWAP_NS;
        let point = match way {
            At::Coming(_) => faults::SWAP_IN,
            _ => faults::SWAP_OUT,
        };
        let (takes_ns, is_well) = match self.fault(process, &point) {
            Effect::Ended => return,
            Effect::Late(by_ns) => (takes_ns.saturating_add(by_ns), true),
            Effect::Error(_) => (takes_ns / 2, false),
            _ => (takes_ns, true),
        };
        let ends = Event::SwapEnds(number, place, is_well);
        self.stage.engine.after(process, takes_ns, ends);
    }

    pub fn swap_ends(&mut self, number: usize, place: u64, is_well: bool) {
        let program = &self.programs[number];
        let card = program.at.card();
        // A card that hangs ends nothing.
        if program.place == place && card.is_some_and(|card| self.lives(self.cards[card].process)) {
            self.swap_ended(number, is_well);
        }
    }

    pub fn swap_ended(&mut self, number: usize, is_well: bool) {
        let now = self.stage.engine.now_ns();
        let program = &mut self.programs[number];
        program.at = match (program.at, is_well) {
            (At::Leaving(_), true) | (At::Coming(_), false) => At::Out,
            (At::Leaving(card), false) | (At::Coming(card), true) => At::On(card),
            (at, _) => at,
        };
        program.place += 1;
        program.unpaid_ns += now - program.swap_from_ns;
        program.arrived_ns = now;
        let life = program.ordered_by;
        self.swaps += u64::from(is_well);
        self.tell_swapped(number, life, is_well);
        self.needs_process(number);
    }

    fn tell_swapped(&mut self, number: usize, life: u64, is_well: bool) {
        let (process, arbiter) = (self.programs[number].process, self.arbiter.process);
        let lane = u64::from(arbiter.0) << 16 | u64::from(process.0);
        let event = Event::Swapped(number, life, is_well);
        self.stage.engine.send(process, arbiter, lane, event);
    }
}
