//! Cards with memory, programs with demands, swaps that take time and fail. It knows what the policy can only believe, and
//! panics when that is wrong.

use std::{collections::BTreeMap, time::Duration};

use super::super::{Card, Input, LEAD_STAYS_MAX, Output, Policy, Seen, Settings, Sight, Who};

pub fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// When the program waits for its process.
#[derive(Clone, Copy, Debug)]
pub enum Demand {
    Always,
    /// Until it was served for so long; then it is busy itself.
    Sometimes {
        busy: Duration,
        idle: Duration,
    },
    Never,
}

/// Buffers: how often one more is wanted, and how large.
#[derive(Clone, Copy, Debug)]
pub struct Ask {
    pub every: Duration,
    pub bytes: u64,
}

#[derive(Clone, Copy, Debug)]
pub struct Program {
    pub bytes: u64,
    pub demand: Demand,
    pub asks: Option<Ask>,
}

/// A process may have no more than this: the smallest card has as much.
const BYTES_MAX: u64 = 100;
/// How long a program takes to use what it was granted.
const USE: Duration = Duration::from_millis(3);

#[derive(Clone, Copy, Debug, PartialEq)]
enum At {
    /// Not made yet.
    Nowhere,
    On(usize),
    Out,
    /// From a card, or to one, since then.
    Way {
        card: usize,
        is_out: bool,
        since: Duration,
        ends: Duration,
    },
}

#[derive(Debug)]
struct Sim {
    program: Program,
    at: At,
    bytes: u64,
    is_wanted: bool,
    /// Service until it is idle; and when it is busy again.
    left: Duration,
    busy_from: Duration,
    arrived: Duration,
    unpaid: Duration,
    next_ask: Duration,
    /// Under way since then; and whether it is granted, until when.
    request: Option<(u64, Duration, Option<Duration>)>,
    waits_since: Option<Duration>,
}

#[derive(Debug)]
pub struct World {
    pub policy: Policy,
    now: Duration,
    memory: Vec<u64>,
    used: Vec<u64>,
    sims: Vec<Sim>,
    ns_per_byte: u64,
    fails_one_in: u64,
    random: u64,
    requests: u64,
    longest_wait: Duration,
}

impl World {
    pub fn new(
        settings: Settings,
        cards: &[u64],
        programs: &[Program],
        ns_per_byte: u64,
        fails_one_in: u64,
        seed: u64,
    ) -> Self {
        let sim = |program: &Program| Sim {
            program: *program,
            at: At::Nowhere,
            bytes: program.bytes,
            is_wanted: false,
            left: Duration::ZERO,
            busy_from: Duration::ZERO,
            arrived: Duration::ZERO,
            unpaid: Duration::ZERO,
            next_ask: Duration::ZERO,
            request: None,
            waits_since: None,
        };
        Self {
            policy: Policy::new(settings),
            now: Duration::ZERO,
            memory: cards.to_vec(),
            used: vec![0; cards.len()],
            sims: programs.iter().map(sim).collect(),
            ns_per_byte,
            fails_one_in,
            random: seed | 1,
            requests: 0,
            longest_wait: Duration::ZERO,
        }
    }

    /// What of a process's swaps its stay has still to be worth.
    pub fn unpaid(&self, who: Who) -> Duration {
        let sim = &self.sims[who.process as usize];
        match sim.at {
            At::Way { since, .. } => sim.unpaid + (self.now - since),
            _ => sim.unpaid,
        }
    }

    /// The longest that anybody has waited for anything.
    pub fn longest_wait(&self) -> Duration {
        let waiting = self.sims.iter().filter_map(|sim| sim.waits_since);
        let until_now = waiting.map(|since| self.now - since);
        until_now.max().unwrap_or_default().max(self.longest_wait)
    }

    /// The longest that it may be: everybody else comes first, as often as a lead is long.
    pub fn patience(&self) -> Duration {
        let settings = self.policy.settings;
        let swap = Duration::from_nanos(BYTES_MAX * self.ns_per_byte);
        let stay = settings.quantum.max(swap * 2 * settings.worth) + swap * 2;
        // Failures cost their time, and pauses that are doubled.
        let failures = if self.fails_one_in > 0 { 200 } else { 1 };
        stay * (LEAD_STAYS_MAX + 2) * self.sims.len() as u32 * failures
    }

    pub fn run(&mut self, time: Duration) {
        self.show();
        for number in 0..self.sims.len() {
            self.create(number);
        }
        while let Some(next) = self.next().filter(|next| *next <= time) {
            self.pass(next);
            self.happen();
        }
        self.pass(time);
        self.tell(Input::Tick);
    }

    fn number(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % below
    }

    /// A process is to be made, on any card.
    fn create(&mut self, number: usize) {
        let card = self.number(self.memory.len() as u64) as usize;
        let bytes = self.sims[number].bytes;
        self.ask(number, card, bytes, None);
    }

    fn ask(&mut self, number: usize, card: usize, bytes: u64, who: Option<Who>) {
        self.requests += 1;
        let id = self.requests << 8 | card as u64;
        let sim = &mut self.sims[number];
        sim.request = Some((id, self.now, None));
        self.look(number);
        let node = card as u16 + 1;
        self.tell(Input::Request {
            id,
            who,
            node,
            bytes,
        });
    }

    /// When something happens next.
    fn next(&self) -> Option<Duration> {
        let now = self.now;
        let times = self.sims.iter().flat_map(|sim| {
            let granted = sim.request.and_then(|(.., until)| until);
            let own = match sim.at {
                At::Way { ends, .. } => Some(ends),
                At::On(_) if sim.is_wanted && sim.left > Duration::ZERO => Some(now + sim.left),
                _ => None,
            };
            let wakes = match sim.program.demand {
                Demand::Sometimes { .. } if !sim.is_wanted && sim.at != At::Nowhere => {
                    Some(sim.busy_from.max(now))
                }
                _ => None,
            };
            let can_ask = matches!(sim.at, At::On(_)) && sim.is_wanted && sim.request.is_none();
            let asks = sim.program.asks.filter(|_| can_ask);
            let asks = asks.map(|_| sim.next_ask.max(now));
            [granted, own, wakes, asks]
        });
        let policy = self.policy.deadline().map(|due| due.max(now));
        times.flatten().chain(policy).min()
    }

    fn pass(&mut self, to: Duration) {
        let passed = to - self.now;
        self.now = to;
        for sim in &mut self.sims {
            if matches!(sim.at, At::On(_)) && sim.is_wanted {
                sim.left = sim.left.saturating_sub(passed);
            }
        }
    }

    fn happen(&mut self) {
        if self.policy.deadline().is_some_and(|due| due <= self.now) {
            self.tell(Input::Tick);
        }
        for number in 0..self.sims.len() {
            self.end_swap(number);
            self.change_demand(number);
            self.use_grant(number);
            self.want_more(number);
        }
    }

    fn end_swap(&mut self, number: usize) {
        let At::Way {
            card,
            is_out,
            since,
            ends,
        } = self.sims[number].at
        else {
            return;
        };
        if ends > self.now {
            return;
        }
        let fails = self.fails_one_in > 0 && self.number(self.fails_one_in) == 0;
        let sim = &mut self.sims[number];
        sim.unpaid += self.now - since;
        sim.arrived = self.now;
        let is_there = is_out == fails;
        sim.at = if is_there { At::On(card) } else { At::Out };
        if !is_there {
            self.used[card] -= sim.bytes;
        }
        self.look(number);
        self.show();
        self.tell(Input::Swapped(who(number), !fails));
    }

    fn change_demand(&mut self, number: usize) {
        let now = self.now;
        let sim = &mut self.sims[number];
        if sim.at == At::Nowhere {
            return;
        }
        let is_wanted = match sim.program.demand {
            Demand::Always => true,
            Demand::Never => false,
            Demand::Sometimes { busy, idle } => match sim.is_wanted {
                true if sim.left.is_zero() && matches!(sim.at, At::On(_)) => {
                    sim.busy_from = now + idle;
                    false
                }
                false if sim.busy_from <= now => {
                    sim.left = busy;
                    true
                }
                is => is,
            },
        };
        if is_wanted != sim.is_wanted {
            sim.is_wanted = is_wanted;
            self.look(number);
            self.show();
        }
    }

    /// The memory that was granted is taken when it is, and the request over later.
    fn use_grant(&mut self, number: usize) {
        let now = self.now;
        let sim = &mut self.sims[number];
        if let Some((id, _, Some(until))) = sim.request
            && until <= now
        {
            sim.request = None;
            sim.next_ask = now + sim.program.asks.map_or(Duration::ZERO, |ask| ask.every);
            self.look(number);
            self.show();
            self.tell(Input::RequestOver(id));
        }
    }

    fn want_more(&mut self, number: usize) {
        let sim = &mut self.sims[number];
        let (At::On(card), Some(ask)) = (sim.at, sim.program.asks) else {
            return;
        };
        if !sim.is_wanted || sim.request.is_some() || sim.next_ask > self.now {
            return;
        }
        if sim.bytes + ask.bytes <= BYTES_MAX {
            return self.ask(number, card, ask.bytes, Some(who(number)));
        }
        // It has no use for its buffers any more.
        self.used[card] -= sim.bytes - sim.program.bytes;
        sim.bytes = sim.program.bytes;
        sim.next_ask = self.now + ask.every;
        self.show();
    }

    /// How long somebody has waited.
    fn look(&mut self, number: usize) {
        let sim = &mut self.sims[number];
        let asks = matches!(sim.request, Some((.., None)));
        let waits = asks || (sim.is_wanted && matches!(sim.at, At::Out | At::Way { .. }));
        match (waits, sim.waits_since) {
            (true, None) => sim.waits_since = Some(self.now),
            (false, Some(since)) => {
                self.longest_wait = self.longest_wait.max(self.now - since);
                sim.waits_since = None;
            }
            _ => {}
        }
    }

    /// The policy sees everything.
    fn show(&mut self) {
        let cards = self.memory.iter().zip(&self.used).zip(1..);
        let cards = cards.map(|((memory_bytes, used), node)| {
            let card = Card {
                memory_bytes: *memory_bytes,
                free_bytes: memory_bytes - used,
                is_failing: false,
            };
            (node, card)
        });
        let there = self
            .sims
            .iter()
            .enumerate()
            .filter(|(_, sim)| sim.at != At::Nowhere);
        let processes = there.map(|(number, sim)| {
            let node = match sim.at {
                At::On(card) | At::Way { card, .. } => Some(card as u16 + 1),
                At::Nowhere | At::Out => None,
            };
            let (bytes, is_wanted) = (sim.bytes, sim.is_wanted);
            let seen = Seen {
                node,
                bytes,
                is_wanted,
            };
            (who(number), seen)
        });
        let sight = Sight {
            has_unknown: false,
            cards: cards.collect(),
            processes: processes.collect(),
        };
        self.tell(Input::Sight(sight));
    }

    fn tell(&mut self, input: Input) {
        self.policy.handle(input, self.now);
        while let Some(output) = self.policy.poll_output() {
            self.obey(output);
        }
    }

    fn obey(&mut self, output: Output) {
        let took = |bytes: u64| Duration::from_nanos(bytes * self.ns_per_byte);
        match output {
            Output::SwapOut(Who { process, .. }) => {
                let settings = self.policy.settings;
                let sim = &mut self.sims[process as usize];
                let At::On(card) = sim.at else {
                    panic!("{sim:?} is on no card");
                };
                let stay = self.now - sim.arrived;
                assert!(stay >= settings.quantum, "{sim:?} after {stay:?}");
                assert!(
                    stay >= sim.unpaid * settings.worth,
                    "{sim:?} after {stay:?}"
                );
                sim.unpaid = Duration::ZERO;
                sim.at = At::Way {
                    card,
                    is_out: true,
                    since: self.now,
                    ends: self.now + took(sim.bytes),
                };
                self.look(process as usize);
            }
            Output::SwapIn(Who { process, .. }, node) => {
                let card = usize::from(node) - 1;
                let sim = &mut self.sims[process as usize];
                assert_eq!(sim.at, At::Out, "{sim:?}");
                assert!(sim.is_wanted || sim.request.is_some(), "{sim:?}");
                sim.at = At::Way {
                    card,
                    is_out: false,
                    since: self.now,
                    ends: self.now + took(sim.bytes),
                };
                self.take(card, self.sims[process as usize].bytes);
            }
            Output::Grant(id) => self.granted(id),
            Output::Refuse(id) => {
                let number = self.asker(id);
                let sim = &mut self.sims[number];
                sim.request = None;
                sim.next_ask = self.now + ms(100);
                self.look(number);
                // All of them are small enough.
                assert!(self.fails_one_in > 0, "{:?}", self.sims[number]);
                if self.sims[number].at == At::Nowhere {
                    self.sims[number].program.demand = Demand::Never;
                }
            }
        }
    }

    fn granted(&mut self, id: u64) {
        let number = self.asker(id);
        let sim = &mut self.sims[number];
        let Some((_, since, None)) = sim.request else {
            panic!("{sim:?} was granted {id} twice");
        };
        sim.request = Some((id, since, Some(self.now + USE)));
        match sim.at {
            At::On(card) => {
                let bytes = sim.program.asks.map_or(0, |ask| ask.bytes);
                sim.bytes += bytes;
                self.take(card, bytes);
            }
            At::Nowhere => {
                let (card, bytes) = ((id & 0xff) as usize, sim.bytes);
                (sim.at, sim.arrived) = (At::On(card), self.now);
                self.take(card, bytes);
            }
            at => panic!("it was granted {id}, and is {at:?}"),
        }
        self.look(number);
    }

    fn asker(&self, id: u64) -> usize {
        let mut sims = self.sims.iter();
        let asker = sims.position(|sim| sim.request.is_some_and(|(own, ..)| own == id));
        asker.expect("somebody asked")
    }

    fn take(&mut self, card: usize, bytes: u64) {
        self.used[card] += bytes;
        let fill: BTreeMap<_, _> = self.used.iter().zip(&self.memory).enumerate().collect();
        assert!(self.used[card] <= self.memory[card], "{fill:?}");
    }
}

fn who(number: usize) -> Who {
    Who {
        host: 1,
        process: number as u64,
    }
}
