//! Threads.

use std::{
    sync::{Arc, Condvar},
    time::Duration,
};

use snaprig_card_driver::{
    signals::SigSet,
    wait::{Channel, Wait},
};
use snaprig_card_platform::{Kick, Regs};

use crate::{
    cores::SeatId,
    rseq::Rseq,
    sched::{Affinity, Policy},
    signal::{AltStack, Pending},
};

/// A thread.
pub struct Thread {
    /// Its id.
    pub tid: i32,
    /// Its process.
    pub pid: i32,
    /// Registers in ring 3, as of its last exit.
    pub regs: Regs,
    /// Extended state, saved when it parks; `None` while its CPU holds it.
    pub xstate: Option<Vec<u8>>,
    /// Name (prctl(PR_SET_NAME)).
    pub name: String,
    /// Blocked signals.
    pub mask: SigSet,
    /// The mask to go back to after sigsuspend(2) and its like.
    pub restore_mask: Option<SigSet>,
    /// Signals for this thread.
    pub pending: Pending,
    /// sigaltstack(2).
    pub alt_stack: AltStack,
    /// set_tid_address(2).
    pub clear_child_tid: u64,
    /// set_robust_list(2).
    pub robust_list: u64,
    /// The number of the call that it is in.
    pub call: Option<u64>,
    /// When that call stops waiting.
    pub deadline: Option<Duration>,
    /// Bytes that it has moved so far.
    pub progress: usize,
    /// It waits for these; `None` if it runs or has been woken.
    pub waiting: Option<Wait>,
    /// Parked for `stopped_by`, with its extended state saved.
    pub parked: bool,
    /// It has captured what it has stopped, and keeps it so (`snaprig_wire::checkpoint::HOLD`).
    pub holds: bool,
    /// The host thread sleeps on this.
    pub wakeup: Arc<Condvar>,
    /// Makes its CPU leave ring 3.
    pub kick: Option<Arc<dyn Kick>>,
    /// To the card's cores, when it runs.
    pub seat: Option<SeatId>,
    /// What it waits for alone: futex, stop, sleep.
    pub channel: Channel,
    /// It ends at the next chance (exit(2), or another thread's execve(2)).
    pub must_end: bool,
    /// It has a vfork(2) child that has not released it.
    pub vfork_child: Option<i32>,
    /// Time that it has spent in ring 3.
    pub ran: Duration,
    /// The cores that it wants.
    pub affinity: Affinity,
    /// The core that it was on last.
    pub core: u32,
    /// How it is scheduled, as it was told.
    pub policy: Policy,
    /// Restartable sequences (`rseq`).
    pub rseq: Rseq,
}

impl Thread {
    /// A thread that will start with these registers.
    pub fn new(tid: i32, pid: i32, regs: Regs, xstate: Vec<u8>) -> Self {
        Self {
            tid,
            pid,
            regs,
            xstate: Some(xstate),
            name: String::new(),
            mask: SigSet::default(),
            restore_mask: None,
            pending: Pending::default(),
            alt_stack: AltStack::default(),
            clear_child_tid: 0,
            robust_list: 0,
            call: None,
            deadline: None,
            progress: 0,
            waiting: None,
            parked: false,
            holds: false,
            wakeup: Arc::new(Condvar::new()),
            kick: None,
            seat: None,
            channel: Channel::new(),
            must_end: false,
            vfork_child: None,
            ran: Duration::ZERO,
            affinity: None,
            core: 0,
            policy: Policy::default(),
            rseq: Rseq::default(),
        }
    }

    /// Makes it look at the kernel's wishes, wherever it is.
    pub fn poke(&mut self) {
        self.waiting = None;
        self.wakeup.notify_all();
        if let Some(kick) = &self.kick {
            kick.kick();
        }
    }
}
