//! futex(2). A futex is known by the card-physical address of its word, which is the same for all
//! who share the page, private or not.

use std::collections::BTreeMap;

use super::{
    call::Call,
    errno::Errno,
    state::lock,
    wait::{Stop, SysResult, Wait},
};

const COMMAND_MASK: i32 = !(libc::FUTEX_PRIVATE_FLAG | libc::FUTEX_CLOCK_REALTIME);
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

    /// Whether the thread has been woken and its call will return 0.
    pub fn is_woken(&self, tid: i32) -> bool {
        self.woken.contains(&tid)
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

impl Call<'_> {
    /// futex(2).
    pub fn futex(&mut self, a: [u64; 6]) -> SysResult {
        let [word, op, value, timeout, word2, value3] = a;
        let (op, value) = (op as i32, value as u32);
        let count = (value as i32).max(0) as usize;
        match op & COMMAND_MASK {
            libc::FUTEX_WAIT => self.futex_wait(word, op, value, timeout, ANY, true),
            libc::FUTEX_WAIT_BITSET => {
                self.futex_wait(word, op, value, timeout, value3 as u32, false)
            }
            libc::FUTEX_WAKE => self.futex_wake(word, count, ANY),
            libc::FUTEX_WAKE_BITSET => self.futex_wake(word, count, value3 as u32),
            libc::FUTEX_REQUEUE => self.futex_requeue(word, count, timeout, word2, None),
            libc::FUTEX_CMP_REQUEUE => {
                self.futex_requeue(word, count, timeout, word2, Some(value3 as u32))
            }
            _ => Err(Errno::ENOSYS.into()),
        }
    }

    fn futex_wait(
        &mut self,
        word: u64,
        op: i32,
        value: u32,
        timeout: u64,
        bits: u32,
        relative: bool,
    ) -> SysResult {
        if bits == 0 {
            return Err(Errno::EINVAL.into());
        }
        let tid = self.tid;
        if self.state.futexes.woken.remove(&tid) {
            return Ok(0);
        }
        let realtime = op & libc::FUTEX_CLOCK_REALTIME != 0;
        let deadline = match relative {
            true => self.relative_deadline(timeout)?,
            false => self.absolute_deadline(timeout, realtime)?,
        };
        if self.state.futexes.key_of(tid).is_none() {
            let key = self.futex_key(word)?;
            if self.read_u32(word)? != value {
                return Err(Errno::EAGAIN.into());
            }
            self.state
                .futexes
                .queues
                .entry(key)
                .or_default()
                .push(Waiter { tid, bits });
        } else if deadline.is_some_and(|deadline| deadline <= super::now()) {
            self.state.futexes.forget(tid);
            return Err(Errno::ETIMEDOUT.into());
        }
        let channels = vec![self.thread().channel];
        Err(Stop::Wait(Wait { channels, deadline }))
    }

    /// Wakes up to `count` waiters; returns how many.
    pub fn futex_wake(&mut self, word: u64, count: usize, bits: u32) -> SysResult {
        let key = self.futex_key(word)?;
        let woken = self.state.futexes.take(key, count, bits);
        for tid in &woken {
            self.state.futexes.woken.insert(*tid);
            if let Some(thread) = self.state.threads.get_mut(tid) {
                thread.waiting = None;
                thread.wakeup.notify_all();
            }
        }
        Ok(woken.len() as u64)
    }

    fn futex_requeue(
        &mut self,
        word: u64,
        wake: usize,
        move_at_most: u64,
        to: u64,
        expected: Option<u32>,
    ) -> SysResult {
        if let Some(expected) = expected
            && self.read_u32(word)? != expected
        {
            return Err(Errno::EAGAIN.into());
        }
        let (from, to) = (self.futex_key(word)?, self.futex_key(to)?);
        let woken = self.futex_wake(word, wake, ANY)?;
        let at_most = (move_at_most as i32).max(0) as usize;
        Ok(woken + self.state.futexes.requeue(from, to, at_most) as u64)
    }

    fn futex_key(&mut self, word: u64) -> Result<u64, Errno> {
        if !word.is_multiple_of(4) {
            return Err(Errno::EINVAL);
        }
        let mm = self.process().mm.clone();
        let frame = lock(&mm).frame(word, false)?;
        Ok(frame + word % crate::memory::PAGE)
    }

    /// What a thread's end means to others: locks that it holds are marked and their waiters
    /// woken (set_robust_list(2)), then its id is cleared (set_tid_address(2)).
    pub fn leave_futexes(&mut self) {
        let tid = self.tid;
        self.state.futexes.forget(tid);
        let head = std::mem::take(&mut self.thread().robust_list);
        if head != 0 {
            // A list that cannot be followed is the program's own doing.
            let _ = self.walk_robust_list(head);
        }
        let clear = std::mem::take(&mut self.thread().clear_child_tid);
        if clear != 0 && self.write(clear, &[0; 4]).is_ok() {
            let _ = self.futex_wake(clear, 1, ANY);
        }
    }

    fn walk_robust_list(&mut self, head: u64) -> Result<(), Stop> {
        let [first, offset, pending] = self.read_words(head)?;
        let mut entry = first;
        for _ in 0..ROBUST_MAX {
            if entry & !1 == head {
                break;
            }
            let [next] = self.read_words(entry & !1)?;
            self.owner_died((entry & !1).wrapping_add(offset))?;
            entry = next;
        }
        if pending != 0 {
            self.owner_died((pending & !1).wrapping_add(offset))?;
        }
        Ok(())
    }

    fn owner_died(&mut self, word: u64) -> Result<(), Stop> {
        let value = self.read_u32(word)?;
        if value & FUTEX_TID_MASK != self.tid as u32 {
            return Ok(());
        }
        let died = value & FUTEX_WAITERS | FUTEX_OWNER_DIED;
        self.write(word, &died.to_le_bytes())?;
        if value & FUTEX_WAITERS != 0 {
            self.futex_wake(word, 1, ANY)?;
        }
        Ok(())
    }
}
