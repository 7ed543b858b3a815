//! What every system has that runs on the simulator's engine: virtual time, faults and what they leave of
//! what was about to happen, a lossy link between two processes, and the way from the start to the end.
//!
//! A [`System`] says who it is made of and what its events do; [`System::play`] runs it. Safety comes first;
//! then everything is healed, and progress demanded.

use std::{collections::BTreeSet, fmt::Debug};

use snaprig_sim::{Engine, Kind, Plan, Point, Process, ProcessId, Trace, engine::Lane};

use crate::{
    caught::caught,
    scenario::{Ending, Outcome, Until, Watch},
};

/// A run that makes more events than this does not come to rest.
pub const EVENTS_MAX: u64 = 200_000;
/// After so many events no fault happens any more: a plan may restart a process at each of its steps,
/// and that there is progress can be asked only of what is left alone.
const FAULTS_UNTIL: u64 = EVENTS_MAX / 4;
/// As many: each may have made an event of its own, to come hours later.
const FAULTS_MAX: u64 = FAULTS_UNTIL / 4;

/// What a fault point leaves of what was about to happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// All of it.
    None,
    /// Nothing: the process is gone, or stopped.
    Ended,
    /// All of it, later.
    Late(u64),
    /// An error.
    Error(i32),
    /// A bit of it is wrong.
    Corrupt(u64),
    /// So much of it.
    Torn(u64),
    /// Nothing, and nobody is told.
    Dropped,
    /// All of it, twice.
    Doubled,
    /// All of it, before what came before.
    Early,
}

impl Effect {
    /// What a fault leaves that is about no process and no disk.
    fn of(kind: &Kind) -> Option<Self> {
        match *kind {
            Kind::Delay(by_ns) => Some(Self::Late(by_ns)),
            Kind::Error(errno) => Some(Self::Error(errno)),
            Kind::TornWrite(bytes) => Some(Self::Torn(bytes)),
            Kind::Corrupt(bit) => Some(Self::Corrupt(bit)),
            Kind::Drop => Some(Self::Dropped),
            Kind::Duplicate => Some(Self::Doubled),
            Kind::Reorder => Some(Self::Early),
            _ => None,
        }
    }
}

/// Faults that happened, and when a run is to stop.
#[derive(Debug, Default)]
pub struct Tally {
    /// All of them.
    pub faults: u64,
    /// Those of which somebody must have been told.
    pub loud: u64,
    /// The longest time that a message was kept back.
    pub late_ns: u64,
    /// The fault point at which the run stops, until it is reached.
    pub until: Option<Until>,
}

/// What every system has.
pub struct Stage<E> {
    /// Time, order and processes.
    pub engine: Engine<E>,
    /// Faults that happened.
    pub tally: Tally,
    /// What must never happen, and did.
    pub violations: Vec<(&'static str, String)>,
    /// The states that the system was in, if they are counted.
    pub states: Option<BTreeSet<u64>>,
    /// Who has died, or been started again (true), and was not told of yet.
    pub(crate) changed: Vec<(ProcessId, bool)>,
    /// Everybody as they were where the run was stopped.
    description: Option<String>,
}

impl<E> Stage<E> {
    /// An empty one, for a run of a plan.
    pub fn new<C>(plan: &Plan, points: &[Point], watch: Watch<C>) -> Self {
        Self {
            engine: Engine::new(plan, points, watch.trace),
            tally: Tally {
                until: watch.until,
                ..Tally::default()
            },
            violations: Vec::new(),
            states: watch.is_counting.then(BTreeSet::new),
            changed: Vec::new(),
            description: None,
        }
    }

    /// The same with these processes: their numbers are their places in the list.
    #[must_use]
    pub fn with(mut self, processes: &[Process]) -> Self {
        for process in processes {
            self.engine.process(&process.name);
        }
        self
    }

    /// What must never happen has happened at a process.
    pub fn violation(&mut self, at: ProcessId, invariant: &'static str, what: impl Into<String>) {
        let (what, now) = (what.into(), self.engine.now_ns());
        self.engine.trace.broken(now, at, &what);
        self.violations.push((invariant, what));
    }

    /// What came of the run.
    pub fn into_outcome<T>(self, ending: Ending, leftovers: Vec<String>, end: T) -> Outcome<T> {
        let reached = self.engine.faults().reached().into_iter();
        let reached = reached.map(|(name, reached)| (name, reached.times, reached.faults));
        Outcome {
            ending,
            violations: self.violations,
            leftovers,
            faults: self.tally.faults,
            loud_faults: self.tally.loud,
            states: self.states.unwrap_or_default(),
            reached: reached.collect(),
            now_ns: self.engine.now_ns(),
            processes: self.engine.names(),
            trace: self.engine.trace,
            description: self.description,
            end,
        }
    }

    /// The trace so far.
    pub fn trace(&self) -> &Trace {
        &self.engine.trace
    }

    /// Whether faults may happen still, of which there are to be so many at most.
    pub fn may_have_faults(&self, faults_max: u64) -> bool {
        self.engine.trace.events() <= FAULTS_UNTIL && self.tally.faults < faults_max
    }

    /// A fault point is reached: if the run is to stop there, it stops.
    fn reaches(&mut self, point: &Point) {
        let until = &mut self.tally.until;
        if matches!(until, Some(Until::Point(name)) if name == point.name) {
            *until = Some(Until::Now);
        }
    }

    /// The fault that the plan has for a point now, and the process that it names.
    fn drawn(&mut self, at: ProcessId, point: &Point) -> Option<(Kind, Option<ProcessId>)> {
        let kind = self.engine.point(at, point)?;
        self.tally.faults += 1;
        self.tally.loud += u64::from(matches!(kind, Kind::Error(_) | Kind::TornWrite(_)));
        let process = kind.process().and_then(|name| self.engine.named(name));
        Some((kind, process))
    }

    /// A process dies.
    pub fn crash(&mut self, process: ProcessId) {
        self.engine.crash(process);
        self.changed.push((process, false));
    }

    /// A fault point is reached at a process that is no more than a process: what is left of what was about to
    /// happen. [`System::fault`] is for systems whose processes have links, disks or others to tell.
    pub fn fault(&mut self, at: ProcessId, point: &Point) -> Effect {
        self.reaches(point);
        if !self.may_have_faults(FAULTS_MAX) {
            return Effect::None;
        }
        let Some((kind, process)) = self.drawn(at, point) else {
            return Effect::None;
        };
        if let Some(effect) = Effect::of(&kind) {
            return effect;
        }
        match (kind, process) {
            (Kind::Crash(_), Some(process)) => self.crash(process),
            (Kind::Hang(_), Some(process)) => self.engine.hang(process),
            (Kind::Restart(_), Some(process)) => {
                self.engine.crash(process);
                self.engine.restart(process);
                self.changed.push((process, true));
                // Whatever was about to happen belonged to the life before.
                return match process == at {
                    true => Effect::Ended,
                    false => Effect::None,
                };
            }
            _ => {}
        }
        match self.engine.is_alive(at) {
            true => Effect::None,
            false => Effect::Ended,
        }
    }

    /// A message is on a link that loses, doubles and delays it, and has it overtake others: this is what
    /// is left of it. Whether it left its process.
    pub fn deliver(
        &mut self,
        effect: &Effect,
        from: ProcessId,
        to: ProcessId,
        lane: Lane,
        message: E,
    ) -> bool
    where
        E: Clone,
    {
        let engine = &mut self.engine;
        match *effect {
            Effect::Ended => return false,
            // What is damaged has a wrong checksum, and is lost.
            Effect::Dropped | Effect::Error(_) | Effect::Torn(_) | Effect::Corrupt(_) => {}
            Effect::None => engine.send(from, to, lane, message),
            Effect::Late(by_ns) => engine.send_late(from, to, lane, by_ns, message),
            Effect::Early => engine.send_out_of_order(from, to, message),
            Effect::Doubled => {
                engine.send(from, to, lane, message.clone());
                engine.send(from, to, lane, message);
            }
        }
        true
    }

    /// Whether the run is to stop here, to be looked at.
    fn is_enough(&self) -> bool {
        match self.tally.until {
            Some(Until::Event(count)) => self.engine.trace.events() >= count,
            Some(Until::Now) => true,
            Some(Until::Point(_)) | None => false,
        }
    }
}

/// A system of processes on a [`Stage`].
pub trait System {
    /// What happens to its processes.
    type Event: Debug;

    /// Its stage.
    fn stage(&mut self) -> &mut Stage<Self::Event>;

    /// The same, to be looked at.
    fn look(&self) -> &Stage<Self::Event>;

    /// Everybody starts.
    fn start(&mut self);

    /// Something happens to a process that lives.
    fn happen(&mut self, at: ProcessId, event: Self::Event);

    /// An event, as a record shows it.
    fn label(&self, event: &Self::Event) -> String {
        format!("{event:?}")
    }

    /// Everybody, as they are: for people who stop a run and look.
    fn describe(&self) -> String {
        String::new()
    }

    /// A hash of all on which it depends what the protocols' machines would do next, and of nothing else.
    fn state(&self) -> u64 {
        0
    }

    /// Whether the run has come to its end though events are still to come.
    fn is_over(&self) -> bool {
        false
    }

    /// Nothing is to come any more: what hangs is ended, what is full has room again. Whether there was
    /// anything to heal, so that the run goes on.
    fn heal(&mut self) -> bool {
        self.end_hung()
    }

    /// Who waits for what never comes, when nothing is to come any more and nothing is left to heal.
    fn waits(&self) -> Option<String> {
        None
    }

    /// A process dies; whoever has to notice will.
    fn crash(&mut self, process: ProcessId) {
        self.stage().engine.crash(process);
    }

    /// A process stops for ever, and nobody notices.
    fn hang(&mut self, process: ProcessId) {
        self.stage().engine.hang(process);
    }

    /// A process dies, and is to be started again.
    fn restart(&mut self, process: ProcessId) {
        self.crash(process);
    }

    /// The link to a process goes down, and both ends notice.
    fn cut_link(&mut self, _: ProcessId) {}

    /// The link to a process loses everything, and nobody notices.
    fn partition(&mut self, _: ProcessId) {}

    /// The disk is full, if there is one.
    fn fill_disk(&mut self) {}

    /// Something is late by so much.
    fn delayed(&mut self, _by_ns: u64) {}

    /// Whether faults happen.
    fn has_faults(&self) -> bool {
        self.look().may_have_faults(FAULTS_MAX)
    }

    /// A fault point is reached at a process: what is left of what was about to happen.
    fn fault(&mut self, at: ProcessId, point: &Point) -> Effect {
        self.stage().reaches(point);
        if !self.has_faults() {
            return Effect::None;
        }
        let Some((kind, process)) = self.stage().drawn(at, point) else {
            return Effect::None;
        };
        if let Kind::Delay(by_ns) = kind {
            self.delayed(by_ns);
        }
        if let Some(effect) = Effect::of(&kind) {
            return effect;
        }
        match (kind, process) {
            (Kind::DiskFull, _) => {
                self.fill_disk();
                return Effect::None;
            }
            (Kind::LinkDown(_), Some(process)) => {
                self.cut_link(process);
                return Effect::None;
            }
            (Kind::Partition(_), Some(process)) => {
                self.partition(process);
                return Effect::None;
            }
            (Kind::Crash(_), Some(process)) => self.crash(process),
            (Kind::Restart(_), Some(process)) => self.restart(process),
            (Kind::Hang(_), Some(process)) => self.hang(process),
            _ => return Effect::None,
        }
        match self.look().engine.is_alive(at) {
            true => Effect::None,
            false => Effect::Ended,
        }
    }

    /// Sends a message over a link on which faults happen at `point`; whether it left.
    fn send(
        &mut self,
        from: ProcessId,
        to: ProcessId,
        lane: Lane,
        point: &Point,
        message: Self::Event,
    ) -> bool
    where
        Self::Event: Clone,
    {
        let effect = self.fault(from, point);
        self.stage().deliver(&effect, from, to, lane, message)
    }

    /// Every process that hangs is ended; whether any did.
    fn end_hung(&mut self) -> bool {
        let engine = &self.look().engine;
        let hung: Vec<_> = engine.all().filter(|one| engine.is_hung(*one)).collect();
        for process in &hung {
            self.crash(*process);
        }
        !hung.is_empty()
    }

    /// Runs until nothing is to come any more, or the run is over or to be looked at; false if it never
    /// comes to that.
    fn rest(&mut self) -> bool {
        while !self.is_over() {
            let label = match self.look().engine.trace.is_recording() {
                true => self.next_label(),
                false => None,
            };
            let next = self.stage().engine.next(|_| label.unwrap_or_default());
            let Some((at, event)) = next else {
                break;
            };
            self.happen(at, event);
            if self.look().states.is_some() {
                let state = self.state();
                self.stage().states.get_or_insert_default().insert(state);
            }
            if self.look().is_enough() {
                break;
            }
            if self.look().engine.trace.events() > EVENTS_MAX {
                return false;
            }
        }
        true
    }

    /// The label of the event that is to happen next.
    fn next_label(&mut self) -> Option<String> {
        self.stage().engine.peek()?;
        self.look().engine.due().map(|event| self.label(event))
    }

    /// Heals, and runs until nothing is to come any more and nothing is left to heal; false if it never does.
    fn heal_and_rest(&mut self) -> bool {
        while self.heal() {
            if !self.rest() {
                return false;
            }
        }
        true
    }

    /// Runs from the start to the end, or to where it is to be looked at; how it ended.
    fn play(&mut self) -> Ending {
        let is_looked_at = self.look().tally.until.is_some();
        let rested = caught(|| {
            self.start();
            self.rest() && (is_looked_at || self.heal_and_rest())
        });
        if is_looked_at {
            let description = self.describe();
            self.stage().description = Some(description);
        }
        match rested {
            Err(panic) => Ending::Crashed(panic),
            Ok(false) => Ending::Endless,
            Ok(true) => self.waits().map_or(Ending::Finished, Ending::Stuck),
        }
    }
}
