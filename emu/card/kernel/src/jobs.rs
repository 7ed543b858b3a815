//! Job control: processes that stop and go on, their groups and sessions (credentials(7), setpgid(2),
//! setsid(2)).
//!
//! A process is stopped when a thread of it takes a stopping signal; its threads park wherever they
//! are (`run::park`), and when the last of them has, the parent is told. A call that waits goes on
//! waiting afterwards.

use serde::{Deserialize, Serialize};
use snaprig_card_driver::{
    errno::Errno,
    signals::SigSet,
    wait::{Stop, SysResult},
};

use super::{
    call::Call,
    exit,
    signal::{self, Info},
    state::{Process, State, lock},
};

const CLD_STOPPED: i32 = 5;
const CLD_CONTINUED: i32 = 6;

/// What job control knows of a process.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Job {
    /// The signal that has stopped it.
    pub stopped: Option<i32>,
    /// What its parent may learn by wait(2).
    pub news: Option<News>,
    /// All of its threads have stopped, and its parent has been told.
    is_told: bool,
}

/// What wait(2) says of a child that lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum News {
    /// It has stopped, by this signal.
    Stopped(i32),
    /// It goes on.
    Continued,
}

impl News {
    /// As wait(2) reports it.
    pub fn wait_status(self) -> i32 {
        match self {
            Self::Stopped(signal) => signal << 8 | 0x7f,
            Self::Continued => 0xffff,
        }
    }

    /// `si_code` and `si_status`.
    pub fn code(self) -> (i32, i32) {
        match self {
            Self::Stopped(signal) => (CLD_STOPPED, signal),
            Self::Continued => (CLD_CONTINUED, libc::SIGCONT),
        }
    }
}

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
        signal::discard(state, pid, SigSet(1 << (libc::SIGCONT - 1)));
    }
    if signal != libc::SIGCONT {
        return;
    }
    signal::discard(state, pid, stops());
    let process = state.process(pid);
    if process.job.stopped.take().is_none() {
        return;
    }
    process.job.is_told = false;
    process.job.news = Some(News::Continued);
    for tid in process.threads.clone() {
        state.thread(tid).wakeup.notify_all();
    }
    tell_parent(state, pid, News::Continued);
}

/// Stops the process if that is what the thread's next signal does.
pub fn stop_if_due(state: &mut State, tid: i32) {
    let pid = state.thread(tid).pid;
    while let Some(signal) = signal::next(state, tid) {
        let is_default = lock(&state.process(pid).actions).get(signal).handler == 0;
        if !signal::is_stop(signal) || !is_default || is_stopped(state, pid) {
            return;
        }
        signal::take(state, tid, SigSet(1 << (signal - 1)));
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
        process.job.news = Some(News::Stopped(signal));
        tell_parent(state, pid, News::Stopped(signal));
    }
}

fn tell_parent(state: &mut State, pid: i32, news: News) {
    let process = state.process(pid);
    let parent = process.parent;
    let info = exit::child_info(process, libc::SIGCHLD, news.code());
    let Some(parent) = state.processes.get(&parent) else {
        return;
    };
    let (parent, children) = (parent.pid, parent.children);
    let action = lock(&state.process(parent).actions).get(libc::SIGCHLD);
    if action.flags & libc::SA_NOCLDSTOP as u64 == 0 {
        // A full queue loses the signal, never the status.
        let _ = signal::send(state, parent, None, info);
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
        let _ = signal::send(state, pid, None, Info::kernel(libc::SIGHUP));
        let _ = signal::send(state, pid, None, Info::kernel(libc::SIGCONT));
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

impl Call<'_> {
    /// getpgid(2) and getsid(2): a process's group and session.
    pub fn group_of(&mut self, pid: i32) -> Result<(i32, i32), Stop> {
        let pid = if pid == 0 { self.pid } else { pid };
        Ok(self.state.processes.get(&pid).ok_or(Errno::ESRCH)?.group)
    }

    /// setpgid(2).
    pub fn setpgid(&mut self, pid: i32, group: i32) -> SysResult {
        let me = self.pid;
        let pid = if pid == 0 { me } else { pid };
        let group = if group == 0 { pid } else { group };
        if group < 0 {
            return Err(Errno::EINVAL.into());
        }
        let Some(process) = self.state.processes.get(&pid) else {
            // A thread that leads no process.
            return Err(match self.state.threads.contains_key(&pid) {
                true => Errno::EINVAL,
                false => Errno::ESRCH,
            }
            .into());
        };
        let session = self.state.processes[&me].group.1;
        if process.parent == me {
            if process.group.1 != session {
                return Err(Errno::EPERM.into());
            }
            if process.has_executed {
                return Err(Errno::EACCES.into());
            }
        } else if pid != me {
            return Err(Errno::ESRCH.into());
        }
        let mut others = self.state.processes.values();
        let exists = group == pid || others.any(|other| other.group == (group, session));
        if process.group.1 == pid || !exists {
            return Err(Errno::EPERM.into());
        }
        self.state.process(pid).group.0 = group;
        Ok(0)
    }

    /// setsid(2).
    pub fn setsid(&mut self) -> SysResult {
        let pid = self.pid;
        if !members(self.state, pid).is_empty() {
            return Err(Errno::EPERM.into());
        }
        self.process().group = (pid, pid);
        Ok(pid as u64)
    }
}
