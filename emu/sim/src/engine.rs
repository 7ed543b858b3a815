//! Virtual time: which event happens next, where.
//!
//! A process has a number and a life; what was sent to an earlier life of it never arrives. A lane
//! is a place where order is kept (a connection, a thread's queue): its events arrive in the order
//! in which they were sent, those of different lanes in the order of their times, which the seed
//! draws.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
    hash::{BuildHasherDefault, Hasher},
};

use snaprig_wire::fault::Point;

use crate::{
    faults::Faults,
    plan::{Kind, Plan},
    random::Random,
    trace::Trace,
};

/// A process of the system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessId(pub u16);

/// A place where order is kept, by a number of the system's choosing.
pub type Lane = u64;

/// Slowest ordinary delivery. The range is wide, so that orders vary much.
const LATENCY_NS: u64 = 10_000;

/// Spreads the numbers of lanes, which are small or differ in few bits.
#[derive(Default)]
struct LaneHasher(u64);

impl Hasher for LaneHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64((*byte).into());
        }
    }

    fn write_u64(&mut self, number: u64) {
        let mixed = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ mixed >> 32;
    }
}

struct Entry<E> {
    to: ProcessId,
    life: u32,
    from: Option<(ProcessId, u64)>,
    event: E,
}

/// The state of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Alive,
    /// It exists, and does nothing any more.
    Hung,
    Dead,
}

struct Process {
    name: String,
    life: u32,
    state: State,
}

/// The engine; `E` is what happens to processes.
pub struct Engine<E> {
    now_ns: u64,
    /// Times and slots of what is to come; the count keeps equal times in order.
    queue: BinaryHeap<Reverse<(u64, u64, usize)>>,
    slots: Vec<Option<Entry<E>>>,
    free: Vec<usize>,
    count: u64,
    /// When the last event of each lane is due. Nothing depends on their order here.
    lanes: HashMap<Lane, u64, BuildHasherDefault<LaneHasher>>,
    processes: Vec<Process>,
    order: Random,
    faults: Faults,
    /// What happened.
    pub trace: Trace,
}

impl<E> Engine<E> {
    /// An engine for one run of a plan.
    pub fn new(plan: &Plan, points: &[Point], trace: Trace) -> Self {
        Self {
            now_ns: 0,
            queue: BinaryHeap::new(),
            slots: Vec::new(),
            free: Vec::new(),
            count: 0,
            lanes: HashMap::default(),
            processes: Vec::new(),
            order: Random::new(plan.seed, "order"),
            faults: Faults::new(plan, points),
            trace,
        }
    }

    /// A new process.
    pub fn process(&mut self, name: &str) -> ProcessId {
        self.processes.push(Process {
            name: name.into(),
            life: 0,
            state: State::Alive,
        });
        ProcessId(self.processes.len() as u16 - 1)
    }

    /// All processes by name.
    pub fn names(&self) -> Vec<String> {
        self.processes.iter().map(|one| one.name.clone()).collect()
    }

    /// All processes.
    pub fn all(&self) -> impl Iterator<Item = ProcessId> + use<E> {
        (0..self.processes.len() as u16).map(ProcessId)
    }

    /// A process by its name.
    pub fn named(&self, name: &str) -> Option<ProcessId> {
        let at = self.processes.iter().position(|one| one.name == name)?;
        Some(ProcessId(at as u16))
    }

    /// Virtual time.
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Whether a process runs.
    pub fn is_alive(&self, process: ProcessId) -> bool {
        self.processes[usize::from(process.0)].state == State::Alive
    }

    /// Whether a process exists, and does nothing any more.
    pub fn is_hung(&self, process: ProcessId) -> bool {
        self.processes[usize::from(process.0)].state == State::Hung
    }

    /// The faults, and what was reached.
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    /// Sends an event over a lane: it arrives after what was sent there before.
    pub fn send(&mut self, from: ProcessId, to: ProcessId, lane: Lane, event: E) {
        self.send_late(from, to, lane, 0, event);
    }

    /// The same, so much later at least; what comes after it on the lane is late, too.
    pub fn send_late(&mut self, from: ProcessId, to: ProcessId, lane: Lane, by_ns: u64, event: E) {
        let time = self.later(by_ns.saturating_add(1));
        let last = self.lanes.entry(lane).or_default();
        let time = time.max(*last);
        *last = time;
        let sent = (from != to).then_some((from, self.now_ns));
        self.put(time, to, sent, event);
    }

    /// An event that overtakes those of every lane.
    pub fn send_out_of_order(&mut self, from: ProcessId, to: ProcessId, event: E) {
        let sent = (from != to).then_some((from, self.now_ns));
        self.put(self.now_ns.saturating_add(1), to, sent, event);
    }

    /// An event of a process with itself, after some time.
    pub fn after(&mut self, process: ProcessId, delay_ns: u64, event: E) {
        let time = self.later(delay_ns);
        self.put(time, process, None, event);
    }

    /// So much after now, and as much later as the seed draws. A plan may ask for the end of time.
    fn later(&mut self, by_ns: u64) -> u64 {
        let drawn = by_ns.saturating_add(self.order.below(LATENCY_NS));
        self.now_ns.saturating_add(drawn)
    }

    /// An event of a process with itself, at a given time.
    pub fn at(&mut self, process: ProcessId, time_ns: u64, event: E) {
        self.put(time_ns.max(self.now_ns), process, None, event);
    }

    fn put(&mut self, time: u64, to: ProcessId, from: Option<(ProcessId, u64)>, event: E) {
        let life = self.processes[usize::from(to.0)].life;
        let entry = Some(Entry {
            to,
            life,
            from,
            event,
        });
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slots[slot] = entry;
                slot
            }
            None => {
                self.slots.push(entry);
                self.slots.len() - 1
            }
        };
        self.count += 1;
        self.queue.push(Reverse((time, self.count, slot)));
    }

    /// When the next event is due, if one is to come.
    pub fn next_ns(&self) -> Option<u64> {
        self.queue.peek().map(|Reverse((time, ..))| *time)
    }

    /// The next event of a living process; `None` when nothing is to come any more. `label` is
    /// asked only if there is a record.
    pub fn next(&mut self, label: impl FnOnce(&E) -> String) -> Option<(ProcessId, E)> {
        loop {
            let Reverse((time, _, slot)) = self.queue.pop()?;
            self.free.push(slot);
            // An event can be large: it is looked at where it is, and moved once.
            let entry = self.slots[slot].as_ref()?;
            if self.is_heard(entry.to, entry.life) {
                self.now_ns = time;
                let event = || label(&entry.event);
                self.trace.event(time, entry.from, entry.to, event);
                return self.slots[slot].take().map(|entry| (entry.to, entry.event));
            }
            self.slots[slot] = None;
        }
    }

    /// The event that [`Engine::next`] will return, for whoever has to look at more than that to label it.
    pub fn peek(&mut self) -> Option<&E> {
        loop {
            let Reverse((_, _, slot)) = *self.queue.peek()?;
            let entry = self.slots[slot].as_ref()?;
            if self.is_heard(entry.to, entry.life) {
                break;
            }
            self.queue.pop();
            self.slots[slot] = None;
            self.free.push(slot);
        }
        self.due()
    }

    /// The event that [`Engine::peek`] has found.
    pub fn due(&self) -> Option<&E> {
        let Reverse((_, _, slot)) = self.queue.peek()?;
        self.slots[*slot].as_ref().map(|entry| &entry.event)
    }

    /// Whether an event reaches the life of its process that it was sent to.
    fn is_heard(&self, to: ProcessId, life: u32) -> bool {
        let process = &self.processes[usize::from(to.0)];
        process.state == State::Alive && process.life == life
    }

    /// A fault point is reached at a process; what happens there.
    pub fn point(&mut self, at: ProcessId, point: &Point) -> Option<Kind> {
        let kind = self.faults.at(point.name, self.now_ns)?;
        let now = self.now_ns;
        self.trace.fault(now, at, || {
            format!("{}: {}", point.name, kind.name().name())
        });
        Some(kind)
    }

    /// A process dies: nothing that is under way to it arrives.
    pub fn crash(&mut self, process: ProcessId) {
        let process = &mut self.processes[usize::from(process.0)];
        process.state = State::Dead;
        process.life += 1;
    }

    /// A process stops, and nobody notices.
    pub fn hang(&mut self, process: ProcessId) {
        self.processes[usize::from(process.0)].state = State::Hung;
    }

    /// A process comes back, without anything that it knew.
    pub fn restart(&mut self, process: ProcessId) {
        let process = &mut self.processes[usize::from(process.0)];
        process.state = State::Alive;
        process.life += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn engine(seed: u64) -> Engine<u32> {
        Engine::new(&Plan::new(seed, ""), &[], Trace::default())
    }

    fn run(seed: u64) -> (Vec<(ProcessId, u32)>, u64) {
        let mut engine = engine(seed);
        let (a, b) = (engine.process("a"), engine.process("b"));
        for i in 0..50 {
            engine.send(a, b, u64::from(i % 3), i);
        }
        let events = std::iter::from_fn(|| engine.next(|_| String::new())).collect();
        (events, engine.trace.hash())
    }

    proptest! {
        #[test]
        fn lanes_keep_their_order_and_seeds_decide_the_rest(seed: u64) {
            let (events, hash) = run(seed);
            prop_assert_eq!(events.len(), 50);
            for lane in 0..3 {
                let of_lane: Vec<_> = events.iter().filter(|(_, i)| i % 3 == lane).collect();
                prop_assert!(of_lane.is_sorted());
            }
            let again = run(seed);
            prop_assert_eq!(again.1, hash);
            prop_assert_eq!(again.0, events);
        }
    }

    #[test]
    fn the_dead_and_the_hung_hear_nothing_and_a_new_life_starts_fresh() {
        let mut engine = engine(1);
        let (a, b) = (engine.process("a"), engine.process("b"));
        engine.send(a, b, 0, 1);
        engine.crash(b);
        engine.restart(b);
        engine.send(a, b, 0, 2);
        assert_eq!(engine.next(|_| String::new()), Some((b, 2)));
        engine.send(a, b, 0, 3);
        engine.hang(b);
        assert_eq!(engine.next(|_| String::new()), None);
        assert!(!engine.is_alive(b));
    }
}
