//! The kernel itself: the one lock, and what is outside of it.

use std::{
    num::NonZero,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak},
};

use snaprig_card_driver::{
    device::{WakeTarget, Waker},
    wait::Channel,
};
use snaprig_card_fs::Topology;
use snaprig_card_memory::CardMemory;
use snaprig_card_platform::Platform;

use crate::{cores::Cores, state::State};

/// What a kernel runs on.
pub struct Config {
    /// The card's memory.
    pub memory: Arc<CardMemory>,
    /// What runs its programs.
    pub platform: Arc<dyn Platform>,
    /// Its processors: as many threads run at once.
    pub topology: Topology,
    /// The card's SCIF node: its process ids start at `node * 0x8000`.
    pub node: u16,
}

/// A card kernel. Ended by [`Kernel::shutdown`].
pub struct Kernel {
    pub(crate) memory: Arc<CardMemory>,
    pub(crate) platform: Arc<dyn Platform>,
    pub(crate) topology: Topology,
    pub(crate) cores: Cores,
    pub(crate) node: u16,
    state: Mutex<State>,
    me: Weak<Self>,
    /// What a host thread does for a guest thread.
    pub(crate) live: fn(&Arc<Self>, i32),
    /// Signalled when a process ends, for `wait_exit`.
    pub(crate) ended: Condvar,
    /// Signalled when a timer is armed.
    pub(crate) timers: Condvar,
}

impl Kernel {
    /// A kernel with these tables, whose host threads do `live`.
    pub(crate) fn with(config: Config, state: State, live: fn(&Arc<Self>, i32)) -> Arc<Self> {
        let on_host = std::thread::available_parallelism().map_or(1, NonZero::get);
        // Who gets a core takes a while to wake up, which another one fills.
        let at_once = 2 * on_host;
        Arc::new_cyclic(|me| Self {
            memory: config.memory,
            platform: config.platform,
            topology: config.topology,
            cores: Cores::new(config.topology.processors(), at_once),
            node: config.node,
            state: Mutex::new(state),
            me: me.clone(),
            live,
            ended: Condvar::new(),
            timers: Condvar::new(),
        })
    }

    /// For devices.
    pub fn waker(&self) -> Waker {
        Waker::new(self.me.clone() as Weak<dyn WakeTarget>)
    }

    /// The thread is about to sleep: others may have its core.
    pub(crate) fn leave_core(&self, state: &mut State, tid: i32) {
        if let Some(seat) = state.thread(tid).seat {
            self.cores.leave(seat);
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WakeTarget for Kernel {
    fn wake(&self, channel: Channel) {
        self.lock().wake(channel);
    }
}
