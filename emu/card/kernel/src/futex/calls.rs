//! futex(2), and what a thread that ends leaves of its locks.

use std::{sync::atomic::Ordering, time::Duration};

use snaprig_card_driver::{
    clock::monotonic,
    errno::Errno,
    wait::{Stop, SysResult, Wait},
};
use snaprig_card_memory::{PAGE, USER_END};

use super::{
    ANY, COMMAND_MASK, FUTEX_OWNER_DIED, FUTEX_TID_MASK, FUTEX_WAITERS, OP_ARGUMENT_SHIFT,
    ROBUST_MAX, Waiter,
};
use crate::{call::Call, state::lock};

impl Call<'_> {
    /// futex(2).
    pub fn futex(&mut self, a: [u64; 6]) -> SysResult {
        let [word, op, value, timeout, word2, value3] = a;
        let (op, value) = (op as i32, value as u32);
        let (command, bits) = (op & COMMAND_MASK, value3 as u32);
        let of_realtime = op & libc::FUTEX_CLOCK_REALTIME != 0;
        let has_clock = matches!(command, libc::FUTEX_WAIT_BITSET | libc::FUTEX_LOCK_PI2);
        if of_realtime && !has_clock {
            return Err(Errno::ENOSYS.into());
        }
        // Linux wakes one at least, whatever it is told.
        let count = (value as i32).max(1) as usize;
        let private = op & libc::FUTEX_PRIVATE_FLAG != 0;
        match command {
            libc::FUTEX_WAIT => {
                let deadline = self.relative_deadline(timeout)?;
                self.futex_wait(word, value, deadline, ANY)
            }
            libc::FUTEX_WAIT_BITSET => {
                let deadline = self.absolute_deadline(timeout, of_realtime)?;
                self.futex_wait(word, value, deadline, bits)
            }
            libc::FUTEX_WAKE => self.futex_wake(word, private, count, ANY),
            libc::FUTEX_WAKE_BITSET => self.futex_wake(word, private, count, bits),
            libc::FUTEX_WAKE_OP => {
                let second = (word2, (timeout as i32).max(1) as usize);
                self.futex_wake_op((word, count), second, bits, private)
            }
            libc::FUTEX_REQUEUE => {
                self.futex_requeue(word, private, [value, timeout as u32], word2, None)
            }
            libc::FUTEX_CMP_REQUEUE => {
                self.futex_requeue(word, private, [value, timeout as u32], word2, Some(bits))
            }
            libc::FUTEX_LOCK_PI => {
                let deadline = self.absolute_deadline(timeout, true)?;
                self.futex_lock(word, deadline)
            }
            libc::FUTEX_LOCK_PI2 => {
                let deadline = self.absolute_deadline(timeout, of_realtime)?;
                self.futex_lock(word, deadline)
            }
            libc::FUTEX_TRYLOCK_PI => self.futex_try_lock(word).map(|_| 0),
            libc::FUTEX_UNLOCK_PI => self.futex_unlock(word),
            _ => Err(Errno::ENOSYS.into()),
        }
    }

    /// FUTEX_LOCK_PI: done if the lock is free, or once its owner has handed it over.
    fn futex_lock(&mut self, word: u64, deadline: Option<Duration>) -> SysResult {
        let tid = self.tid;
        if self.state.futexes.woken.remove(&tid) {
            return Ok(0);
        }
        let waits = self.state.futexes.key_of(tid).is_some();
        if waits && deadline.is_some_and(|deadline| deadline <= monotonic()) {
            self.state.futexes.forget(tid);
            return Err(Errno::ETIMEDOUT.into());
        }
        if !waits {
            match self.futex_try_lock(word) {
                Err(Stop::Errno(Errno::EAGAIN)) => {}
                other => return other.map(|_| 0),
            }
            let key = self.futex_key(word, true)?;
            let queue = self.state.futexes.queues.entry(key).or_default();
            queue.push(Waiter {
                tid,
                bits: ANY,
                inherits: true,
            });
        }
        let channels = vec![self.thread().channel];
        Err(Stop::Wait(Wait { channels, deadline }))
    }

    /// FUTEX_TRYLOCK_PI: EAGAIN if another thread has the lock, which is marked then: its owner will
    /// come to the kernel to unlock it.
    fn futex_try_lock(&mut self, word: u64) -> SysResult {
        let tid = self.tid as u32;
        let key = self.futex_key(word, true)?;
        let waited_for = self.state.futexes.queues.contains_key(&key);
        let memory = self.kernel.memory.clone();
        let word = memory.half_word(key);
        let mut value = word.load(Ordering::SeqCst);
        loop {
            let owner = value & FUTEX_TID_MASK;
            if owner == tid {
                return Err(Errno::EDEADLK.into());
            }
            if owner != 0 && !self.state.threads.contains_key(&(owner as i32)) {
                return Err(Errno::ESRCH.into());
            }
            let waiters = if waited_for { FUTEX_WAITERS } else { 0 };
            let next = match owner {
                0 => value & FUTEX_OWNER_DIED | waiters | tid,
                _ => value | FUTEX_WAITERS,
            };
            match word.compare_exchange(value, next, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) if owner == 0 => return Ok(0),
                Ok(_) => return Err(Errno::EAGAIN.into()),
                Err(now) => value = now,
            }
        }
    }

    /// FUTEX_UNLOCK_PI.
    fn futex_unlock(&mut self, word: u64) -> SysResult {
        if self.read_u32(word)? & FUTEX_TID_MASK != self.tid as u32 {
            return Err(Errno::EPERM.into());
        }
        let key = self.futex_key(word, true)?;
        self.hand_over(key, 0);
        Ok(0)
    }

    /// A lock that the caller owns goes to whoever has waited longest, or to nobody, with these bits.
    fn hand_over(&mut self, key: u64, bits: u32) {
        let next = self.state.futexes.take(key, 1, ANY).first().copied();
        let more = self.state.futexes.queues.contains_key(&key);
        let waiters = if more { FUTEX_WAITERS } else { 0 };
        let value = next.map_or(0, |tid| tid as u32 | waiters) | bits;
        // Ring 3 leaves a word alone that another thread owns, but for the bit that says it waits;
        // whoever sets that asks the kernel then, and finds the new owner.
        let word = self.kernel.memory.half_word(key);
        word.store(value, Ordering::SeqCst);
        self.wake_waiters(&next.into_iter().collect::<Vec<_>>());
    }

    fn futex_wait(
        &mut self,
        word: u64,
        value: u32,
        deadline: Option<Duration>,
        bits: u32,
    ) -> SysResult {
        if bits == 0 {
            return Err(Errno::EINVAL.into());
        }
        let tid = self.tid;
        if self.state.futexes.woken.remove(&tid) {
            return Ok(0);
        }
        if self.state.futexes.key_of(tid).is_none() {
            let key = self.futex_key(word, false)?;
            if self.read_u32(word)? != value {
                return Err(Errno::EAGAIN.into());
            }
            self.state
                .futexes
                .queues
                .entry(key)
                .or_default()
                .push(Waiter {
                    tid,
                    bits,
                    inherits: false,
                });
        } else if deadline.is_some_and(|deadline| deadline <= monotonic()) {
            self.state.futexes.forget(tid);
            return Err(Errno::ETIMEDOUT.into());
        }
        let channels = vec![self.thread().channel];
        Err(Stop::Wait(Wait { channels, deadline }))
    }

    /// Wakes up to `count` waiters; returns how many.
    pub fn futex_wake(&mut self, word: u64, private: bool, count: usize, bits: u32) -> SysResult {
        if bits == 0 {
            return Err(Errno::EINVAL.into());
        }
        Ok(match self.futex_known(word, private)? {
            None => 0,
            Some(key) => self.wake_at(key, count, bits),
        })
    }

    fn wake_at(&mut self, key: u64, count: usize, bits: u32) -> u64 {
        let woken = self.state.futexes.take(key, count, bits);
        self.wake_waiters(&woken);
        woken.len() as u64
    }

    /// FUTEX_WAKE_OP: changes the second word, wakes waiters on the first, and on the second if what
    /// it held fits.
    fn futex_wake_op(
        &mut self,
        first: (u64, usize),
        second: (u64, usize),
        encoded: u32,
        private: bool,
    ) -> SysResult {
        let key = self.futex_known(first.0, private)?;
        let key2 = self.futex_key(second.0, true)?;
        let twelve_bits = |from: u32| (from << 20) as i32 >> 20;
        let (mut argument, compared) = (twelve_bits(encoded >> 12), twelve_bits(encoded));
        let operation = encoded >> 28;
        if operation & OP_ARGUMENT_SHIFT != 0 {
            argument = 1_i32.wrapping_shl(argument as u32 & 31);
        }
        let memory = self.kernel.memory.clone();
        let word = memory.half_word(key2);
        let argument = argument as u32;
        let before = match operation & 7 {
            0 => word.swap(argument, Ordering::SeqCst),
            1 => word.fetch_add(argument, Ordering::SeqCst),
            2 => word.fetch_or(argument, Ordering::SeqCst),
            3 => word.fetch_and(!argument, Ordering::SeqCst),
            4 => word.fetch_xor(argument, Ordering::SeqCst),
            _ => return Err(Errno::ENOSYS.into()),
        } as i32;
        let fits = match encoded >> 24 & 15 {
            0 => before == compared,
            1 => before != compared,
            2 => before < compared,
            3 => before <= compared,
            4 => before > compared,
            5 => before >= compared,
            _ => return Err(Errno::ENOSYS.into()),
        };
        let mut woken = key.map_or(0, |key| self.wake_at(key, first.1, ANY));
        if fits {
            woken += self.wake_at(key2, second.1, ANY);
        }
        Ok(woken)
    }

    fn wake_waiters(&mut self, woken: &[i32]) {
        for tid in woken {
            self.state.futexes.woken.insert(*tid);
            if let Some(thread) = self.state.threads.get_mut(tid) {
                thread.waiting = None;
                thread.wakeup.notify_all();
            }
        }
    }

    /// FUTEX_CMP_REQUEUE, and FUTEX_REQUEUE, which expects nothing: wakes and moves so many.
    fn futex_requeue(
        &mut self,
        word: u64,
        private: bool,
        counts: [u32; 2],
        to: u64,
        expected: Option<u32>,
    ) -> SysResult {
        let [wake, move_at_most] = counts.map(|count| usize::try_from(count as i32));
        let (Ok(wake), Ok(move_at_most)) = (wake, move_at_most) else {
            return Err(Errno::EINVAL.into());
        };
        let (from, to) = (
            self.futex_known(word, private)?,
            self.futex_known(to, private)?,
        );
        if let Some(expected) = expected
            && self.read_u32(word)? != expected
        {
            return Err(Errno::EAGAIN.into());
        }
        let (Some(from), Some(to)) = (from, to) else {
            return Ok(0);
        };
        let woken = match wake {
            0 => 0,
            wake => self.wake_at(from, wake, ANY),
        };
        Ok(woken + self.state.futexes.requeue(from, to, move_at_most) as u64)
    }

    /// The key of a word that is not written to. A private one that is not in memory has nobody who
    /// waits for it; a shared one is looked for there.
    fn futex_known(&mut self, word: u64, private: bool) -> Result<Option<u64>, Errno> {
        match self.futex_key(word, false) {
            Err(Errno::EFAULT) if private && word < USER_END => Ok(None),
            found => found.map(Some),
        }
    }

    fn futex_key(&mut self, word: u64, write: bool) -> Result<u64, Errno> {
        if !word.is_multiple_of(4) {
            return Err(Errno::EINVAL);
        }
        let mm = self.process().mm.clone();
        let frame = lock(&mm).own_frame(word, write)?;
        // Nobody here sees who writes to a peer's memory: as on Linux (VM_PFNMAP).
        if !self.kernel.memory.contains(frame, PAGE) {
            return Err(Errno::EFAULT);
        }
        Ok(frame + word % PAGE)
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
        for key in self.state.futexes.inheritable() {
            let value = self.kernel.memory.half_word(key).load(Ordering::SeqCst);
            if value & FUTEX_TID_MASK == tid as u32 {
                self.hand_over(key, FUTEX_OWNER_DIED);
            }
        }
        let clear = std::mem::take(&mut self.thread().clear_child_tid);
        if clear != 0 && self.write(clear, &[0; 4]).is_ok() {
            let _ = self.futex_wake(clear, false, 1, ANY);
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
            self.owner_died((entry & !1).wrapping_add(offset), entry & 1 != 0)?;
            entry = next;
        }
        if pending != 0 {
            self.owner_died((pending & !1).wrapping_add(offset), pending & 1 != 0)?;
        }
        Ok(())
    }

    fn owner_died(&mut self, word: u64, inherits: bool) -> Result<(), Stop> {
        let key = self.futex_key(word, true)?;
        if inherits && self.state.futexes.queues.contains_key(&key) {
            // It is handed over.
            return Ok(());
        }
        let memory = self.kernel.memory.clone();
        let cell = memory.half_word(key);
        let mut value = cell.load(Ordering::SeqCst);
        while value & FUTEX_TID_MASK == self.tid as u32 {
            let died = value & FUTEX_WAITERS | FUTEX_OWNER_DIED;
            match cell.compare_exchange(value, died, Ordering::SeqCst, Ordering::SeqCst) {
                Err(now) => value = now,
                Ok(_) if value & FUTEX_WAITERS == 0 => break,
                Ok(_) => return self.futex_wake(word, false, 1, ANY).map(|_| ()),
            }
        }
        Ok(())
    }
}
