//! futex(2). A futex is known by the card-physical address of its word, which is the same for all
//! who share the page, private or not. So the page must be nobody else's by copy on write while
//! somebody waits: whoever names a word makes its page the space's own, and fork copies the pages of
//! those who wait.
//!
//! A lock with priority inheritance is a word that holds its owner's id. The kernel changes it only
//! by compare-and-exchange, as ring 3 does at the same time. Every thread has the same priority, so
//! what is left to inherit is the lock itself, in the order in which its waiters came.

mod calls;

use std::collections::BTreeMap;

const COMMAND_MASK: i32 = !(libc::FUTEX_PRIVATE_FLAG | libc::FUTEX_CLOCK_REALTIME);
/// FUTEX_WAKE_OP: the argument is a number of bits to shift 1 by.
const OP_ARGUMENT_SHIFT: u32 = 8;
const ANY: u32 = u32::MAX;
/// Most entries of a robust list that are followed (Linux: ROBUST_LIST_LIMIT).
const ROBUST_MAX: usize = 2048;
const FUTEX_WAITERS: u32 = 0x8000_0000;
const FUTEX_OWNER_DIED: u32 = 0x4000_0000;
const FUTEX_TID_MASK: u32 = 0x3fff_ffff;

/// Everybody who waits on a futex, by word, in the order in which they came.
#[derive(Default)]
pub struct Futexes {
    queues: BTreeMap<u64, Vec<Waiter>>,
    /// Threads that have been woken and have not noticed.
    woken: std::collections::BTreeSet<i32>,
}

struct Waiter {
    tid: i32,
    bits: u32,
    /// It waits for a lock with priority inheritance.
    inherits: bool,
}

impl Futexes {
    /// Where the thread waits.
    fn key_of(&self, tid: i32) -> Option<u64> {
        let waits = |queue: &Vec<Waiter>| queue.iter().any(|waiter| waiter.tid == tid);
        self.queues
            .iter()
            .find(|(_, queue)| waits(queue))
            .map(|(key, _)| *key)
    }

    /// The thread waits no more, woken or not.
    pub fn forget(&mut self, tid: i32) {
        self.woken.remove(&tid);
        self.queues.retain(|_, queue| {
            queue.retain(|waiter| waiter.tid != tid);
            !queue.is_empty()
        });
    }

    /// Whether somebody waits for a word in `len` bytes of memory from `address` on.
    pub fn has_waiters(&self, address: u64, len: u64) -> bool {
        self.queues.range(address..address + len).next().is_some()
    }

    /// Whether the thread has been woken and its call will return 0.
    pub fn is_woken(&self, tid: i32) -> bool {
        self.woken.contains(&tid)
    }

    /// Locks with priority inheritance that somebody waits for.
    fn inheritable(&self) -> Vec<u64> {
        let inherits = |queue: &Vec<Waiter>| queue.iter().any(|waiter| waiter.inherits);
        let queues = self.queues.iter();
        queues
            .filter(|(_, queue)| inherits(queue))
            .map(|(key, _)| *key)
            .collect()
    }

    /// Takes up to `count` waiters with one of `bits` off the queue.
    fn take(&mut self, key: u64, count: usize, bits: u32) -> Vec<i32> {
        let Some(queue) = self.queues.get_mut(&key) else {
            return Vec::new();
        };
        let mut taken = Vec::new();
        queue.retain(|waiter| {
            let take = taken.len() < count && waiter.bits & bits != 0;
            if take {
                taken.push(waiter.tid);
            }
            !take
        });
        if queue.is_empty() {
            self.queues.remove(&key);
        }
        taken
    }

    /// Moves up to `count` waiters to another queue.
    fn requeue(&mut self, from: u64, to: u64, count: usize) -> usize {
        let Some(queue) = self.queues.get_mut(&from) else {
            return 0;
        };
        let moved: Vec<_> = queue.drain(..count.min(queue.len())).collect();
        if queue.is_empty() {
            self.queues.remove(&from);
        }
        let count = moved.len();
        if count > 0 {
            self.queues.entry(to).or_default().extend(moved);
        }
        count
    }
}

/// Whether a futex operation waits for a lock.
pub fn is_lock(op: u64) -> bool {
    matches!(
        op as i32 & COMMAND_MASK,
        libc::FUTEX_LOCK_PI | libc::FUTEX_LOCK_PI2
    )
}
