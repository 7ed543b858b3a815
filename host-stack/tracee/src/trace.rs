//! A thread of another process, held with ptrace(2).
//!
//! What must stay true: all calls are made by the thread that seized; a thread that is held runs only
//! what `remote` has it run; one that is let go is where it was, with the registers and the signal mask
//! that it had. If the tracer dies, the kernel lets it go from where it is, or, of a tree that is not complete, ends it.

use std::{
    ffi::c_void,
    io, mem, thread,
    time::{Duration, Instant},
};

use crate::error::{Error, Result};
use libc::pid_t;

/// Registers of NT_PRSTATUS.
pub type Regs = libc::user_regs_struct;

const NT_X86_XSTATE: usize = 0x202;
/// More than the largest XSAVE area that processors have (AMX: 11 KiB).
const XSTATE_MAX: usize = 64 << 10;
/// Signals looked at by one PTRACE_PEEKSIGINFO.
const SIGNALS: usize = 32;
/// PTRACE_O_TRACESYSGOOD.
const OPTIONS: usize = 1;
/// PTRACE_O_EXITKILL.
const ENDS_WITH_US: usize = 1 << 20;
/// PTRACE_O_TRACECLONE, _FORK, _VFORK.
const BIRTHS: usize = 1 << 3 | 1 << 1 | 1 << 2;

/// How often one looks whether a thread has stopped: at once, and then with pauses; and every so many looks, whether it
/// has ended.
const LOOKS_AT_ONCE: u64 = 50;
const LOOK_AGAIN: Duration = Duration::from_micros(20);
const LOOKS_AT_STATE: u64 = 100;
/// Nobody is late before so many looks: the clock goes on while the machine is suspended, or has no time for us.
const LOOKS_MIN: u64 = 10_000;

/// `siginfo_t`, as bytes.
pub type SigInfo = [u8; 128];

/// A held thread.
#[derive(Debug)]
pub struct Tracee {
    tid: pid_t,
}

/// How a thread has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// PTRACE_INTERRUPT has come through, or its process is stopped by a signal.
    Event(i32),
    /// Entry to or return from a system call.
    Syscall,
    /// A signal is about to be delivered.
    Signal(i32),
    /// PTRACE_EVENT_CLONE, _FORK, _VFORK: a child is there.
    Born,
}

impl Tracee {
    /// Seizes a thread and asks it to stop; [`Tracee::wait`] says when it has.
    pub fn seize(tid: pid_t) -> Result<Self> {
        ptrace(libc::PTRACE_SEIZE, tid, 0, OPTIONS)?;
        ptrace(libc::PTRACE_INTERRUPT, tid, 0, 0)?;
        Ok(Self { tid })
    }

    /// A thread that was born to a held one, and is held by that.
    pub fn born(tid: pid_t) -> Self {
        Self { tid }
    }

    /// Its number, as the tracer sees it.
    pub fn tid(&self) -> pid_t {
        self.tid
    }

    /// From now on, what it gives birth to is held from its first moment on; and all of them end with their tracer.
    pub fn bind(&self) -> Result<()> {
        let options = OPTIONS | BIRTHS | ENDS_WITH_US;
        ptrace(libc::PTRACE_SETOPTIONS, self.tid, 0, options)?;
        Ok(())
    }

    /// From now on, it runs on without its tracer.
    pub fn unbind(&self) -> Result<()> {
        ptrace(libc::PTRACE_SETOPTIONS, self.tid, 0, OPTIONS)?;
        Ok(())
    }

    /// Asks it to stop.
    pub fn interrupt(&self) -> Result<()> {
        ptrace(libc::PTRACE_INTERRUPT, self.tid, 0, 0)?;
        Ok(())
    }

    /// Waits until it stops.
    pub fn wait(&self) -> Result<Stop> {
        self.wait_until(None, &[])
    }

    /// Waits until it stops, but no longer than that: then it will stop later ([`let_go_late`]). The kernel says nothing
    /// of the end of a first thread before those of all others are known, so it is looked for. A thread that is in exec(2)
    /// ends all others of its process, and stops only when the tracer has heard of the ends of those that it traces: so the
    /// ends of these `others` are heard of meanwhile.
    pub fn wait_until(&self, deadline: Option<Instant>, others: &[pid_t]) -> Result<Stop> {
        let mut status = 0;
        for look in 1u64.. {
            let flags = libc::__WALL | libc::WNOHANG;
            // SAFETY: waitpid(2) writes one int at the pointer, which is `status`, on this stack
            // during the call.
            let waited = unsafe { libc::waitpid(self.tid, &raw mut status, flags) };
            if waited == self.tid && libc::WIFSTOPPED(status) {
                break;
            }
            if waited == self.tid || look.is_multiple_of(LOOKS_AT_STATE) && has_ended(self.tid) {
                return Err(Error::Gone { tid: self.tid });
            }
            if waited == 0 {
                if look.is_multiple_of(LOOKS_AT_STATE) {
                    others.iter().for_each(|tid| hear_of_end(*tid));
                }
                let is_late = deadline.is_some_and(|deadline| Instant::now() > deadline);
                if is_late && look > LOOKS_MIN {
                    return Err(Error::Stuck { tid: self.tid });
                }
                match look < LOOKS_AT_ONCE {
                    true => thread::yield_now(),
                    false => thread::sleep(LOOK_AGAIN),
                }
                continue;
            }
            let error = io::Error::last_os_error();
            // A thread that calls exec(2) takes the number of its process's first.
            if error.raw_os_error() == Some(libc::ECHILD) {
                return Err(Error::Gone { tid: self.tid });
            }
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(Error::trace("waitpid", self.tid, error));
            }
        }
        let signal = libc::WSTOPSIG(status);
        Ok(match status >> 16 {
            libc::PTRACE_EVENT_STOP => Stop::Event(signal),
            0 if signal == libc::SIGTRAP | 0x80 => Stop::Syscall,
            0 => Stop::Signal(signal),
            _ => Stop::Born,
        })
    }

    /// Waits until it stops as it was asked to; whatever stops it before is passed over, signals too.
    pub fn wait_for_event(&self) -> Result<()> {
        while !matches!(self.wait()?, Stop::Event(_)) {
            self.go_on(0)?;
        }
        Ok(())
    }

    /// Its registers.
    pub fn regs(&self) -> Result<Regs> {
        // SAFETY: `Regs` is `struct user_regs_struct`, of integers alone, so that zeroes are a
        // value of it.
        let mut regs: Regs = unsafe { mem::zeroed() };
        ptrace(libc::PTRACE_GETREGS, self.tid, 0, (&raw mut regs) as usize)?;
        Ok(regs)
    }

    /// Sets its registers.
    pub fn set_regs(&self, regs: &Regs) -> Result<()> {
        ptrace(
            libc::PTRACE_SETREGS,
            self.tid,
            0,
            (&raw const *regs) as usize,
        )?;
        Ok(())
    }

    /// Its extended state, in XSAVE's standard format.
    pub fn xstate(&self) -> Result<Vec<u8>> {
        let mut state = vec![0u8; XSTATE_MAX];
        let mut vector = libc::iovec {
            iov_base: state.as_mut_ptr().cast(),
            iov_len: state.len(),
        };
        let vector_at = (&raw mut vector) as usize;
        ptrace(libc::PTRACE_GETREGSET, self.tid, NT_X86_XSTATE, vector_at)?;
        state.truncate(vector.iov_len);
        Ok(state)
    }

    /// Sets its extended state.
    pub fn set_xstate(&self, state: &[u8]) -> Result<()> {
        let mut vector = libc::iovec {
            iov_base: state.as_ptr().cast_mut().cast(),
            iov_len: state.len(),
        };
        let vector_at = (&raw mut vector) as usize;
        ptrace(libc::PTRACE_SETREGSET, self.tid, NT_X86_XSTATE, vector_at)?;
        Ok(())
    }

    /// Its signal mask: the one that it has outside of a call with a mask of its own (ppoll(2)).
    pub fn mask(&self) -> Result<u64> {
        let mut mask = 0u64;
        let mask_at = (&raw mut mask) as usize;
        ptrace(libc::PTRACE_GETSIGMASK, self.tid, 8, mask_at)?;
        Ok(mask)
    }

    /// Sets its signal mask.
    pub fn set_mask(&self, mask: u64) -> Result<()> {
        let mask_at = (&raw const mask) as usize;
        ptrace(libc::PTRACE_SETSIGMASK, self.tid, 8, mask_at)?;
        Ok(())
    }

    /// Signals that wait for it, or (`shared`) for its process, oldest first.
    pub fn pending(&self, shared: bool) -> Result<Vec<SigInfo>> {
        let mut pending = Vec::new();
        loop {
            let mut room = [[0u8; 128]; SIGNALS];
            let mut arguments = libc::ptrace_peeksiginfo_args {
                off: pending.len() as u64,
                flags: u32::from(shared),
                nr: SIGNALS as i32,
            };
            let (arguments_at, room_at) = ((&raw mut arguments) as usize, room.as_mut_ptr());
            let request = libc::PTRACE_PEEKSIGINFO;
            let found = ptrace(request, self.tid, arguments_at, room_at as usize)?;
            if found == 0 {
                return Ok(pending);
            }
            pending.extend_from_slice(&room[..found.min(SIGNALS)]);
        }
    }

    /// Where its restartable sequences are registered: address, length, signature (rseq(2)).
    pub fn rseq(&self) -> Result<Option<(u64, u32, u32)>> {
        /// linux/ptrace.h
        const PTRACE_GET_RSEQ_CONFIGURATION: libc::c_uint = 0x420f;
        let mut words = [0u64; 3];
        let words_at = words.as_mut_ptr() as usize;
        ptrace(PTRACE_GET_RSEQ_CONFIGURATION, self.tid, 24, words_at)?;
        let [address, sizes, _] = words;
        Ok((address != 0).then_some((address, sizes as u32, (sizes >> 32) as u32)))
    }

    /// Whether system calls of it come back to it as signals (PR_SET_SYSCALL_USER_DISPATCH).
    pub fn dispatches_calls(&self) -> bool {
        /// linux/ptrace.h, since 6.4
        const PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG: libc::c_uint = 0x4211;
        // Mode, selector, offset, length.
        let mut words = [0u64; 4];
        let (bytes, words_at) = (size_of_val(&words), words.as_mut_ptr() as usize);
        let request = PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG;
        ptrace(request, self.tid, bytes, words_at).is_ok() && words[0] != 0
    }

    /// Lets it run to the next stop, with a signal if that is not 0.
    pub fn go_on(&self, signal: i32) -> Result<()> {
        ptrace(libc::PTRACE_CONT, self.tid, 0, signal as usize)?;
        Ok(())
    }

    /// Lets it run to the next entry to or return from a system call.
    pub fn go_to_syscall(&self) -> Result<()> {
        ptrace(libc::PTRACE_SYSCALL, self.tid, 0, 0)?;
        Ok(())
    }

    /// Lets it go, with a signal if that is not 0.
    pub fn detach(&self, signal: i32) -> Result<()> {
        ptrace(libc::PTRACE_DETACH, self.tid, 0, signal as usize)?;
        Ok(())
    }
}

/// Hears of the end of a traced thread, if it has ended, and of nothing else. Of a thread that is traced the kernel tells
/// stops as well, also to who asks for ends alone: so what there is to hear is looked at first.
fn hear_of_end(tid: pid_t) {
    let wait = |more| {
        let flags = libc::WEXITED | libc::WNOHANG | libc::__WALL | more;
        // SAFETY: `siginfo_t` is of integers and pointers, so that zeroes are a value of it.
        // waitid(2) writes to `heard` alone, which is on this stack during the call, and the type
        // of its code is an int in every one of its forms.
        unsafe {
            let mut heard: libc::siginfo_t = mem::zeroed();
            let waited = libc::waitid(libc::P_PID, tid as libc::id_t, &raw mut heard, flags);
            (waited == 0).then_some(heard.si_code)
        }
    };
    const ENDS: [i32; 3] = [libc::CLD_EXITED, libc::CLD_KILLED, libc::CLD_DUMPED];
    if wait(libc::WNOWAIT).is_some_and(|code| ENDS.contains(&code)) {
        wait(0);
    }
}

/// Whether a thread has ended, or is gone already.
pub fn has_ended(tid: pid_t) -> bool {
    let stat = procfs::process::Process::new(tid).and_then(|thread| thread.stat());
    stat.map_or(true, |stat| matches!(stat.state, 'Z' | 'X'))
}

/// Lets a thread go that has stopped when nobody waited for it any more.
pub fn let_go_late(tid: pid_t) {
    // It may have ended.
    let _ = Tracee { tid }.detach(0);
}

fn ptrace(request: libc::c_uint, tid: pid_t, address: usize, data: usize) -> Result<usize> {
    // SAFETY: each caller, all of this module, passes as address or data either a number or the
    // address of a variable of its own that outlives the call, and is at least as long as its
    // request reads or writes: `Regs` for registers, an iovec or a size with a vector of that
    // length, 8 bytes for a mask. Addresses of the other process are none of this one's memory.
    let result = unsafe { libc::ptrace(request, tid, address as *mut c_void, data as *mut c_void) };
    usize::try_from(result).map_err(|_| match io::Error::last_os_error() {
        error if error.raw_os_error() == Some(libc::ESRCH) => Error::Gone { tid },
        error if error.raw_os_error() == Some(libc::EPERM) => {
            let call = "ptrace, which `snaprig doctor --for ckpt` says how to allow";
            Error::trace(call, tid, error)
        }
        error => Error::trace("ptrace", tid, error),
    })
}
