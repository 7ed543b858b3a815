//! Ends: exit(2), exit_group(2), deaths by signal. (How a parent hears of them is in `reap`.)

mod calls;
mod reap;

use std::sync::{Arc, PoisonError};

use snaprig_card_platform::Cpu;

use crate::{
    call::Call,
    checkpoint::hold,
    jobs::control,
    kernel::Kernel,
    signal::{Info, send},
    state::{ExitStatus, Process, State, lock},
};

/// A thread ends, on its own host thread (`cpu` is its CPU, if it ever had one).
pub fn end_thread(kernel: &Arc<Kernel>, state: &mut State, tid: i32, cpu: Option<&mut dyn Cpu>) {
    let pid = state.thread(tid).pid;
    if let Some(cpu) = cpu {
        Call::new(kernel, state, tid, cpu).leave_futexes();
    }
    state.futexes.forget(tid);
    hold::holder_ends(state, tid);
    let ran = state.threads.remove(&tid).map(|thread| thread.ran);
    let process = state.process(pid);
    process.ran = process.ran.saturating_add(ran.unwrap_or_default());
    process.threads.retain(|thread| *thread != tid);
    let (last, channel) = (process.threads.is_empty(), process.children);
    let stopper = process
        .stopped_by
        .and_then(|by| state.threads.get(&by))
        .map(|by| by.channel);
    for channel in stopper.into_iter().chain([channel]) {
        state.wake(channel);
    }
    match last {
        true => bury(kernel, state, pid),
        false => control::parked(state, pid),
    }
}

/// The last thread is gone: descriptors and memory go, children are adopted, the parent is told.
fn bury(kernel: &Kernel, state: &mut State, pid: i32) {
    let process = state.process(pid);
    let status = *process.exit.get_or_insert(ExitStatus::Exited(0));
    // What it has open goes now, not when it is waited for; those with whom it shares keep theirs.
    let (files, mm) = (std::mem::take(&mut process.files), process.mm.clone());
    let mut woken = Vec::new();
    if let Some(files) = Arc::into_inner(files) {
        let mut files = files.into_inner().unwrap_or_else(PoisonError::into_inner);
        files.close_all(&mut |channel| woken.push(channel));
    }
    // Its memory goes before its parent asks for its status.
    let runs_in_it = |one: &Process| !one.threads.is_empty() && Arc::ptr_eq(&one.mm, &mm);
    if !state.processes.values().any(runs_in_it) {
        lock(&mm).clear();
    }
    let process = state.process(pid);
    process.is_released = true;
    woken.push(process.released);
    woken.push(process.ending.announce());
    let (parent, exit_signal) = (process.parent, process.exit_signal);
    for channel in woken {
        state.wake(channel);
    }
    let groups = control::groups_around(state, pid);
    leave_children(state, pid);
    tracing::debug!(pid, ?status, "process ended");
    tell_parent(kernel, state, pid, parent, exit_signal, status);
    for (group, was_orphaned) in groups {
        control::orphan(state, group, was_orphaned);
    }
}

/// Children are adopted: by the nearest ancestor that asked for it (prctl(2),
/// PR_SET_CHILD_SUBREAPER), or by the first process; and told, if they asked for that.
fn leave_children(state: &mut State, pid: i32) {
    let adopter = adopter(state, pid);
    let mut orphans = Vec::new();
    for process in state.processes.values_mut() {
        if process.parent == pid {
            process.parent = adopter.unwrap_or(0);
            let has_ended = process.threads.is_empty();
            orphans.push((process.pid, has_ended, process.settings.death_signal));
        }
    }
    let mut adopted_an_end = false;
    for (orphan, has_ended, signal) in orphans {
        match (has_ended, adopter) {
            (true, None) => drop(state.processes.remove(&orphan)),
            (true, Some(_)) => adopted_an_end = true,
            (false, _) if signal > 0 => {
                // A full queue loses it, as on Linux.
                let _ = send::signal(state, orphan, None, Info::sent(signal, (pid, 0), false));
            }
            (false, _) => {}
        }
    }
    if adopted_an_end && let Some(adopter) = adopter {
        let children = state.process(adopter).children;
        state.wake(children);
    }
}

fn adopter(state: &State, pid: i32) -> Option<i32> {
    let mut parent = state.processes.get(&pid)?.parent;
    for _ in 0..state.processes.len() {
        let Some(process) = state.processes.get(&parent) else {
            break;
        };
        if process.settings.is_subreaper && process.exit.is_none() {
            return Some(parent);
        }
        parent = process.parent;
    }
    let init = state.init.filter(|init| *init != pid);
    init.filter(|init| state.processes.contains_key(init))
}

fn tell_parent(
    kernel: &Kernel,
    state: &mut State,
    pid: i32,
    parent: i32,
    exit_signal: i32,
    status: ExitStatus,
) {
    let Some(children) = state.processes.get(&parent).map(|parent| parent.children) else {
        state.processes.remove(&pid);
        state.ended.insert(pid, status);
        kernel.ended.notify_all();
        return;
    };
    let info = state.process(pid).child_info(exit_signal, status.code());
    let actions = state.process(parent).actions.clone();
    // It ends with the tree that it was captured with: whoever would wait for it does so elsewhere.
    let is_held = hold::is_held(state, pid);
    let (disowned, ignored) = {
        let actions = lock(&actions);
        let is_child = exit_signal == libc::SIGCHLD;
        let ignored = actions.get(libc::SIGCHLD).handler == 1;
        let disowned = is_held || is_child && actions.disown_children();
        (disowned, is_child && ignored)
    };
    if disowned {
        state.processes.remove(&pid);
    }
    if exit_signal > 0 && !ignored {
        // A full queue loses the signal, never the status.
        let _ = send::signal(state, parent, None, info);
    }
    state.wake(children);
}
