//! How long who was stopped for a capture stays so: until it is over, or, with
//! [`snaprig_wire::checkpoint::HOLD`], until the thread that captured releases them or ends.
//!
//! What must stay true: after a capture that holds, no instruction of another thread of the tree runs,
//! unless it is released; who may have a copy elsewhere does not go on here.

use snaprig_card_driver::wait::Stop;

use crate::{
    call::Call,
    state::{ExitStatus, State},
};

/// The threads that `me` has stopped run on, if it has stopped any.
pub fn let_others_go(state: &mut State, me: i32) {
    if let Some(thread) = state.threads.get_mut(&me) {
        thread.holds = false;
    }
    for process in state.processes.values_mut() {
        if process.stopped_by != Some(me) {
            continue;
        }
        process.stopped_by = None;
        for tid in &process.threads {
            if let Some(thread) = state.threads.get_mut(tid).filter(|_| *tid != me) {
                thread.poke();
            }
        }
    }
}

/// A call of `me` is given up: a capture, maybe. What it holds after one it keeps.
pub fn give_up(state: &mut State, me: i32) {
    if !holds(state, me) {
        let_others_go(state, me);
    }
}

/// The thread ends: what it holds does too.
pub fn holder_ends(state: &mut State, me: i32) {
    if holds(state, me) {
        for pid in held(state, me) {
            state.end_process(pid, ExitStatus::Signaled(libc::SIGKILL));
        }
    }
    let_others_go(state, me);
}

/// Whether thread `tid` of process `pid` is stopped. Once the image is written, who is to end may.
pub fn is_stopped(state: &State, pid: i32, tid: i32) -> bool {
    let process = state.processes.get(&pid);
    process.is_some_and(|process| {
        let is_stopped = process.stopped_by.is_some_and(|by| by != tid);
        is_stopped && (process.exit.is_none() || !is_held(state, pid))
    })
}

/// Whether its image is written, and its end is all that is to come.
pub fn is_held(state: &State, pid: i32) -> bool {
    let process = state.processes.get(&pid);
    let by = process.and_then(|process| process.stopped_by);
    by.is_some_and(|by| holds(state, by))
}

fn holds(state: &State, tid: i32) -> bool {
    state.threads.get(&tid).is_some_and(|thread| thread.holds)
}

/// The processes that `me` has stopped.
fn held(state: &State, me: i32) -> Vec<i32> {
    let processes = state.processes.values();
    let held = processes.filter(|process| process.stopped_by == Some(me));
    held.map(|process| process.pid).collect()
}

impl Call<'_> {
    /// Before a process ends that holds others: waits until nothing of them is left.
    pub fn end_held(&mut self) -> Result<(), Stop> {
        if !self.thread().holds {
            return Ok(());
        }
        let mut missing = false;
        for pid in held(self.state, self.tid) {
            if pid == self.pid {
                continue;
            }
            match self.state.process(pid).threads.is_empty() {
                // Its parent ends too, and will not ask.
                true => drop(self.state.processes.remove(&pid)),
                false => {
                    self.state
                        .end_process(pid, ExitStatus::Signaled(libc::SIGKILL));
                    missing = true;
                }
            }
        }
        match missing {
            true => Err(Stop::wait(self.thread().channel)),
            false => Ok(()),
        }
    }
}
