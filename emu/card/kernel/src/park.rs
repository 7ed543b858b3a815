//! Threads that stand still: parked, because their process is stopped, or asleep, until they are woken.

use std::sync::{MutexGuard, PoisonError};

use snaprig_card_driver::clock::monotonic;
use snaprig_card_platform::{Cpu, PlatformError};

use crate::{checkpoint::hold, jobs::control, kernel::Kernel, state::State};

/// Whether a signal or another thread has stopped this one's process.
pub fn must_park(state: &mut State, tid: i32) -> bool {
    let pid = state.thread(tid).pid;
    state.process(pid).job.stopped.is_some() || hold::is_stopped(state, pid, tid)
}

/// Saves the extended state and waits until the process goes on. Even if it is killed: until then its
/// memory stays as it is.
pub fn park<'a>(
    kernel: &Kernel,
    mut state: MutexGuard<'a, State>,
    tid: i32,
    cpu: &mut dyn Cpu,
) -> Result<MutexGuard<'a, State>, PlatformError> {
    if state.thread(tid).xstate.is_none() {
        state.thread(tid).xstate = Some(cpu.xstate()?);
    }
    state.thread(tid).parked = true;
    let pid = state.thread(tid).pid;
    let by = state.process(pid).stopped_by;
    if let Some(channel) = by
        .and_then(|by| state.threads.get(&by))
        .map(|by| by.channel)
    {
        state.wake(channel);
    }
    control::parked(&mut state, pid);
    kernel.leave_core(&mut state, tid);
    let wakeup = state.thread(tid).wakeup.clone();
    while must_park(&mut state, tid) {
        state = wakeup.wait(state).unwrap_or_else(PoisonError::into_inner);
    }
    state.thread(tid).parked = false;
    Ok(state)
}

/// Waits until the thread is woken, or its deadline.
pub fn sleep<'a>(
    kernel: &Kernel,
    mut state: MutexGuard<'a, State>,
    tid: i32,
) -> MutexGuard<'a, State> {
    if state.thread(tid).waiting.is_some() {
        kernel.leave_core(&mut state, tid);
    }
    let wakeup = state.thread(tid).wakeup.clone();
    while let Some(wait) = &state.thread(tid).waiting {
        match wait.deadline {
            None => state = wakeup.wait(state).unwrap_or_else(PoisonError::into_inner),
            Some(deadline) => {
                let Some(left) = deadline
                    .checked_sub(monotonic())
                    .filter(|left| !left.is_zero())
                else {
                    state.thread(tid).waiting = None;
                    break;
                };
                state = wakeup
                    .wait_timeout(state, left)
                    .unwrap_or_else(PoisonError::into_inner)
                    .0;
            }
        }
    }
    state
}
