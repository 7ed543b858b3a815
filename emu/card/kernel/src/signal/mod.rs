//! Signals (signal(7)): what is pending, and what each signal does.
//!
//! | file | what it is |
//! |---|---|
//! | `send` | sending; which signal a thread takes next |
//! | `deliver`, `frame` | delivery; what a handler finds on its stack |
//! | `sigreturn`, `calls` | the way back from a handler; the other calls |
//!
//! Stopping and going on is in `jobs`, beside this folder.

mod calls;
pub mod deliver;
mod frame;
pub mod send;
mod sigreturn;

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use snaprig_card_driver::{
    errno::Errno,
    signals::{SIGNALS, SigSet, bit, is_signal},
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
