//! A lock in device memory that outlives its holder.
//!
//! The word holds the process (its slot + 1) that has it, or 0. Critical sections are short or copy
//! one message, so waiters spin, then yield. When a process dies, its locks are taken over
//! ([`Lock::take_from`]), what was half done is finished, and they are given back; what they guard is
//! written so that it can tell. The control daemon does that when it hears of the death, and so does
//! whoever waits for one of them: the daemon may itself be waiting for who waits for the dead. Locks
//! under which nothing is left half done are only taken away ([`Lock::break_of`]).
//!
//! What must stay true: a queue pair's requester moves under its `send_lock`, and its responder under its
//! `receive_lock`. Who holds the first of one queue pair may take the second of another, and then the lock of a
//! completion queue; nobody takes them in another order. Who holds any of them asks the daemon for nothing but lookups.

use crate::cell::U32;

/// Spins before the processor is given away: about the length of a short critical section.
const SPINS: u32 = 200;

/// Rounds of spinning before it is asked whether the holder is dead: about a millisecond.
const ROUNDS: u64 = 1000;

/// A lock; see the module.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Lock(U32);

/// A lock that is held, released when dropped.
#[must_use]
#[derive(Debug)]
pub struct Held<'a>(&'a Lock);

impl Lock {
    /// Waits until process `me` has it. Asks now and then whether its holder is dead, and takes it
    /// away if so: by then, what that one has left half done under it is to be finished.
    #[inline]
    pub fn take(&self, me: u32, is_dead: impl Fn(u32) -> bool) -> Held<'_> {
        for round in 1u64.. {
            for _ in 0..SPINS {
                if let Some(held) = self.try_take(me) {
                    return held;
                }
                std::hint::spin_loop();
            }
            std::thread::yield_now();
            let holder = self.0.get().checked_sub(1);
            if let Some(holder) = holder.filter(|_| round.is_multiple_of(ROUNDS))
                && is_dead(holder)
            {
                self.break_of(holder);
            }
        }
        unreachable!("the loop has no end")
    }

    /// Takes it if it is free.
    #[inline]
    pub fn try_take(&self, me: u32) -> Option<Held<'_>> {
        // Not made before it is known to be taken: dropping it gives the lock back.
        (self.0.get() == 0 && self.0.replace(0, me + 1)).then(|| Held(self))
    }

    /// Takes it over from a dead process, if that one had it.
    pub fn take_from(&self, dead: u32, me: u32) -> Option<Held<'_>> {
        self.0.replace(dead + 1, me + 1).then(|| Held(self))
    }

    /// Takes it from a dead process; whether that one had it.
    #[inline]
    pub fn break_of(&self, dead: u32) -> bool {
        self.0.replace(dead + 1, 0)
    }
}

impl Drop for Held<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.0.release(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_does_not_get_it_leaves_it_taken() {
        let lock = Lock::default();
        let held = lock.try_take(1).expect("free");
        assert!(lock.try_take(2).is_none());
        assert!(lock.try_take(2).is_none());
        assert!(!lock.break_of(2) && lock.break_of(1));
        std::mem::forget(held);
        std::mem::forget(lock.try_take(3));
        assert!(lock.take_from(2, 1).is_none());
        drop(lock.take_from(3, 1).expect("the dead had it"));
        drop(lock.take(2, |_| false));
        assert!(lock.try_take(1).is_some());
    }
}
