//! System calls: from registers to a function and back, with waiting, restarting and interruption.
//!
//! ```text
//!   entry --> dispatch --+-- value or errno ----------------> rax, back to ring 3
//!                ^       '-- wait --> sleep --+-- woken: dispatch again
//!                |                            +-- signal: EINTR, or started again after it
//!                '----------------------------+-- stop: parks here, goes on waiting
//! ```

use std::sync::{Arc, MutexGuard};

use snaprig_card_driver::{
    clock::monotonic,
    errno::Errno,
    file::Cx,
    wait::{Stop, SysResult},
};
use snaprig_card_fs::{
    FsCall, ProcInfo, Topology,
    calls::{asks_for_readiness, syscall as file_call},
};
use snaprig_card_platform::{Cpu, PlatformError};

use crate::{
    call::Call,
    checkpoint::{self, hold},
    futex,
    jobs::control,
    kernel::Kernel,
    park,
    signal::{self, send},
    state::{Process, State, Thread, lock},
    syscalls::{self, Support},
    time,
};

/// `syscall` is two bytes long.
const SYSCALL_BYTES: u64 = 2;
/// Calls that make processes and threads.
const FORKS: [i64; 4] = [
    libc::SYS_fork,
    libc::SYS_vfork,
    libc::SYS_clone,
    libc::SYS_clone3,
];

/// Runs the call that the thread's registers ask for. Returns the thread's id, which execve(2) may
/// change.
pub fn run(
    kernel: &Arc<Kernel>,
    mut state: MutexGuard<'_, State>,
    tid: i32,
    cpu: &mut dyn Cpu,
) -> Result<i32, PlatformError> {
    let regs = state.thread(tid).regs;
    let number = regs.rax;
    let args = [regs.rdi, regs.rsi, regs.rdx, regs.r10, regs.r8, regs.r9];
    state.thread(tid).call = Some(number);
    if is_fork(number) && is_ended_or_interrupted(&mut state, tid, number) {
        return Ok(tid);
    }
    loop {
        let mut call = Call::new(kernel, &mut state, tid, cpu);
        let result = call.dispatch(number, args);
        let tid = call.tid;
        tracing::trace!(tid, number, ?args, ?result, "call");
        if result == Ok(0) && missed_a_signal(&mut state, tid, number) {
            interrupt(&mut state, tid, number);
            return Ok(tid);
        }
        match result {
            Ok(value) => return Ok(finish(&mut state, tid, value)),
            Err(Stop::Errno(errno)) => {
                return Ok(finish(&mut state, tid, -i64::from(errno.0) as u64));
            }
            Err(Stop::Wait(wait)) => state.thread(tid).waiting = Some(wait),
        }
        loop {
            if must_end(&mut state, tid) {
                abandon(&mut state, tid);
                return Ok(tid);
            }
            control::stop_if_due(&mut state, tid);
            if park::must_park(&mut state, tid) {
                state = park::park(kernel, state, tid, cpu)?;
                // What it waited for may have happened meanwhile.
                state.thread(tid).waiting = None;
                continue;
            }
            // A child that runs in the caller's memory is waited for, whatever comes (vfork(2)); and who
            // has been chosen for a wake-up, or for a lock, while it was stopped has it.
            let goes_on = state.thread(tid).vfork_child.is_some() || state.futexes.is_woken(tid);
            if !goes_on && send::is_due(&mut state, tid) {
                interrupt(&mut state, tid, number);
                return Ok(tid);
            }
            break;
        }
        state = park::sleep(kernel, state, tid);
    }
}

fn is_fork(number: u64) -> bool {
    FORKS.contains(&(number as i64))
}

fn must_end(state: &mut State, tid: i32) -> bool {
    let pid = state.thread(tid).pid;
    state.process(pid).exit.is_some() || state.thread(tid).must_end
}

/// Who is killed, or has a signal to take, together with its group makes no child that has not got it: the call is made
/// again after the signal (fork(2), ERESTARTNOINTR of Linux), unless the child is there and is waited for (vfork(2)).
fn is_ended_or_interrupted(state: &mut State, tid: i32, number: u64) -> bool {
    if state.thread(tid).vfork_child.is_some() {
        return false;
    }
    if must_end(state, tid) {
        abandon(state, tid);
        return true;
    }
    let is_due = send::is_due(state, tid);
    if is_due {
        interrupt(state, tid, number);
    }
    is_due
}

fn finish(state: &mut State, tid: i32, value: u64) -> i32 {
    let thread = state.thread(tid);
    thread.regs.rax = value;
    thread.call = None;
    thread.deadline = None;
    thread.progress = 0;
    thread.waiting = None;
    if let Some(mask) = thread.restore_mask.take() {
        thread.mask = mask;
    }
    tid
}

/// A signal ends the wait: the call returns what it has done; if that is nothing it fails with
/// EINTR, or is made again after the handler.
fn interrupt(state: &mut State, tid: i32, number: u64) {
    time::tell_time_left(state, tid, number);
    let progress = state.thread(tid).progress;
    // What a capture has written, or a restore has read, cannot be taken back.
    let request = state.thread(tid).regs.rsi as u32;
    let is_checkpoint = number as i64 == libc::SYS_ioctl && checkpoint::is_request(request);
    // Who waits for a lock goes on waiting, whatever SA_RESTART says (futex(2), FUTEX_LOCK_PI).
    let is_lock = number as i64 == libc::SYS_futex && futex::is_lock(state.thread(tid).regs.rsi);
    // A socket that is to listen outside of the card will in a moment: listen(2) knows no EINTR.
    let is_listen = number as i64 == libc::SYS_listen;
    let restart = is_lock
        || is_listen
        || is_fork(number)
        || !is_checkpoint && may_restart(number) && send::restarts(state, tid);
    abandon(state, tid);
    let thread = state.thread(tid);
    if progress > 0 {
        thread.regs.rax = progress as u64;
    } else if restart {
        thread.regs.rip -= SYSCALL_BYTES;
        thread.regs.rax = number;
    } else {
        thread.regs.rax = -i64::from(libc::EINTR) as u64;
    }
}

/// The call will not be tried again: whoever keeps a request of it forgets it.
fn abandon(state: &mut State, tid: i32) {
    state.futexes.forget(tid);
    let thread = state.thread(tid);
    thread.call = None;
    thread.deadline = None;
    thread.progress = 0;
    thread.waiting = None;
    let pid = thread.pid;
    let files = state.process(pid).files.clone();
    for open in lock(&files).files() {
        open.file.abandon(tid);
    }
    let mut woken = Vec::new();
    state
        .file_waits
        .abandon(tid, &mut |channel| woken.push(channel));
    for channel in woken {
        state.wake(channel);
    }
    hold::give_up(state, tid);
}

/// Whether the call has found nothing, but a signal that only its own mask lets through: then it is
/// interrupted even if it does not wait.
fn missed_a_signal(state: &mut State, tid: i32, number: u64) -> bool {
    matches!(number as i64, libc::SYS_ppoll | libc::SYS_pselect6)
        && state.thread(tid).restore_mask.is_some()
        && send::is_due(state, tid)
}

/// Calls that fail with EINTR whatever SA_RESTART says (signal(7)).
fn may_restart(number: u64) -> bool {
    !matches!(
        number as i64,
        libc::SYS_pause
            | libc::SYS_rt_sigsuspend
            | libc::SYS_rt_sigtimedwait
            | libc::SYS_nanosleep
            | libc::SYS_clock_nanosleep
            | libc::SYS_poll
            | libc::SYS_ppoll
            | libc::SYS_select
            | libc::SYS_pselect6
            | libc::SYS_epoll_wait
            | libc::SYS_epoll_pwait
            | libc::SYS_epoll_pwait2
    )
}

impl Call<'_> {
    fn dispatch(&mut self, number: u64, a: [u64; 6]) -> SysResult {
        let known = syscalls::find(number);
        if known.is_none_or(|call| call.support == Support::Absent) {
            return self.not_there(number);
        }
        if let Some(result) = self.checkpoint(number, a) {
            return result;
        }
        if let Some(result) = self.memory_call(number, a) {
            return result;
        }
        if let Some(result) = self.info_call(number, a) {
            return result;
        }
        let int = |i: usize| a[i] as i32;
        match number as i64 {
            libc::SYS_execve => self.execve(a[0], a[1], a[2]),
            libc::SYS_clone => self.clone(a),
            libc::SYS_clone3 => self.clone3(a[0], a[1]),
            libc::SYS_fork => self.fork(false),
            libc::SYS_vfork => self.fork(true),
            libc::SYS_exit => self.exit(int(0)),
            libc::SYS_exit_group => self.exit_group(int(0)),
            libc::SYS_wait4 => self.wait4(int(0), a[1], int(2), a[3]),
            libc::SYS_waitid => self.waitid(a[0] as u32, int(1), a[2], int(3), a[4]),
            libc::SYS_futex => self.futex(a),
            libc::SYS_rt_sigaction => self.rt_sigaction(int(0), a[1], a[2], a[3]),
            libc::SYS_rt_sigprocmask => self.rt_sigprocmask(int(0), a[1], a[2], a[3]),
            libc::SYS_rt_sigreturn => self.rt_sigreturn(),
            libc::SYS_rt_sigpending => self.rt_sigpending(a[0], a[1]),
            libc::SYS_rt_sigsuspend => self.rt_sigsuspend(Some((a[0], a[1]))),
            libc::SYS_pause => self.rt_sigsuspend(None),
            libc::SYS_rt_sigtimedwait => self.rt_sigtimedwait(a[0], a[1], a[2], a[3]),
            libc::SYS_signalfd => self.signalfd(int(0), a[1], a[2], 0),
            libc::SYS_signalfd4 => self.signalfd(int(0), a[1], a[2], int(3)),
            libc::SYS_pidfd_open => self.pidfd_open(int(0), int(1)),
            libc::SYS_pidfd_send_signal => {
                self.pidfd_send_signal(int(0), int(1), a[2], a[3] as u32)
            }
            libc::SYS_sigaltstack => self.sigaltstack(a[0], a[1]),
            libc::SYS_kill => self.kill(int(0), int(1)),
            libc::SYS_tkill => self.tgkill(None, int(0), int(1)),
            libc::SYS_tgkill => self.tgkill(Some(int(0)), int(1), int(2)),
            libc::SYS_rt_sigqueueinfo => self.sigqueueinfo(int(0), None, int(1), a[2]),
            libc::SYS_rt_tgsigqueueinfo => self.sigqueueinfo(int(0), Some(int(1)), int(2), a[3]),
            libc::SYS_clock_gettime => self.clock_gettime(int(0), a[1]),
            libc::SYS_clock_getres => self.clock_getres(int(0), a[1]),
            libc::SYS_gettimeofday => self.gettimeofday(a[0]),
            libc::SYS_time => self.time(a[0]),
            libc::SYS_alarm => self.alarm(a[0] as u32),
            libc::SYS_setitimer => self.setitimer(int(0), a[1], a[2]),
            libc::SYS_getitimer => self.getitimer(int(0), a[1]),
            libc::SYS_timer_create => self.timer_create(int(0), a[1], a[2]),
            libc::SYS_timer_settime => self.timer_settime(int(0), int(1), a[2], a[3]),
            libc::SYS_timer_gettime => self.timer_gettime(int(0), a[1]),
            libc::SYS_timer_getoverrun => self.timer_getoverrun(int(0)),
            libc::SYS_timer_delete => self.timer_delete(int(0)),
            libc::SYS_nanosleep => self.nanosleep(libc::CLOCK_MONOTONIC, 0, a[0]),
            libc::SYS_clock_nanosleep => self.nanosleep(int(0), int(1), a[2]),
            _ => {
                self.poll_with_mask(number, a)?;
                self.file_call(number, a)
            }
        }
    }

    fn file_call(&mut self, number: u64, a: [u64; 6]) -> SysResult {
        if asks_for_readiness(number) {
            self.tell_signalfds();
        }
        if number as i64 == libc::SYS_read
            && let Some(result) = self.read_signals(a[0] as i32, a[1], a[2])
        {
            return result;
        }
        let topology = self.kernel.topology;
        let identity = self.identity();
        let mut deadline = self.thread().deadline;
        let mut progress = self.thread().progress;
        let State {
            processes,
            threads,
            vfs,
            sockets,
            file_waits,
            ..
        } = &mut *self.state;
        let (process, thread) = (&processes[&self.pid], &threads[&self.tid]);
        let proc = Proc {
            process,
            thread,
            topology,
        };
        let limit_nofile = process.limits.nofile();
        let (mm, files, context) = (
            process.mm.clone(),
            process.files.clone(),
            process.fs.clone(),
        );
        let mut sigpipe = false;
        let mut woken = Vec::new();
        let result = {
            let waker = self.kernel.waker();
            let mut wake = |channel| woken.push(channel);
            let cx = Cx {
                tid: self.tid,
                pid: self.pid,
                identity,
                memory: &mut *lock(&mm),
                wake: &mut wake,
                waker: &waker,
                nonblock: false,
                append: false,
                now: monotonic(),
            };
            let mut call = FsCall {
                cx,
                files: &mut lock(&files),
                fs: &mut lock(&context),
                vfs,
                sockets,
                waits: file_waits,
                limit_nofile,
                proc: &proc,
                deadline: &mut deadline,
                progress: &mut progress,
                sigpipe: &mut sigpipe,
            };
            file_call(&mut call, number, a)
        };
        self.thread().deadline = deadline;
        self.thread().progress = progress;
        for channel in woken {
            self.state.wake(channel);
        }
        if sigpipe {
            let info = signal::Info::sent(libc::SIGPIPE, (self.pid, 0), false);
            // If its queue is full it learns of it by the errno.
            let _ = send::signal(self.state, self.pid, Some(self.tid), info);
        }
        result.unwrap_or_else(|| self.not_there(number))
    }

    /// ENOSYS, logged once for each call.
    fn not_there(&mut self, number: u64) -> SysResult {
        // Numbers that are no calls are all one.
        let known = syscalls::find(number);
        if self
            .state
            .unknown_calls
            .insert(known.map(|call| call.number))
        {
            let name = known.map_or("", |call| call.name);
            tracing::warn!(number, name, pid = self.pid, "system call not implemented");
        }
        Err(Errno::ENOSYS.into())
    }
}

/// What /proc/self says of a process.
struct Proc<'a> {
    process: &'a Process,
    thread: &'a Thread,
    topology: Topology,
}

impl ProcInfo for Proc<'_> {
    fn exe(&self) -> String {
        self.process.exe.clone()
    }

    fn cmdline(&self) -> Vec<u8> {
        let arguments = self.process.argv.iter();
        arguments
            .flat_map(|argument| argument.iter().copied().chain([0]))
            .collect()
    }

    fn status(&self) -> String {
        let Process { pid, parent, .. } = self.process;
        format!(
            "Name:\t{}\nState:\tR (running)\nTgid:\t{pid}\nPid:\t{pid}\nPPid:\t{parent}\n\
             Uid:\t0\t0\t0\t0\nGid:\t0\t0\t0\t0\nThreads:\t{}\n",
            self.thread.name,
            self.process.threads.len()
        )
    }

    fn stat(&self) -> String {
        let Process { pid, parent, .. } = self.process;
        format!(
            "{pid} ({}) R {parent} {pid} {pid} 0 -1 0\n",
            self.thread.name
        )
    }

    fn topology(&self) -> Topology {
        self.topology
    }
}
