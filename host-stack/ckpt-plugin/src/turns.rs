//! Short turns on the processor. A program that polls for messages has its whole turn before whoever wakes up on its processor,
//! unless that asks for a shorter one (Linux 6.12; others do not listen). A round has many small steps in all processes of a
//! job, and would take a turn of a program for each.

use libc::{SCHED_BATCH, SCHED_OTHER, SYS_sched_getattr, SYS_sched_setattr, c_long, sched_attr};

/// The shortest that there is, in nanoseconds.
const SHORT_NS: u64 = 100_000;
/// What a thread has that asks for none.
const USUAL: u64 = 0;

/// This thread has short turns from now on.
pub fn ask_for_short() {
    ask_for(SHORT_NS);
}

/// This thread has short turns until it is dropped. Threads that it starts meanwhile have them as well.
#[derive(Debug)]
pub struct ShortTurns {
    /// It is for the thread that has it.
    _not_send: std::marker::PhantomData<*const ()>,
}

impl ShortTurns {
    /// From now on.
    pub fn begin() -> Self {
        ask_for_short();
        Self {
            _not_send: std::marker::PhantomData,
        }
    }
}

impl Drop for ShortTurns {
    fn drop(&mut self) {
        ask_for(USUAL);
    }
}

/// Asks for turns of this length, if the thread's policy knows of any. Who is refused has those that it had.
fn ask_for(ns: u64) {
    let size = size_of::<sched_attr>();
    // SAFETY: sched_getattr(2) writes so many bytes at most, and sched_setattr(2) reads them; both are about this thread. The
    // structure is of numbers.
    unsafe {
        let mut attr: sched_attr = std::mem::zeroed();
        let own: c_long = 0;
        let got = libc::syscall(SYS_sched_getattr, own, &raw mut attr, size, 0);
        let is_fair = [SCHED_OTHER, SCHED_BATCH].contains(&(attr.sched_policy as i32));
        if got == 0 && is_fair {
            attr.sched_runtime = ns;
            libc::syscall(SYS_sched_setattr, own, &raw const attr, 0);
        }
    }
}
