//! The host thread that sends what is due.

use std::sync::{Arc, PoisonError};

use snaprig_card_driver::clock::monotonic;

use crate::{kernel::Kernel, signal::send, state::State};

impl Kernel {
    /// A timer was armed: the host thread looks at it.
    pub(crate) fn timer_armed(self: &Arc<Self>, state: &mut State) {
        if state.has_timer_thread {
            return self.timers.notify_all();
        }
        let kernel = self.clone();
        let thread = std::thread::Builder::new()
            .name("timers".into())
            .spawn(move || kernel.run_timers());
        match thread {
            Ok(handle) => {
                state.has_timer_thread = true;
                state.handles.push(handle);
            }
            Err(error) => tracing::error!(%error, "no host thread for timers"),
        }
    }

    /// Sends what is due, until the kernel is shut down.
    fn run_timers(&self) {
        let mut state = self.lock();
        while !state.is_over {
            let time = monotonic();
            let pids: Vec<_> = state.processes.keys().copied().collect();
            for pid in pids {
                for (thread, info) in state.process(pid).timers.expire(time) {
                    // A queue that is full, or a thread that has ended, loses the signal, as on
                    // Linux.
                    let _ = send::signal(&mut state, pid, thread, info);
                }
            }
            let running = state.processes.values().filter(|one| one.exit.is_none());
            let next = running.filter_map(|process| process.timers.next()).min();
            state = match next {
                None => self
                    .timers
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(next) => {
                    let left = next.saturating_sub(monotonic());
                    let waited = self.timers.wait_timeout(state, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
}
