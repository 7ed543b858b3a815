//! Delivery: a handler is about to run, or a process ends.

use snaprig_card_driver::signals::{SigSet, bit};
use snaprig_card_platform::{Cpu, PlatformError, xstate};

use super::{Action, AltStack, SS_AUTODISARM, frame::Frame, send::take};
use crate::{
    jobs::control,
    state::{ExitStatus, State, lock},
};

/// What [`next`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivered {
    /// There was nothing to do.
    Nothing,
    /// The thread's registers or its process's fate changed.
    Something,
}

/// Delivers the next signal, if there is one.
pub fn next(state: &mut State, tid: i32, cpu: &mut dyn Cpu) -> Result<Delivered, PlatformError> {
    control::stop_if_due(state, tid);
    let (pid, mask) = (state.thread(tid).pid, state.thread(tid).mask);
    if control::is_stopped(state, pid) {
        return Ok(Delivered::Something);
    }
    let Some(info) = take(state, tid, SigSet(!mask.0)) else {
        if let Some(mask) = state.thread(tid).restore_mask.take() {
            state.thread(tid).mask = mask;
        }
        return Ok(Delivered::Nothing);
    };
    let actions = state.process(pid).actions.clone();
    let mut actions = lock(&actions);
    if actions.ignores(info.signal) {
        return Ok(Delivered::Something);
    }
    let action = actions.get(info.signal);
    if action.handler == 0 {
        state.end_process(pid, ExitStatus::Signaled(info.signal));
        return Ok(Delivered::Something);
    }
    if action.flags & libc::SA_RESETHAND as u64 != 0 {
        actions.set(info.signal, Action::default());
    }
    let extended = match state.thread(tid).xstate.take() {
        Some(saved) => saved,
        None => cpu.xstate()?,
    };
    let mm = state.process(pid).mm.clone();
    let thread = state.thread(tid);
    let old_mask = thread.restore_mask.take().unwrap_or(thread.mask);
    let frame = Frame {
        regs: thread.regs,
        mask: old_mask,
        alt: thread.alt_stack,
        info: &info,
    };
    match frame.push(&mut lock(&mm), &action, &extended) {
        Ok(regs) => {
            thread.regs = regs;
            thread.xstate = Some(xstate::initial());
            let own = if action.flags & libc::SA_NODEFER as u64 == 0 {
                bit(info.signal)
            } else {
                0
            };
            thread.mask = SigSet(thread.mask.0 | action.mask | own).blockable();
            thread.deadline = None;
            if thread.alt_stack.flags & SS_AUTODISARM != 0 {
                thread.alt_stack = AltStack::default();
            }
        }
        Err(_) => state.end_process(pid, ExitStatus::Signaled(libc::SIGSEGV)),
    }
    Ok(Delivered::Something)
}
