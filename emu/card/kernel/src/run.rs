//! A guest thread's life, on its host thread.
//!
//! ```text
//!            +--> attend: end? park? deliver a signal --+
//!            |                                           v
//!   start ---+                                     ring 3 (holds a core)
//!            |                                           |
//!            +--- system call, fault, exception, kick <--+
//! ```

use std::sync::{Arc, MutexGuard};

use snaprig_card_driver::clock::monotonic;
use snaprig_card_platform::{Cpu, Exit, PlatformError};

use crate::{
    dispatch, exit, guarded,
    kernel::Kernel,
    mm::Fault,
    park,
    rseq::section,
    signal::{self, Info, deliver, send},
    state::{ExitStatus, State, lock},
};

/// Runs guest thread `tid` until it ends.
pub fn thread(kernel: &Arc<Kernel>, mut tid: i32) {
    if let Err(error) = live(kernel, &mut tid) {
        tracing::error!(%error, tid, "a guest thread cannot run");
        let mut state = kernel.lock();
        let pid = state.thread(tid).pid;
        state.end_process(pid, ExitStatus::Signaled(libc::SIGKILL));
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
    let seat = kernel.cores.seat();
    {
        let mut state = kernel.lock();
        let thread = state.thread(*tid);
        thread.kick = Some(kick.clone());
        thread.seat = Some(seat.id);
    }
    loop {
        let (mut regs, rseq, wanted, urgent) = {
            let state = kernel.lock();
            let Some(mut state) = attend(kernel, state, *tid, &mut *cpu)? else {
                return Ok(());
            };
            let thread = state.thread(*tid);
            if let Some(xstate) = thread.xstate.take() {
                cpu.set_xstate(&xstate)?;
            }
            let urgent = thread.policy.is_urgent();
            (thread.regs, thread.rseq, thread.affinity, urgent)
        };
        let number;
        let (exit, ran) = {
            let core = seat.take(&kick, wanted, urgent);
            number = core.number;
            if rseq.is_elsewhere(number) {
                section::tell_core(&mut kernel.lock(), *tid, number);
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
            section::abort_section(&mut state, *tid);
        }
        match exit {
            Exit::Kicked => {}
            Exit::Syscall => *tid = dispatch::run(kernel, state, *tid, &mut *cpu)?,
            Exit::PageFault {
                address,
                write,
                execute,
            } => {
                page_fault(&mut state, *tid, address, write, execute);
            }
            // Of an address that no memory could be at.
            Exit::Exception { vector: 13, .. } if guarded::give_up(&mut state, *tid) => {}
            Exit::Exception { vector, .. } => {
                let (signal, code) = exception(vector);
                let info = Info::fault(signal, code, regs.rip);
                send::force(&mut state, *tid, info);
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
        if park::must_park(&mut state, tid) {
            state = park::park(kernel, state, tid, cpu)?;
            continue;
        }
        match deliver::next(&mut state, tid, cpu)? {
            deliver::Delivered::Nothing => return Ok(Some(state)),
            deliver::Delivered::Something => {}
        }
    }
}

fn page_fault(state: &mut State, tid: i32, address: u64, write: bool, execute: bool) {
    let pid = state.thread(tid).pid;
    let fault = lock(&state.process(pid).mm).fault(address, write, execute);
    let (signal, code) = match fault {
        Ok(()) => return,
        Err(Fault::Unmapped) => (libc::SIGSEGV, signal::SEGV_MAPERR),
        Err(Fault::Denied) => (libc::SIGSEGV, signal::SEGV_ACCERR),
        Err(Fault::NoPage) => (libc::SIGBUS, signal::BUS_ADRERR),
        Err(Fault::Full) => return out_of_memory(state),
    };
    if guarded::give_up(state, tid) {
        return;
    }
    send::force(state, tid, Info::fault(signal, code, address));
}

/// Somebody has touched more memory than the card has: the process that has most of it ends, as on Linux, whoever it was.
/// Who touched it tries again. The report says who has how much.
fn out_of_memory(state: &mut State) {
    // One that is on its way out takes memory with it.
    let mut processes = state.processes.values();
    if processes.any(|process| process.exit.is_some() && !process.threads.is_empty()) {
        return;
    }
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
    if let Some((_, pid)) = holders.pop() {
        tracing::error!("out of memory: process {pid} is killed; {largest}");
        state.end_process(pid, ExitStatus::Signaled(libc::SIGKILL));
    }
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
