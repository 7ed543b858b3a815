//! Sending: what is pending for whom, and what is next.

use snaprig_card_driver::{
    errno::Errno,
    signals::{SIGNALS, SigSet, bit},
};

use super::Info;
use crate::{
    jobs::control,
    state::{ExitStatus, State, lock},
};

/// Sends a signal to a process, or to one thread of it.
pub fn signal(state: &mut State, pid: i32, tid: Option<i32>, info: Info) -> Result<(), Errno> {
    let process = state.processes.get_mut(&pid).ok_or(Errno::ESRCH)?;
    if process.exit.is_some() {
        return Ok(());
    }
    if info.signal == libc::SIGKILL {
        state.end_process(pid, ExitStatus::Signaled(libc::SIGKILL));
        return Ok(());
    }
    control::signal_sent(state, pid, info.signal);
    let process = state.process(pid);
    let ignored = lock(&process.actions).ignores(info.signal);
    let threads = process.threads.clone();
    let waited_for = threads.iter().any(|one| {
        tid.is_none_or(|tid| tid == *one)
            && state
                .threads
                .get(one)
                .is_some_and(|thread| thread.mask.has(info.signal))
    });
    if ignored && !waited_for {
        return Ok(());
    }
    match tid {
        Some(tid) => {
            let thread = state.threads.get_mut(&tid).ok_or(Errno::ESRCH)?;
            thread.pending.add(info)?;
            thread.poke();
        }
        None => {
            state.process(pid).pending.add(info)?;
            // Any thread may take it. Those that block it may be in sigtimedwait(2).
            for tid in threads {
                if let Some(thread) = state.threads.get_mut(&tid) {
                    thread.poke();
                }
            }
        }
    }
    Ok(())
}

/// Signals that are pending for a process or any thread of it and are to be forgotten.
pub fn discard(state: &mut State, pid: i32, unwanted: SigSet) {
    let process = state.process(pid);
    process.pending.discard(unwanted);
    for tid in process.threads.clone() {
        state.thread(tid).pending.discard(unwanted);
    }
}

/// A fault's signal, which cannot be blocked or ignored: the default action is taken instead.
pub fn force(state: &mut State, tid: i32, info: Info) {
    let pid = state.thread(tid).pid;
    let blocked = state.thread(tid).mask.has(info.signal);
    let handler = lock(&state.process(pid).actions).get(info.signal).handler;
    if blocked || handler <= 1 {
        tracing::debug!(pid, ?info, "killed by a fault");
        state.end_process(pid, ExitStatus::Signaled(info.signal));
    } else if state.thread(tid).pending.add(info).is_err() {
        state.end_process(pid, ExitStatus::Signaled(libc::SIGKILL));
    }
}

/// The signal that a thread takes next, its own before its process's.
pub fn next(state: &mut State, tid: i32) -> Option<i32> {
    let (pid, mask) = (state.thread(tid).pid, state.thread(tid).mask);
    let wanted = SigSet(!mask.0);
    let own = state.thread(tid).pending.first(wanted);
    own.or_else(|| state.process(pid).pending.first(wanted))
}

/// Takes that signal.
pub fn take(state: &mut State, tid: i32, wanted: SigSet) -> Option<Info> {
    let pid = state.thread(tid).pid;
    let own = state.thread(tid).pending.take(wanted);
    own.or_else(|| state.process(pid).pending.take(wanted))
}

/// Whether a signal waits that would be delivered to this thread.
pub fn is_due(state: &mut State, tid: i32) -> bool {
    let (pid, mask) = (state.thread(tid).pid, state.thread(tid).mask);
    let set = state.thread(tid).pending.set().0 | state.process(pid).pending.set().0;
    let actions = state.process(pid).actions.clone();
    let actions = lock(&actions);
    (1..=SIGNALS).any(|signal| set & !mask.0 & bit(signal) != 0 && !actions.ignores(signal))
}

/// Whether a call that the next signal interrupts is started again after its handler.
pub fn restarts(state: &mut State, tid: i32) -> bool {
    let (pid, mask) = (state.thread(tid).pid, state.thread(tid).mask);
    let set = (state.thread(tid).pending.set().0 | state.process(pid).pending.set().0) & !mask.0;
    let actions = state.process(pid).actions.clone();
    let actions = lock(&actions);
    (1..=SIGNALS)
        .filter(|signal| set & bit(*signal) != 0 && !actions.ignores(*signal))
        .all(|signal| actions.get(signal).flags & libc::SA_RESTART as u64 != 0)
}
