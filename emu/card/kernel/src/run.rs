//! A guest thread's life, on its host thread.
//!
//! ```text
//!            +--> attend: end? park? deliver a signal --+
//!            |                                           v
//!   start ---+                                     ring 3 (holds a core)
//!            |                                           |
//!            +--- system call, fault, exception, kick <--+
//! ```

use std::sync::{Arc, MutexGuard, PoisonError};

use snaprig_card_driver::clock::monotonic;
use snaprig_card_platform::{Cpu, Exit, PlatformError};

use super::{
    Kernel, call, checkpoint, exit, jobs,
    mm::Fault,
    rseq,
    signal::{self, Info},
    state::{ExitStatus, State, lock},
};

/// Runs guest thread `tid` until it ends.
pub fn thread(kernel: &Arc<Kernel>, mut tid: i32) {
    if let Err(error) = live(kernel, &mut tid) {
        tracing::error!(%error, tid, "a guest thread cannot run");
        let mut state = kernel.lock();
        let pid = state.thread(tid).pid;
        exit::end_process(&mut state, pid, ExitStatus::Signaled(libc::SIGKILL));
        exit::end_thread(kernel, &mut state, tid, None);
    }
}

/// `tid` is the thread's id at any time: execve(2) may change it.
fn live(kernel: &Arc<Kernel>, tid: &mut i32) -> Result<(), PlatformError> {
    let space = {
        let mut state = kernel.lock();
        let pid = state.thread(*tid).pid;
        lock(&state.process(pid).mm).space()
    };
    let mut cpu = kernel.platform.new_cpu(space)?;
    let kick = cpu.kicker();
    kernel.lock().thread(*tid).kick = Some(kick.clone());
    let mut number = 0;
    loop {
        let (mut regs, rseq, wanted) = {
            let state = kernel.lock();
            let Some(mut state) = attend(kernel, state, *tid, &mut *cpu)? else {
                return Ok(());
            };
            let thread = state.thread(*tid);
            if let Some(xstate) = thread.xstate.take() {
                cpu.set_xstate(&xstate)?;
            }
            (thread.regs, thread.rseq, thread.affinity)
        };
        let (exit, ran) = {
            let core = kernel.cores.take(kick.clone(), wanted, number);
            number = core.number;
            if rseq.is_elsewhere(number) {
                rseq::tell_core(&mut kernel.lock(), *tid, number);
            }
            let start = monotonic();
            (cpu.run(&mut regs)?, monotonic().saturating_sub(start))
        };
        let mut state = kernel.lock();
        let thread = state.thread(*tid);
        thread.regs = regs;
        thread.core = number;
        thread.ran = thread.ran.saturating_add(ran);
        if exit != Exit::Syscall {
            rseq::abort_section(&mut state, *tid);
        }
        match exit {
            Exit::Kicked => {}
            Exit::Syscall => *tid = call::run(kernel, state, *tid, &mut *cpu)?,
            Exit::PageFault {
                address,
                write,
                execute,
            } => {
                page_fault(&mut state, *tid, address, write, execute);
            }
            Exit::Exception { vector, .. } => {
                let (signal, code) = exception(vector);
                let info = Info::fault(signal, code, regs.rip);
                signal::force(&mut state, *tid, info);
            }
        }
    }
}

/// Does what the kernel wants of the thread before it runs on. `None`: it has ended.
pub fn attend<'a>(
    kernel: &'a Arc<Kernel>,
    mut state: MutexGuard<'a, State>,
    tid: i32,
    cpu: &mut dyn Cpu,
) -> Result<Option<MutexGuard<'a, State>>, PlatformError> {
    loop {
        let pid = state.thread(tid).pid;
        if state.process(pid).exit.is_some() || state.thread(tid).must_end {
            exit::end_thread(kernel, &mut state, tid, Some(cpu));
            return Ok(None);
        }
        if must_park(&mut state, tid) {
            state = park(state, tid, cpu)?;
            continue;
        }
        match signal::deliver(&mut state, tid, cpu)? {
            signal::Delivered::Nothing => return Ok(Some(state)),
            signal::Delivered::Something => {}
        }
    }
}

/// Whether a signal or another thread has stopped this one's process.
pub fn must_park(state: &mut State, tid: i32) -> bool {
    let pid = state.thread(tid).pid;
    state.process(pid).job.stopped.is_some() || checkpoint::is_stopped(state, pid, tid)
}

/// Saves the extended state and waits until the process goes on. Even if it is killed: until then its
/// memory stays as it is.
pub fn park<'a>(
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
    jobs::parked(&mut state, pid);
    let wakeup = state.thread(tid).wakeup.clone();
    while must_park(&mut state, tid) {
        state = wakeup.wait(state).unwrap_or_else(PoisonError::into_inner);
    }
    state.thread(tid).parked = false;
    Ok(state)
}

/// Waits until the thread is woken, or its deadline.
pub fn sleep<'a>(mut state: MutexGuard<'a, State>, tid: i32) -> MutexGuard<'a, State> {
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

fn page_fault(state: &mut State, tid: i32, address: u64, write: bool, execute: bool) {
    let pid = state.thread(tid).pid;
    let fault = lock(&state.process(pid).mm).fault(address, write, execute);
    let (signal, code) = match fault {
        Ok(()) => return,
        Err(Fault::Unmapped) => (libc::SIGSEGV, signal::SEGV_MAPERR),
        Err(Fault::Denied) => (libc::SIGSEGV, signal::SEGV_ACCERR),
        Err(Fault::NoPage) => (libc::SIGBUS, signal::BUS_ADRERR),
        Err(Fault::Full) => return out_of_memory(state, pid),
    };
    signal::force(state, tid, Info::fault(signal, code, address));
}

/// Ends a process that touched more memory than the card has. The report says who has how much.
fn out_of_memory(state: &mut State, pid: i32) {
    let mut holders: Vec<_> = state
        .processes
        .values()
        .map(|process| (lock(&process.mm).resident_bytes() >> 10, process.pid))
        .collect();
    holders.sort_unstable();
    let largest: Vec<_> = holders
        .iter()
        .rev()
        .take(5)
        .map(|(kib, pid)| format!("process {pid}: {kib} KiB"))
        .collect();
    let largest = largest.join(", ");
    tracing::error!("out of memory: process {pid} is killed; {largest}");
    exit::end_process(state, pid, ExitStatus::Signaled(libc::SIGKILL));
}

/// Signal and `si_code` for an exception, as Linux has them (arch/x86/kernel/traps.c).
fn exception(vector: u8) -> (i32, i32) {
    match vector {
        0 => (libc::SIGFPE, signal::FPE_INTDIV),
        1 | 3 => (libc::SIGTRAP, signal::SI_KERNEL),
        6 => (libc::SIGILL, signal::ILL_ILLOPN),
        16 | 19 => (libc::SIGFPE, signal::FPE_FLTINV),
        17 => (libc::SIGBUS, signal::BUS_ADRALN),
        _ => (libc::SIGSEGV, signal::SI_KERNEL),
    }
}
