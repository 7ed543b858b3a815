//! The card's cores: how many guest threads are in ring 3 at once.
//!
//! A thread takes a core before it runs and gives it back at every exit. While others wait, the
//! one that has run longest is kicked after a time slice.

use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use crate::platform::Kick;

const TIME_SLICE: Duration = Duration::from_millis(10);

/// The cores of one card.
pub struct Cores {
    count: usize,
    inner: Mutex<Inner>,
    freed: Condvar,
}

struct Inner {
    free: usize,
    next_ticket: u64,
    /// Tickets of those who wait, first come first served.
    queue: VecDeque<u64>,
    running: Vec<(u64, Instant, Arc<dyn Kick>)>,
}

/// A core, held.
pub struct Core<'a> {
    cores: &'a Cores,
    ticket: u64,
}

impl Cores {
    /// `count` free cores, at least one.
    pub fn new(count: usize) -> Self {
        let inner = Inner {
            free: count.max(1),
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

    /// Waits for a core.
    pub fn take(&self, kick: Arc<dyn Kick>) -> Core<'_> {
        let mut inner = self.lock();
        let ticket = inner.next_ticket;
        inner.next_ticket += 1;
        inner.queue.push_back(ticket);
        while inner.free == 0 || inner.queue.front() != Some(&ticket) {
            if inner.free == 0
                && let Some((_, since, kick)) = inner.running.iter().min_by_key(|(_, at, _)| *at)
                && since.elapsed() >= TIME_SLICE
            {
                kick.kick();
            }
            inner = self
                .freed
                .wait_timeout(inner, TIME_SLICE)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        inner.queue.pop_front();
        inner.free -= 1;
        inner.running.push((ticket, Instant::now(), kick));
        if inner.free > 0 {
            self.freed.notify_all();
        }
        Core {
            cores: self,
            ticket,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Core<'_> {
    fn drop(&mut self) {
        let mut inner = self.cores.lock();
        inner.running.retain(|(ticket, ..)| *ticket != self.ticket);
        inner.free += 1;
        if !inner.queue.is_empty() {
            self.cores.freed.notify_all();
        }
    }
}
