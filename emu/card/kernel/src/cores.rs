//! The card's cores: how many guest threads are in ring 3 at once.
//!
//! A thread takes a core before it runs and gives it back at every exit. While others wait, the
//! one that has run longest is kicked after a time slice. Cores have numbers, so that a thread can be
//! told which one it is on (getcpu(2)) and chosen (sched_setaffinity(2)); it gets its last one again if
//! that is free.

use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use snaprig_card_platform::Kick;

use crate::sched::Affinity;

const TIME_SLICE: Duration = Duration::from_millis(10);

/// The cores of one card.
pub struct Cores {
    count: usize,
    inner: Mutex<Inner>,
}

struct Inner {
    /// Numbers of the cores that nobody has.
    free: Vec<u32>,
    next_ticket: u64,
    /// First come first served.
    queue: VecDeque<Waiter>,
    running: Vec<Running>,
}

struct Waiter {
    ticket: u64,
    wanted: Affinity,
    /// The core to have again.
    last: u32,
    kick: Arc<dyn Kick>,
    /// One each: a core that becomes free wakes the thread that gets it, not all of them.
    turn: Arc<Condvar>,
}

struct Running {
    ticket: u64,
    number: u32,
    since: Instant,
    kick: Arc<dyn Kick>,
}

/// A core, held.
pub struct Core<'a> {
    cores: &'a Cores,
    ticket: u64,
    /// Which one.
    pub number: u32,
}

impl Cores {
    /// `count` free cores, at least one.
    pub fn new(count: usize) -> Self {
        let inner = Inner {
            free: (0..count.max(1) as u32).rev().collect(),
            next_ticket: 0,
            queue: VecDeque::new(),
            running: Vec::new(),
        };
        Self {
            count: count.max(1),
            inner: Mutex::new(inner),
        }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Waits for one of the cores that are wanted; `last` is the one to have again.
    pub fn take(&self, kick: Arc<dyn Kick>, wanted: Affinity, last: u32) -> Core<'_> {
        let mut inner = self.lock();
        let ticket = inner.next_ticket;
        inner.next_ticket += 1;
        let turn = Arc::new(Condvar::new());
        inner.queue.push_back(Waiter {
            ticket,
            wanted,
            last,
            kick,
            turn: turn.clone(),
        });
        inner.hand_out();
        let number = loop {
            if let Some(number) = inner.number_of(ticket) {
                break number;
            }
            let first = inner.first(&wanted).map(|first| first.ticket);
            inner = if first == Some(ticket) {
                inner.kick_longest(wanted);
                let waited = turn.wait_timeout(inner, TIME_SLICE);
                waited.unwrap_or_else(PoisonError::into_inner).0
            } else {
                turn.wait(inner).unwrap_or_else(PoisonError::into_inner)
            };
        };
        Core {
            cores: self,
            ticket,
            number,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Gives what is free to those who wait for it.
    fn hand_out(&mut self) {
        let mut index = 0;
        while index < self.queue.len() && !self.free.is_empty() {
            let waiter = &self.queue[index];
            let Some(free) = self.choose(&waiter.wanted, waiter.last) else {
                index += 1;
                continue;
            };
            let number = self.free.remove(free);
            let Some(waiter) = self.queue.remove(index) else {
                return;
            };
            waiter.turn.notify_one();
            // Who is first now among those who want the same looks after the time slices.
            if let Some(heir) = self.first(&waiter.wanted) {
                heir.turn.notify_one();
            }
            self.running.push(Running {
                ticket: waiter.ticket,
                number,
                since: Instant::now(),
                kick: waiter.kick,
            });
        }
    }

    /// The place in `free` of the core for somebody.
    fn choose(&self, wanted: &Affinity, last: u32) -> Option<usize> {
        let same = || self.free.iter().position(|number| *number == last);
        let same = wants(wanted, last).then(same).flatten();
        let any = || self.free.iter().rposition(|number| wants(wanted, *number));
        same.or_else(any)
    }

    fn number_of(&self, ticket: u64) -> Option<u32> {
        let mut running = self.running.iter();
        let mine = running.find(|running| running.ticket == ticket)?;
        Some(mine.number)
    }

    /// Who has waited longest of those who want these cores.
    fn first(&self, wanted: &Affinity) -> Option<&Waiter> {
        self.queue.iter().find(|waiter| waiter.wanted == *wanted)
    }

    /// Whoever has had one of these cores longest leaves it, if its time is over.
    fn kick_longest(&self, wanted: Affinity) {
        let on_wanted = |running: &&Running| wants(&wanted, running.number);
        let longest = self.running.iter().filter(on_wanted);
        if let Some(longest) = longest.min_by_key(|running| running.since)
            && longest.since.elapsed() >= TIME_SLICE
        {
            longest.kick.kick();
        }
    }
}

fn wants(affinity: &Affinity, core: u32) -> bool {
    let byte = (core / 8) as usize;
    affinity.is_none_or(|set| {
        set.get(byte)
            .is_some_and(|bits| bits >> (core % 8) & 1 == 1)
    })
}

impl Drop for Core<'_> {
    fn drop(&mut self) {
        let mut inner = self.cores.lock();
        inner
            .running
            .retain(|running| running.ticket != self.ticket);
        inner.free.push(self.number);
        inner.hand_out();
    }
}
