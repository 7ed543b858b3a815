//! Ends: exit(2), exit_group(2), deaths by signal, and wait4(2).

use std::{
    sync::{Arc, PoisonError},
    time::Duration,
};

use super::{
    Kernel,
    call::Call,
    errno::Errno,
    sched,
    signal::{self, Info},
    state::{ExitStatus, Process, State, lock},
    wait::{Stop, SysResult},
};
use crate::platform::Cpu;

/// Lets every thread of the process end; it is gone when the last one is.
pub fn end_process(state: &mut State, pid: i32, status: ExitStatus) {
    let Some(process) = state.processes.get_mut(&pid) else {
        return;
    };
    process.exit.get_or_insert(status);
    for tid in process.threads.clone() {
        state.thread(tid).poke();
    }
}

/// Lets every other thread of the process end (execve(2)): they see `ends_alone`.
pub fn end_threads_but(state: &mut State, pid: i32, survivor: i32) {
    for tid in state.process(pid).threads.clone() {
        if tid != survivor {
            let thread = state.thread(tid);
            thread.must_end = true;
            thread.poke();
        }
    }
}

/// A thread ends, on its own host thread (`cpu` is its CPU, if it ever had one).
pub fn end_thread(kernel: &Arc<Kernel>, state: &mut State, tid: i32, cpu: Option<&mut dyn Cpu>) {
    let pid = state.thread(tid).pid;
    if let Some(cpu) = cpu {
        Call::new(kernel, state, tid, cpu).leave_futexes();
    }
    state.futexes.forget(tid);
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
    if last {
        bury(kernel, state, pid);
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
    let init = state.init.filter(|init| *init != pid);
    let mut orphan_zombies = Vec::new();
    for process in state
        .processes
        .values_mut()
        .filter(|process| process.parent == pid)
    {
        process.parent = init.unwrap_or(0);
        if process.threads.is_empty() {
            orphan_zombies.push(process.pid);
        }
    }
    if init.is_none() {
        for zombie in orphan_zombies {
            state.processes.remove(&zombie);
        }
    }
    tracing::debug!(pid, ?status, "process ended");
    match state.processes.get(&parent).map(|parent| parent.children) {
        None => {
            state.processes.remove(&pid);
            state.ended.insert(pid, status);
            kernel.ended.notify_all();
        }
        Some(children) => {
            let ignored = lock(&state.process(parent).actions)
                .get(libc::SIGCHLD)
                .handler
                == 1;
            if ignored {
                state.processes.remove(&pid);
            } else if exit_signal > 0 {
                // A full queue loses the signal, never the status.
                let _ = signal::send(state, parent, None, Info::child(exit_signal, pid, status));
            }
            state.wake(children);
        }
    }
}

impl Call<'_> {
    /// exit(2): this thread only.
    pub fn exit(&mut self, code: i32) -> SysResult {
        if self.process().threads.len() == 1 {
            return self.exit_group(code);
        }
        self.thread().must_end = true;
        Ok(0)
    }

    /// exit_group(2).
    pub fn exit_group(&mut self, code: i32) -> SysResult {
        end_process(self.state, self.pid, ExitStatus::Exited(code & 0xff));
        Ok(0)
    }

    /// wait4(2).
    pub fn wait4(&mut self, pid: i32, status: u64, options: i32, usage: u64) -> SysResult {
        match self.find_child(pid, options & libc::WNOHANG != 0)? {
            None => Ok(0),
            Some((child, ended)) => {
                if status != 0 {
                    self.write(status, &ended.wait_status().to_le_bytes())?;
                }
                let ran = self.waited_for(child);
                if usage != 0 {
                    self.write(usage, &sched::usage(ran))?;
                }
                Ok(child as u64)
            }
        }
    }

    /// waitid(2).
    pub fn waitid(&mut self, kind: u32, id: i32, info: u64, options: i32) -> SysResult {
        let mut nonblock = false;
        let pid = match kind {
            libc::P_ALL => -1,
            libc::P_PIDFD => {
                let pid;
                (pid, nonblock) = self.process_of(id)?;
                // 0 would be the caller's group.
                if pid == 0 {
                    return Err(Errno::ECHILD.into());
                }
                pid
            }
            libc::P_PID => id,
            libc::P_PGID if id == 0 => 0,
            libc::P_PGID => -id,
            _ => return Err(Errno::EINVAL.into()),
        };
        if options & libc::WEXITED == 0 {
            return Err(Errno::EINVAL.into());
        }
        let no_hang = options & libc::WNOHANG != 0;
        let found = self.find_child(pid, no_hang || nonblock)?;
        if found.is_none() && !no_hang {
            return Err(Errno::EAGAIN.into());
        }
        if info != 0 {
            let mut bytes = [0; 128];
            if let Some((child, ended)) = found {
                bytes = Info::child(libc::SIGCHLD, child, ended).siginfo();
            }
            self.write(info, &bytes)?;
        }
        if let Some((child, _)) = found
            && options & libc::WNOWAIT == 0
        {
            self.waited_for(child);
        }
        Ok(0)
    }

    /// An ended child is gone for good; its processor time, which counts for its parent now.
    fn waited_for(&mut self, child: i32) -> Duration {
        let child = self.state.processes.remove(&child);
        let ran = child.map_or(Duration::ZERO, |child| {
            child.ran.saturating_add(child.children_ran)
        });
        let process = self.process();
        process.children_ran = process.children_ran.saturating_add(ran);
        ran
    }

    fn find_child(&mut self, pid: i32, no_hang: bool) -> Result<Option<(i32, ExitStatus)>, Stop> {
        let (me, group) = (self.pid, self.process().group.0);
        let wanted = |process: &&Process| {
            process.parent == me
                && match pid {
                    -1 => true,
                    0 => process.group.0 == group,
                    1.. => process.pid == pid,
                    _ => Some(process.group.0) == pid.checked_neg(),
                }
        };
        let mut any = false;
        for process in self.state.processes.values().filter(wanted) {
            any = true;
            if let (Some(status), true) = (process.exit, process.threads.is_empty()) {
                return Ok(Some((process.pid, status)));
            }
        }
        match (any, no_hang) {
            (false, _) => Err(Errno::ECHILD.into()),
            (true, true) => Ok(None),
            (true, false) => Err(Stop::wait(self.process().children)),
        }
    }
}
