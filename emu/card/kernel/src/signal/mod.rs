//! Signals: sets, actions, sending and delivery (signal(7)). What a handler finds on its stack is in
//! `frame`, the calls are in `calls`; stopping and going on is in `jobs` beside this folder.

mod calls;
mod frame;

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use snaprig_card_driver::{
    errno::Errno,
    signals::{SIGNALS, SigSet, bit, is_signal},
};
use snaprig_card_platform::{Cpu, PlatformError, xstate};

use self::frame::Frame;
use super::{
    exit, jobs,
    state::{ExitStatus, State, lock},
};

pub(super) const SEGV_MAPERR: i32 = 1;
pub(super) const SEGV_ACCERR: i32 = 2;
pub(super) const BUS_ADRALN: i32 = 1;
pub(super) const BUS_ADRERR: i32 = 2;
pub(super) const FPE_INTDIV: i32 = 1;
pub(super) const FPE_FLTINV: i32 = 7;
pub(super) const ILL_ILLOPN: i32 = 2;
pub(super) const SI_KERNEL: i32 = 0x80;
pub(super) const SI_USER: i32 = 0;
pub(super) const SI_TKILL: i32 = -6;

/// Queued signals of one process or thread; more of a real-time signal are refused (EAGAIN).
const PENDING_MAX: usize = 1024;
const SA_RESTORER: u64 = 0x0400_0000;
/// Flags that are kept of an action (sigaction(2)); SA_EXPOSE_TAGBITS among them.
const SA_KNOWN: u64 = SA_RESTORER
    | 0x800
    | (libc::SA_NOCLDSTOP
        | libc::SA_NOCLDWAIT
        | libc::SA_SIGINFO
        | libc::SA_ONSTACK
        | libc::SA_RESTART
        | libc::SA_NODEFER) as u64
    | libc::SA_RESETHAND as u32 as u64;
/// The alternative stack is given up while a handler runs on it (sigaltstack(2)).
const SS_AUTODISARM: i32 = i32::MIN;
/// Whether a signal stops a process, unless it does something else about it.
pub fn is_stop(signal: i32) -> bool {
    matches!(
        signal,
        libc::SIGSTOP | libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU
    )
}

/// What a signal is about: the first fields of `siginfo_t`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Info {
    /// The signal.
    pub signal: i32,
    /// `si_code`.
    pub code: i32,
    /// Sender, or the child that it is about; a timer's id.
    pub pid: i32,
    /// The sender's user; a timer's overruns.
    pub uid: u32,
    /// `si_status` of SIGCHLD, or `si_value`.
    pub value: i64,
    /// `si_addr` of a fault; `si_utime` of SIGCHLD.
    pub address: u64,
}

impl Info {
    /// A fault at `address`.
    pub fn fault(signal: i32, code: i32, address: u64) -> Self {
        Self {
            signal,
            code,
            address,
            ..Self::default()
        }
    }

    /// From the kernel itself.
    pub fn kernel(signal: i32) -> Self {
        let code = SI_KERNEL;
        Self {
            signal,
            code,
            ..Self::default()
        }
    }

    /// From kill(2) or tkill(2).
    pub fn sent(signal: i32, (pid, uid): (i32, u32), to_thread: bool) -> Self {
        let code = if to_thread { SI_TKILL } else { SI_USER };
        Self {
            signal,
            code,
            pid,
            uid,
            ..Self::default()
        }
    }

    /// `siginfo_t`.
    pub fn siginfo(&self) -> [u8; 128] {
        let mut bytes = [0; 128];
        bytes[..4].copy_from_slice(&self.signal.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.code.to_le_bytes());
        if matches!(
            self.signal,
            libc::SIGSEGV | libc::SIGBUS | libc::SIGFPE | libc::SIGILL | libc::SIGTRAP
        ) && self.code > 0
            && self.code != SI_KERNEL
        {
            bytes[16..24].copy_from_slice(&self.address.to_le_bytes());
        } else {
            bytes[16..20].copy_from_slice(&self.pid.to_le_bytes());
            bytes[20..24].copy_from_slice(&self.uid.to_le_bytes());
            bytes[24..32].copy_from_slice(&self.value.to_le_bytes());
            bytes[32..40].copy_from_slice(&self.address.to_le_bytes());
        }
        bytes
    }

    /// From a `siginfo_t` of a program's own (sigqueue(3)).
    pub fn from_siginfo(signal: i32, bytes: &[u8; 128]) -> Self {
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        Self {
            signal,
            code: word(8) as i32,
            pid: word(16) as i32,
            uid: word(20),
            value: i64::from(word(24)) | i64::from(word(28)) << 32,
            address: 0,
        }
    }
}

/// Signals that have been sent and not delivered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pending(VecDeque<Info>);

impl Pending {
    /// Adds one; standard signals are pending at most once, real-time ones queue.
    pub fn add(&mut self, info: Info) -> Result<(), Errno> {
        let standard = info.signal < 32;
        if standard && self.0.iter().any(|pending| pending.signal == info.signal) {
            return Ok(());
        }
        if self.0.len() >= PENDING_MAX {
            return Err(Errno::EAGAIN);
        }
        self.0.push_back(info);
        Ok(())
    }

    /// Whether signals of an image may be pending.
    pub fn is_sound(&self) -> bool {
        self.0.len() <= PENDING_MAX && self.0.iter().all(|info| is_signal(info.signal))
    }

    /// The set of what is pending.
    pub fn set(&self) -> SigSet {
        SigSet(self.0.iter().fold(0, |set, info| set | bit(info.signal)))
    }

    /// Takes the lowest signal that is in `wanted`.
    pub fn take(&mut self, wanted: SigSet) -> Option<Info> {
        let (index, _) = self
            .0
            .iter()
            .enumerate()
            .filter(|(_, info)| wanted.has(info.signal))
            .min_by_key(|(index, info)| (info.signal, *index))?;
        self.0.remove(index)
    }

    /// The lowest signal that is in `wanted`.
    pub fn first(&self, wanted: SigSet) -> Option<i32> {
        let set = self.set().0 & wanted.0;
        (set != 0).then(|| set.trailing_zeros() as i32 + 1)
    }

    /// Forgets the signals that are in `unwanted`.
    pub fn discard(&mut self, unwanted: SigSet) {
        self.0.retain(|info| !unwanted.has(info.signal));
    }
}

/// What one signal does (`struct sigaction` as the kernel has it).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Action {
    /// SIG_DFL (0), SIG_IGN (1) or an address.
    pub handler: u64,
    /// `SA_*`.
    pub flags: u64,
    /// Where a handler returns to.
    pub restorer: u64,
    /// Blocked while the handler runs.
    pub mask: u64,
}

/// What each signal does, in order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Actions(Vec<Action>);

impl Default for Actions {
    fn default() -> Self {
        Self(vec![Action::default(); SIGNALS as usize])
    }
}

impl Actions {
    /// Whether actions of an image are all there.
    pub fn is_sound(&self) -> bool {
        self.0.len() == SIGNALS as usize
    }

    /// What `signal` does.
    pub fn get(&self, signal: i32) -> Action {
        self.0.get(signal as usize - 1).copied().unwrap_or_default()
    }

    /// Handlers back to default, ignored ones stay (execve(2)).
    pub fn reset_handlers(&mut self) {
        for action in &mut self.0 {
            if action.handler > 1 {
                *action = Action::default();
            }
        }
    }

    fn set(&mut self, signal: i32, action: Action) {
        self.0[signal as usize - 1] = action;
    }

    /// Whether `signal` is ignored, as it is said or by default.
    pub fn ignores(&self, signal: i32) -> bool {
        let by_default = matches!(
            signal,
            libc::SIGCHLD | libc::SIGURG | libc::SIGWINCH | libc::SIGCONT
        );
        match self.get(signal).handler {
            0 => by_default,
            handler => handler == 1,
        }
    }

    /// Whether a child that ends is not waited for (wait(2), NOTES).
    pub fn disown_children(&self) -> bool {
        let action = self.get(libc::SIGCHLD);
        action.handler == 1 || action.flags & libc::SA_NOCLDWAIT as u64 != 0
    }
}

/// sigaltstack(2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AltStack {
    /// Lowest address.
    pub start: u64,
    /// Bytes; 0: none.
    pub bytes: u64,
    /// SS_AUTODISARM, and whether SS_ONSTACK was asked for, which says nothing.
    pub flags: i32,
}

impl AltStack {
    /// Whether a thread with this stack pointer is on it, as far as that matters.
    fn holds(&self, pointer: u64) -> bool {
        let disarms = self.flags & SS_AUTODISARM != 0;
        !disarms && pointer > self.start && pointer - self.start <= self.bytes
    }

    /// `stack_t`, for a thread with this stack pointer.
    fn words(&self, pointer: u64) -> [u64; 3] {
        let state = match self.bytes {
            0 => libc::SS_DISABLE,
            _ if self.holds(pointer) => libc::SS_ONSTACK,
            _ => 0,
        };
        let flags = (state | self.flags & SS_AUTODISARM) as u32;
        [self.start, flags.into(), self.bytes]
    }
}

/// Sends a signal to a process, or to one thread of it.
pub fn send(state: &mut State, pid: i32, tid: Option<i32>, info: Info) -> Result<(), Errno> {
    let process = state.processes.get_mut(&pid).ok_or(Errno::ESRCH)?;
    if process.exit.is_some() {
        return Ok(());
    }
    if info.signal == libc::SIGKILL {
        exit::end_process(state, pid, ExitStatus::Signaled(libc::SIGKILL));
        return Ok(());
    }
    jobs::signal_sent(state, pid, info.signal);
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
        exit::end_process(state, pid, ExitStatus::Signaled(info.signal));
    } else if state.thread(tid).pending.add(info).is_err() {
        exit::end_process(state, pid, ExitStatus::Signaled(libc::SIGKILL));
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

/// What [`deliver`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivered {
    /// There was nothing to do.
    Nothing,
    /// The thread's registers or its process's fate changed.
    Something,
}

/// Delivers the next signal, if there is one.
pub fn deliver(state: &mut State, tid: i32, cpu: &mut dyn Cpu) -> Result<Delivered, PlatformError> {
    jobs::stop_if_due(state, tid);
    let (pid, mask) = (state.thread(tid).pid, state.thread(tid).mask);
    if jobs::is_stopped(state, pid) {
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
        exit::end_process(state, pid, ExitStatus::Signaled(info.signal));
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
        Err(_) => exit::end_process(state, pid, ExitStatus::Signaled(libc::SIGSEGV)),
    }
    Ok(Delivered::Something)
}
