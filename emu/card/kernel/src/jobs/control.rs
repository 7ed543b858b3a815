//! Processes that stop and go on.
//!
//! A process is stopped when a thread of it takes a stopping signal; its threads park wherever they
//! are (`park`), and when the last of them has, the parent is told. A call that waits goes on
//! waiting afterwards.

use snaprig_card_driver::signals::SigSet;

use super::{Job, StateChange};
use crate::{
    signal::{self, Info, send},
    state::{Process, State, lock},
};

fn stops() -> SigSet {
    let all = [libc::SIGSTOP, libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];
    SigSet(all.iter().fold(0, |set, signal| set | 1 << (signal - 1)))
}

/// Whether the process is stopped.
pub fn is_stopped(state: &mut State, pid: i32) -> bool {
    state.process(pid).job.stopped.is_some()
}

/// A signal is sent to a process: one that stops and SIGCONT undo each other, and SIGCONT lets it go
/// on whatever else it does (signal(7)).
pub fn signal_sent(state: &mut State, pid: i32, signal: i32) {
    if signal::is_stop(signal) {
        send::discard(state, pid, SigSet(1 << (libc::SIGCONT - 1)));
    }
    if signal != libc::SIGCONT {
        return;
    }
    send::discard(state, pid, stops());
    let process = state.process(pid);
    if process.job.stopped.take().is_none() {
        return;
    }
    process.job.is_told = false;
    process.job.news = Some(StateChange::Continued);
    for tid in process.threads.clone() {
        state.thread(tid).wakeup.notify_all();
    }
    tell_parent(state, pid, StateChange::Continued);
}

/// Stops the process if that is what the thread's next signal does.
pub fn stop_if_due(state: &mut State, tid: i32) {
    let pid = state.thread(tid).pid;
    while let Some(signal) = send::next(state, tid) {
        let is_default = lock(&state.process(pid).actions).get(signal).handler == 0;
        if !signal::is_stop(signal) || !is_default || is_stopped(state, pid) {
            return;
        }
        send::take(state, tid, SigSet(1 << (signal - 1)));
        // Nobody would let it go on (credentials(7)).
        let group = state.process(pid).group;
        if signal != libc::SIGSTOP && is_orphaned(state, group) {
            continue;
        }
        let process = state.process(pid);
        process.job = Job {
            stopped: Some(signal),
            ..Job::default()
        };
        for tid in process.threads.clone() {
            state.thread(tid).poke();
        }
        return;
    }
}

/// A thread has parked: the last of a stopped process tells the parent.
pub fn parked(state: &mut State, pid: i32) {
    let process = state.process(pid);
    let Some(signal) = process.job.stopped.filter(|_| !process.job.is_told) else {
        return;
    };
    let threads = process.threads.clone();
    if threads.iter().all(|tid| state.thread(*tid).parked) {
        let process = state.process(pid);
        process.job.is_told = true;
        process.job.news = Some(StateChange::Stopped(signal));
        tell_parent(state, pid, StateChange::Stopped(signal));
    }
}

fn tell_parent(state: &mut State, pid: i32, news: StateChange) {
    let process = state.process(pid);
    let parent = process.parent;
    let info = process.child_info(libc::SIGCHLD, news.code());
    let Some(parent) = state.processes.get(&parent) else {
        return;
    };
    let (parent, children) = (parent.pid, parent.children);
    let action = lock(&state.process(parent).actions).get(libc::SIGCHLD);
    if action.flags & libc::SA_NOCLDSTOP as u64 == 0 {
        // A full queue loses the signal, never the status.
        let _ = send::signal(state, parent, None, info);
    }
    state.wake(children);
}

/// Whether no member of a group has a parent outside of the group in its session.
fn is_orphaned(state: &State, (group, session): (i32, i32)) -> bool {
    !state.processes.values().any(|process| {
        process.group.0 == group
            && !process.threads.is_empty()
            && state
                .processes
                .get(&process.parent)
                .is_some_and(|parent| parent.group.0 != group && parent.group.1 == session)
    })
}

/// A process has ended or lost its parent: if that leaves its group orphaned, and some of it is
/// stopped, the group is told and goes on (setpgid(2), exit(3)).
pub fn orphan(state: &mut State, group: (i32, i32), was_orphaned: bool) {
    if was_orphaned || !is_orphaned(state, group) {
        return;
    }
    let members = members(state, group.0);
    let stopped = members.iter().any(|pid| is_stopped(state, *pid));
    for pid in members.into_iter().filter(|_| stopped) {
        // A full queue loses the first; the second is not refused what matters of it.
        let _ = send::signal(state, pid, None, Info::kernel(libc::SIGHUP));
        let _ = send::signal(state, pid, None, Info::kernel(libc::SIGCONT));
    }
}

/// Groups that the end of a process may orphan: its own and its children's, and whether they are.
pub fn groups_around(state: &State, pid: i32) -> Vec<((i32, i32), bool)> {
    let mut groups: Vec<_> = state
        .processes
        .values()
        .filter(|process| process.pid == pid || process.parent == pid)
        .map(|process| process.group)
        .collect();
    groups.sort_unstable();
    groups.dedup();
    let is_orphaned = |group| is_orphaned(state, group);
    groups
        .into_iter()
        .map(|group| (group, is_orphaned(group)))
        .collect()
}

/// The processes of a group.
pub fn members(state: &State, group: i32) -> Vec<i32> {
    let in_group = |process: &&Process| process.group.0 == group;
    let members = state.processes.values().filter(in_group);
    members.map(|process| process.pid).collect()
}
