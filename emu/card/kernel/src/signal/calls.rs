//! The calls of signal(7).

use snaprig_card_driver::{
    clock::monotonic,
    errno::Errno,
    signals::{SIGNALS, SIGSET_BYTES, SigSet, bit},
    wait::{Stop, SysResult, Wait},
};

use super::{Action, AltStack, Info, SA_KNOWN, SI_TKILL, SS_AUTODISARM, send};
use crate::{call::Call, jobs::control, state::lock};

impl Call<'_> {
    /// rt_sigaction(2).
    pub fn rt_sigaction(&mut self, signal: i32, new: u64, old: u64, bytes: u64) -> SysResult {
        if bytes != SIGSET_BYTES {
            return Err(Errno::EINVAL.into());
        }
        let words: Option<[u64; 4]> = match new {
            0 => None,
            new => Some(self.read_words(new)?),
        };
        let changeable = signal != libc::SIGKILL && signal != libc::SIGSTOP;
        if !(1..=SIGNALS).contains(&signal) || words.is_some() && !changeable {
            return Err(Errno::EINVAL.into());
        }
        let actions = self.process().actions.clone();
        let before = lock(&actions).get(signal);
        if let Some([handler, flags, restorer, mask]) = words {
            let action = Action {
                handler,
                flags: flags & SA_KNOWN,
                restorer,
                mask: SigSet(mask).blockable().0,
            };
            lock(&actions).set(signal, action);
            // What is ignored from now on is not pending (sigaction(2)).
            if lock(&actions).ignores(signal) {
                send::discard(self.state, self.pid, SigSet(bit(signal)));
            }
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
    pub fn rt_sigsuspend(&mut self, mask: Option<(u64, u64)>) -> SysResult {
        match mask {
            Some((mask, SIGSET_BYTES)) => self.wait_with_mask(mask)?,
            Some(_) => return Err(Errno::EINVAL.into()),
            None => {}
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
    pub fn rt_sigtimedwait(&mut self, set: u64, info: u64, timeout: u64, bytes: u64) -> SysResult {
        if bytes != SIGSET_BYTES {
            return Err(Errno::EINVAL.into());
        }
        let [wanted] = self.read_words(set)?;
        let deadline = self.relative_deadline(timeout)?;
        let wanted = SigSet(wanted).blockable();
        if let Some(found) = send::take(self.state, self.tid, wanted) {
            if info != 0 {
                self.write(info, &found.siginfo())?;
            }
            return Ok(found.signal as u64);
        }
        if deadline.is_some_and(|deadline| deadline <= monotonic()) {
            return Err(Errno::EAGAIN.into());
        }
        Err(Stop::Wait(Wait {
            channels: Vec::new(),
            deadline,
        }))
    }

    /// sigaltstack(2).
    pub fn sigaltstack(&mut self, new: u64, old: u64) -> SysResult {
        let words: Option<[u64; 3]> = match new {
            0 => None,
            new => Some(self.read_words(new)?),
        };
        let pointer = self.thread().regs.rsp;
        let before = self.thread().alt_stack.words(pointer);
        if let Some(words) = words {
            self.set_alt_stack(words, pointer)?;
        }
        if old != 0 {
            self.write_words(old, &before)?;
        }
        Ok(0)
    }

    /// Takes a `stack_t` for the alternative stack of a thread with this stack pointer.
    pub(super) fn set_alt_stack(&mut self, words: [u64; 3], pointer: u64) -> Result<(), Errno> {
        let [start, flags, bytes] = words;
        let flags = flags as i32;
        if self.thread().alt_stack.holds(pointer) {
            return Err(Errno::EPERM);
        }
        let mode = flags & !SS_AUTODISARM;
        if ![0, libc::SS_DISABLE, libc::SS_ONSTACK].contains(&mode) {
            return Err(Errno::EINVAL);
        }
        let stack = match mode {
            libc::SS_DISABLE => AltStack {
                flags,
                ..AltStack::default()
            },
            _ => AltStack {
                start,
                bytes,
                flags,
            },
        };
        if mode != libc::SS_DISABLE
            && bytes < libc::MINSIGSTKSZ as u64
            && stack != self.thread().alt_stack
        {
            return Err(Errno::ENOMEM);
        }
        self.thread().alt_stack = stack;
        Ok(())
    }

    /// Who a signal of the caller's is from: process and user.
    fn sender(&mut self) -> (i32, u32) {
        (self.pid, self.process().credentials.uid.real)
    }

    /// kill(2): to a process, to the caller's group (0), or to everybody else (-1).
    pub fn kill(&mut self, pid: i32, signal: i32) -> SysResult {
        let (me, init) = (self.pid, self.state.init);
        let group = self.process().group.0;
        let targets: Vec<i32> = match pid {
            1.. => vec![pid],
            0 => control::members(self.state, group),
            -1 => self
                .state
                .processes
                .keys()
                .copied()
                .filter(|pid| *pid != me && Some(*pid) != init)
                .collect(),
            _ => control::members(self.state, pid.checked_neg().ok_or(Errno::ESRCH)?),
        };
        let info = Info::sent(signal, self.sender(), false);
        self.send_to(&targets, None, info)
    }

    /// rt_sigqueueinfo(2), and rt_tgsigqueueinfo(2) with a thread.
    pub fn sigqueueinfo(
        &mut self,
        pid: i32,
        thread: Option<i32>,
        signal: i32,
        at: u64,
    ) -> SysResult {
        let info = self.read_siginfo(signal, at)?;
        if thread.is_some_and(|tid| tid <= 0 || pid <= 0) {
            return Err(Errno::EINVAL.into());
        }
        let to_self = match thread {
            Some(tid) => tid == self.tid,
            None => pid == self.pid,
        };
        self.check_forged(&info, to_self)?;
        match thread {
            Some(tid) => self.send_to_thread(Some(pid), tid, info),
            None => self.send_to(&[pid], None, info),
        }
    }

    /// A `siginfo_t` of the program's own.
    pub fn read_siginfo(&mut self, signal: i32, at: u64) -> Result<Info, Stop> {
        let mut bytes = [0; 128];
        self.read(at, &mut bytes)?;
        Ok(Info::from_siginfo(signal, &bytes))
    }

    /// Nobody else is told that a signal is from the kernel, or from kill(2), which it is not.
    pub fn check_forged(&self, info: &Info, to_self: bool) -> Result<(), Errno> {
        match !to_self && (info.code >= 0 || info.code == SI_TKILL) {
            true => Err(Errno::EPERM),
            false => Ok(()),
        }
    }

    /// tgkill(2), and tkill(2) with no process.
    pub fn tgkill(&mut self, pid: Option<i32>, tid: i32, signal: i32) -> SysResult {
        if tid <= 0 || pid.is_some_and(|pid| pid <= 0) {
            return Err(Errno::EINVAL.into());
        }
        let info = Info::sent(signal, self.sender(), true);
        self.send_to_thread(pid, tid, info)
    }

    fn send_to_thread(&mut self, pid: Option<i32>, tid: i32, info: Info) -> SysResult {
        let threads = &self.state.threads;
        let owner = threads.get(&tid).map(|thread| thread.pid);
        let owner = owner.ok_or(Errno::ESRCH)?;
        if pid.is_some_and(|pid| pid != owner) {
            return Err(Errno::ESRCH.into());
        }
        self.send_to(&[owner], Some(tid), info)
    }

    /// Sends to those of `targets` that there are; one that may be sent to is enough.
    pub fn send_to(&mut self, targets: &[i32], tid: Option<i32>, info: Info) -> SysResult {
        let mut result = Err(Errno::ESRCH);
        for pid in targets {
            if !self.state.processes.contains_key(pid) {
                continue;
            }
            if !(0..=SIGNALS).contains(&info.signal) {
                return Err(Errno::EINVAL.into());
            }
            let sent = self
                .check_kill(*pid, info.signal)
                .and_then(|()| match info.signal {
                    0 => Ok(()),
                    _ => send::signal(self.state, *pid, tid, info),
                });
            if result.is_err() {
                result = sent;
            }
        }
        Ok(result.map(|()| 0)?)
    }

    /// Whether the caller may send to a process (kill(2), NOTES).
    fn check_kill(&mut self, pid: i32, signal: i32) -> Result<(), Errno> {
        let (own, session) = {
            let process = self.process();
            (process.credentials.clone(), process.group.1)
        };
        let other = self.state.process(pid);
        let same_session = signal == libc::SIGCONT && other.group.1 == session;
        match pid == self.pid || same_session || own.may_signal(&other.credentials) {
            true => Ok(()),
            false => Err(Errno::EPERM),
        }
    }
}
