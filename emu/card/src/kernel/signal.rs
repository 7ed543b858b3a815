//! Signals: sets, actions, delivery in Linux's own frame layout, and the calls (signal(7)).

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::{
    call::Call,
    device::UserMemory,
    errno::Errno,
    exit,
    mm::AddressSpace,
    state::{ExitStatus, State, lock},
    wait::{Stop, SysResult, Wait},
};
use crate::{
    platform::{Cpu, PlatformError, Regs, USER_END},
    xstate,
};

pub(super) const SEGV_MAPERR: i32 = 1;
pub(super) const SEGV_ACCERR: i32 = 2;
pub(super) const BUS_ADRALN: i32 = 1;
pub(super) const BUS_ADRERR: i32 = 2;
pub(super) const FPE_INTDIV: i32 = 1;
pub(super) const FPE_FLTINV: i32 = 7;
pub(super) const ILL_ILLOPN: i32 = 2;
pub(super) const SI_KERNEL: i32 = 0x80;
const SI_USER: i32 = 0;
const SI_TKILL: i32 = -6;
const CLD_EXITED: i32 = 1;
const CLD_KILLED: i32 = 2;

const SIGNALS: i32 = 64;
/// Queued signals of one process or thread; more of a real-time signal are refused (EAGAIN).
const PENDING_MAX: usize = 1024;
/// The red zone below the stack pointer that a leaf function may use (x86-64 ABI).
const RED_ZONE: u64 = 128;
const SA_RESTORER: u64 = 0x0400_0000;
/// Bytes of a signal set, as calls are told them.
pub const SIGSET_BYTES: u64 = 8;

/// A set of signals, bit `n - 1` for signal `n`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SigSet(pub u64);

impl SigSet {
    /// Whether `signal` is in it.
    pub fn has(self, signal: i32) -> bool {
        self.0 & bit(signal) != 0
    }

    /// Without SIGKILL and SIGSTOP, which nobody can block.
    pub fn blockable(self) -> Self {
        Self(self.0 & !(bit(libc::SIGKILL) | bit(libc::SIGSTOP)))
    }
}

fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// What a signal is about: the first fields of `siginfo_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Info {
    /// The signal.
    pub signal: i32,
    /// `si_code`.
    pub code: i32,
    /// Sender, for SI_USER, SI_TKILL and SIGCHLD.
    pub pid: i32,
    /// `si_status` of SIGCHLD, or `si_value`.
    pub value: i64,
    /// `si_addr` of a fault.
    pub address: u64,
}

impl Info {
    /// A fault at `address`.
    pub fn fault(signal: i32, code: i32, address: u64) -> Self {
        Self {
            signal,
            code,
            pid: 0,
            value: 0,
            address,
        }
    }

    /// From kill(2) or tkill(2).
    pub fn sent(signal: i32, by: i32, to_thread: bool) -> Self {
        let code = if to_thread { SI_TKILL } else { SI_USER };
        Self {
            signal,
            code,
            pid: by,
            value: 0,
            address: 0,
        }
    }

    /// A child's end.
    pub fn child(signal: i32, child: i32, status: ExitStatus) -> Self {
        let (code, value) = match status {
            ExitStatus::Exited(code) => (CLD_EXITED, code.into()),
            ExitStatus::Signaled(signal) => (CLD_KILLED, signal.into()),
        };
        Self {
            signal,
            code,
            pid: child,
            value,
            address: 0,
        }
    }

    /// `siginfo_t`.
    pub fn siginfo(&self) -> [u8; 128] {
        let mut bytes = [0; 128];
        bytes[..4].copy_from_slice(&self.signal.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.code.to_le_bytes());
        if matches!(
            self.signal,
            libc::SIGSEGV | libc::SIGBUS | libc::SIGFPE | libc::SIGILL
        ) && self.code > 0
        {
            bytes[16..24].copy_from_slice(&self.address.to_le_bytes());
        } else {
            bytes[16..20].copy_from_slice(&self.pid.to_le_bytes());
            bytes[24..32].copy_from_slice(&self.value.to_le_bytes());
        }
        bytes
    }
}

/// Whether there is such a signal.
pub fn is_signal(signal: i32) -> bool {
    (1..=SIGNALS).contains(&signal)
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

    fn ignores(&self, signal: i32) -> bool {
        let by_default = matches!(
            signal,
            libc::SIGCHLD
                | libc::SIGURG
                | libc::SIGWINCH
                | libc::SIGCONT
                | libc::SIGTSTP
                | libc::SIGTTIN
                | libc::SIGTTOU
                | libc::SIGSTOP
        );
        match self.get(signal).handler {
            0 => by_default,
            handler => handler == 1,
        }
    }
}

/// sigaltstack(2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AltStack {
    /// Lowest address.
    pub start: u64,
    /// Bytes; 0: none.
    pub bytes: u64,
}

impl AltStack {
    fn holds(&self, address: u64) -> bool {
        address.wrapping_sub(self.start) < self.bytes
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
    let ignored = lock(&process.actions).ignores(info.signal);
    let threads = process.threads.clone();
    let waited_for = threads.iter().any(|tid| {
        state
            .threads
            .get(tid)
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
    let (pid, mask) = (state.thread(tid).pid, state.thread(tid).mask);
    let wanted = SigSet(!mask.0);
    let own = state.thread(tid).pending.take(wanted);
    let Some(info) = own.or_else(|| state.process(pid).pending.take(wanted)) else {
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
        }
        Err(_) => exit::end_process(state, pid, ExitStatus::Signaled(libc::SIGSEGV)),
    }
    Ok(Delivered::Something)
}

/// What goes onto the stack for a handler: `struct rt_sigframe` (arch/x86/include/asm/sigframe.h).
///
/// ```text
/// frame + 0    return address (restorer)
/// frame + 8    ucontext, 304 bytes: flags, link, stack, registers, mask
/// frame + 312  siginfo, 128 bytes
/// above        extended state, 64-byte aligned, then FP_XSTATE_MAGIC2
/// ```
struct Frame<'a> {
    regs: Regs,
    mask: SigSet,
    alt: AltStack,
    info: &'a Info,
}

const UCONTEXT: u64 = 8;
const GREGS: usize = 40;
const UC_MASK: usize = 296;
const UC_BYTES: usize = 304;
const SIGINFO: u64 = UCONTEXT + UC_BYTES as u64;
const FRAME_BYTES: u64 = SIGINFO + 128;
const FP_XSTATE_MAGIC1: u32 = 0x4650_5853;
const FP_XSTATE_MAGIC2: u32 = 0x4650_5845;
/// `fpstate_sw_bytes` in the legacy region.
const SW_BYTES: usize = 464;
const UC_FLAGS: u64 = 0b111;

impl Frame<'_> {
    fn push(&self, mm: &mut AddressSpace, action: &Action, extended: &[u8]) -> Result<Regs, Errno> {
        let on_alt = action.flags & libc::SA_ONSTACK as u64 != 0
            && self.alt.bytes > 0
            && !self.alt.holds(self.regs.rsp);
        let top = if on_alt {
            self.alt.start + self.alt.bytes
        } else {
            self.regs.rsp.wrapping_sub(RED_ZONE)
        };
        let fp = top.wrapping_sub(extended.len() as u64 + 4) & !63;
        // As at a function's entry: 16-byte aligned but for the return address.
        let frame = (fp.wrapping_sub(FRAME_BYTES) & !15).wrapping_sub(8);
        if action.flags & SA_RESTORER == 0 {
            return Err(Errno::EFAULT);
        }
        mm.write(fp, &with_sw_bytes(extended))?;
        mm.write(frame, &action.restorer.to_le_bytes())?;
        mm.write(frame + UCONTEXT, &self.ucontext(fp))?;
        mm.write(frame + SIGINFO, &self.info.siginfo())?;
        Ok(Regs {
            rip: action.handler,
            rsp: frame,
            rax: 0,
            rdi: self.info.signal as u64,
            rsi: frame + SIGINFO,
            rdx: frame + UCONTEXT,
            rflags: 0x202,
            ..self.regs
        })
    }

    fn ucontext(&self, fp: u64) -> [u8; UC_BYTES] {
        let mut uc = [0; UC_BYTES];
        let mut put = |at: usize, value: u64| uc[at..at + 8].copy_from_slice(&value.to_le_bytes());
        put(0, UC_FLAGS);
        put(16, self.alt.start);
        put(
            24,
            if self.alt.bytes == 0 {
                libc::SS_DISABLE as u64
            } else {
                0
            },
        );
        put(32, self.alt.bytes);
        for (index, value) in gregs(&self.regs).into_iter().enumerate() {
            put(GREGS + index * 8, value);
        }
        // cs, gs, fs, ss: the user's selectors.
        put(GREGS + 18 * 8, 0x33 | 0x2b << 48);
        put(GREGS + 21 * 8, self.mask.0);
        put(GREGS + 22 * 8, self.info.address);
        put(GREGS + 23 * 8, fp);
        put(UC_MASK, self.mask.0);
        uc
    }
}

fn with_sw_bytes(extended: &[u8]) -> Vec<u8> {
    let mut fp = extended.to_vec();
    let size = fp.len() as u32;
    fp[SW_BYTES..SW_BYTES + 4].copy_from_slice(&FP_XSTATE_MAGIC1.to_le_bytes());
    fp[SW_BYTES + 4..SW_BYTES + 8].copy_from_slice(&(size + 4).to_le_bytes());
    fp[SW_BYTES + 8..SW_BYTES + 16].copy_from_slice(&0x2e7_u64.to_le_bytes());
    fp[SW_BYTES + 16..SW_BYTES + 20].copy_from_slice(&size.to_le_bytes());
    fp.extend_from_slice(&FP_XSTATE_MAGIC2.to_le_bytes());
    fp
}

fn gregs(r: &Regs) -> [u64; 18] {
    [
        r.r8, r.r9, r.r10, r.r11, r.r12, r.r13, r.r14, r.r15, r.rdi, r.rsi, r.rbp, r.rbx, r.rdx,
        r.rax, r.rcx, r.rsp, r.rip, r.rflags,
    ]
}

impl Call<'_> {
    /// rt_sigreturn(2): everything back to what the frame says, as far as a program may say it.
    pub fn rt_sigreturn(&mut self) -> SysResult {
        let frame = self.thread().regs.rsp.wrapping_sub(8);
        let mut uc = [0; UC_BYTES];
        self.read(frame + UCONTEXT, &mut uc)?;
        let get = |at: usize| u64::from_le_bytes(uc[at..at + 8].try_into().expect("8 bytes"));
        let g = |index: usize| get(GREGS + index * 8);
        let fp = g(23);
        if fp != 0 {
            let mut extended = vec![0; xstate::bytes()];
            self.read(fp, &mut extended)?;
            extended[SW_BYTES..512].fill(0);
            xstate::check(&extended).map_err(|_| Errno::EFAULT)?;
            self.thread().xstate = Some(extended);
        }
        let old = self.thread().regs;
        let regs = Regs {
            r8: g(0),
            r9: g(1),
            r10: g(2),
            r11: g(3),
            r12: g(4),
            r13: g(5),
            r14: g(6),
            r15: g(7),
            rdi: g(8),
            rsi: g(9),
            rbp: g(10),
            rbx: g(11),
            rdx: g(12),
            rax: g(13),
            rcx: g(14),
            rsp: g(15),
            rip: g(16),
            rflags: g(17),
            ..old
        };
        if regs.rip >= USER_END {
            return Err(Errno::EFAULT.into());
        }
        self.thread().regs = regs;
        self.thread().mask = SigSet(get(UC_MASK)).blockable();
        // The result is what the interrupted code had in rax.
        Ok(regs.rax)
    }

    /// rt_sigaction(2).
    pub fn rt_sigaction(&mut self, signal: i32, new: u64, old: u64, bytes: u64) -> SysResult {
        let changeable = signal != libc::SIGKILL && signal != libc::SIGSTOP;
        if bytes != SIGSET_BYTES || !(1..=SIGNALS).contains(&signal) || new != 0 && !changeable {
            return Err(Errno::EINVAL.into());
        }
        let actions = self.process().actions.clone();
        let before = lock(&actions).get(signal);
        if new != 0 {
            let [handler, flags, restorer, mask] = self.read_words(new)?;
            lock(&actions).set(
                signal,
                Action {
                    handler,
                    flags,
                    restorer,
                    mask,
                },
            );
        }
        if old != 0 {
            self.write_words(
                old,
                &[before.handler, before.flags, before.restorer, before.mask],
            )?;
        }
        Ok(0)
    }

    /// rt_sigprocmask(2).
    pub fn rt_sigprocmask(&mut self, how: i32, new: u64, old: u64, bytes: u64) -> SysResult {
        if bytes != SIGSET_BYTES {
            return Err(Errno::EINVAL.into());
        }
        let before = self.thread().mask;
        if new != 0 {
            let [set] = self.read_words(new)?;
            let mask = match how {
                libc::SIG_BLOCK => before.0 | set,
                libc::SIG_UNBLOCK => before.0 & !set,
                libc::SIG_SETMASK => set,
                _ => return Err(Errno::EINVAL.into()),
            };
            self.thread().mask = SigSet(mask).blockable();
        }
        if old != 0 {
            self.write_words(old, &[before.0])?;
        }
        Ok(0)
    }

    /// rt_sigpending(2).
    pub fn rt_sigpending(&mut self, to: u64, bytes: u64) -> SysResult {
        if bytes > SIGSET_BYTES {
            return Err(Errno::EINVAL.into());
        }
        let set = self.thread().pending.set().0 | self.process().pending.set().0;
        let mask = self.thread().mask.0;
        self.write(to, &(set & mask).to_le_bytes()[..bytes as usize])?;
        Ok(0)
    }

    /// rt_sigsuspend(2), and pause(2) with no mask.
    pub fn rt_sigsuspend(&mut self, mask: Option<u64>) -> SysResult {
        if let Some(mask) = mask {
            self.wait_with_mask(mask)?;
        }
        // Only a signal ends it.
        Err(Stop::Wait(Wait::default()))
    }

    /// The call waits with another mask; the thread gets its own back when the call ends, or after
    /// the handler that interrupts it.
    fn wait_with_mask(&mut self, mask: u64) -> Result<(), Stop> {
        if self.thread().restore_mask.is_none() {
            let [set] = self.read_words(mask)?;
            let before = self.thread().mask;
            self.thread().restore_mask = Some(before);
            self.thread().mask = SigSet(set).blockable();
        }
        Ok(())
    }

    /// The masks of ppoll(2), pselect(2), epoll_pwait(2) and epoll_pwait2(2).
    pub fn poll_with_mask(&mut self, number: u64, a: [u64; 6]) -> Result<(), Stop> {
        let (mask, bytes) = match number as i64 {
            libc::SYS_ppoll => (a[3], a[4]),
            libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 => (a[4], a[5]),
            libc::SYS_pselect6 if a[5] != 0 => {
                let [mask, bytes] = self.read_words(a[5])?;
                (mask, bytes)
            }
            _ => return Ok(()),
        };
        match (mask, bytes) {
            (0, _) => Ok(()),
            (_, SIGSET_BYTES) => self.wait_with_mask(mask),
            _ => Err(Errno::EINVAL.into()),
        }
    }

    /// rt_sigtimedwait(2).
    pub fn rt_sigtimedwait(&mut self, set: u64, info: u64, timeout: u64) -> SysResult {
        let [wanted] = self.read_words(set)?;
        let wanted = SigSet(wanted).blockable();
        let own = self.thread().pending.take(wanted);
        if let Some(found) = own.or_else(|| self.process().pending.take(wanted)) {
            if info != 0 {
                self.write(info, &found.siginfo())?;
            }
            return Ok(found.signal as u64);
        }
        let deadline = self.relative_deadline(timeout)?;
        if deadline.is_some_and(|deadline| deadline <= super::now()) {
            return Err(Errno::EAGAIN.into());
        }
        Err(Stop::Wait(Wait {
            channels: Vec::new(),
            deadline,
        }))
    }

    /// sigaltstack(2).
    pub fn sigaltstack(&mut self, new: u64, old: u64) -> SysResult {
        let before = self.thread().alt_stack;
        let active = before.holds(self.thread().regs.rsp);
        if old != 0 {
            let flags = match (before.bytes, active) {
                (0, _) => libc::SS_DISABLE,
                (_, true) => libc::SS_ONSTACK,
                _ => 0,
            };
            self.write_words(old, &[before.start, flags as u64, before.bytes])?;
        }
        if new != 0 {
            let [start, flags, bytes] = self.read_words(new)?;
            if active {
                return Err(Errno::EPERM.into());
            }
            let disable = flags as i32 & libc::SS_DISABLE != 0;
            if !disable && bytes < libc::MINSIGSTKSZ as u64 {
                return Err(Errno::ENOMEM.into());
            }
            let stack = if disable {
                AltStack::default()
            } else {
                AltStack { start, bytes }
            };
            self.thread().alt_stack = stack;
        }
        Ok(0)
    }

    /// kill(2): to a process, to the caller's group (0), or to everybody else (-1).
    pub fn kill(&mut self, pid: i32, signal: i32) -> SysResult {
        let me = self.pid;
        let group = self.process().group.0;
        let targets: Vec<i32> = match pid {
            1.. => vec![pid],
            0 => self.members(group),
            -1 => self
                .state
                .processes
                .keys()
                .copied()
                .filter(|pid| *pid != me)
                .collect(),
            _ => self.members(pid.checked_neg().ok_or(Errno::ESRCH)?),
        };
        self.send_to(&targets, None, signal)
    }

    fn members(&self, group: i32) -> Vec<i32> {
        let in_group = |process: &&super::state::Process| process.group.0 == group;
        self.state
            .processes
            .values()
            .filter(in_group)
            .map(|process| process.pid)
            .collect()
    }

    /// tgkill(2), and tkill(2) with no process.
    pub fn tgkill(&mut self, pid: Option<i32>, tid: i32, signal: i32) -> SysResult {
        let owner = self
            .state
            .threads
            .get(&tid)
            .map(|thread| thread.pid)
            .ok_or(Errno::ESRCH)?;
        if pid.is_some_and(|pid| pid != owner) {
            return Err(Errno::ESRCH.into());
        }
        self.send_to(&[owner], Some(tid), signal)
    }

    fn send_to(&mut self, targets: &[i32], tid: Option<i32>, signal: i32) -> SysResult {
        if !(0..=SIGNALS).contains(&signal) {
            return Err(Errno::EINVAL.into());
        }
        let mut found = false;
        for pid in targets {
            if !self.state.processes.contains_key(pid) {
                continue;
            }
            found = true;
            if signal != 0 {
                let info = Info::sent(signal, self.pid, tid.is_some());
                send(self.state, *pid, tid, info)?;
            }
        }
        if found {
            Ok(0)
        } else {
            Err(Errno::ESRCH.into())
        }
    }
}
