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

use super::sched::Affinity;
use crate::platform::Kick;

const TIME_SLICE: Duration = Duration::from_millis(10);

/// The cores of one card.
pub struct Cores {
    count: usize,
    inner: Mutex<Inner>,
    freed: Condvar,
}

struct Inner {
    /// Numbers of the cores that nobody has.
    free: Vec<u32>,
    next_ticket: u64,
    /// Tickets of those who wait, and the cores that they want; first come first served.
    queue: VecDeque<(u64, Affinity)>,
    running: Vec<Running>,
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
            freed: Condvar::new(),
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
        inner.queue.push_back((ticket, wanted));
        let number = loop {
            if let Some(number) = inner.choose(ticket, last) {
                break number;
            }
            inner.kick_longest(wanted);
            inner = self
                .freed
                .wait_timeout(inner, TIME_SLICE)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        };
        inner.queue.retain(|(other, _)| *other != ticket);
        inner.free.retain(|free| *free != number);
        inner.running.push(Running {
            ticket,
            number,
            since: Instant::now(),
            kick,
        });
        if !inner.free.is_empty() && !inner.queue.is_empty() {
            self.freed.notify_all();
        }
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
    /// The core for a ticket, once those who came before have theirs.
    fn choose(&self, ticket: u64, last: u32) -> Option<u32> {
        let mut free = self.free.clone();
        for (waiting, wanted) in &self.queue {
            let mine = *waiting == ticket;
            let same = free.iter().position(|number| mine && *number == last);
            let same = same.filter(|_| wants(wanted, last));
            let any = || free.iter().rposition(|number| wants(wanted, *number));
            let chosen = same.or_else(any).map(|index| free.remove(index));
            if mine {
                return chosen;
            }
        }
        None
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
        if !inner.queue.is_empty() {
            self.cores.freed.notify_all();
        }
    }
}
