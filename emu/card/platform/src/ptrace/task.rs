//! A traced host task, as its tracer sees it: registers, stops, and system calls on its behalf.
//!
//! What must stay true: a task runs freely (PTRACE_CONT) only from an entry of the stub to the
//! `int3` behind it, in 64-bit mode. Where it runs the guest's code, it does so under
//! PTRACE_SYSEMU, which lets no system call through.

use std::{ffi::c_void, os::unix::process::ExitStatusExt, process::ExitStatus};

use super::{
    host,
    stub::{self, Entry},
};
use crate::PlatformError;

/// The reserved bit, and interrupts on.
pub const FIXED_FLAGS: u64 = 0x202;

/// A task that the calling thread traces.
#[derive(Clone, Copy)]
pub struct Task {
    pub tid: libc::pid_t,
    /// Its registers when it stopped first. Segment selectors never change: the guest may load others, and
    /// with one of 32-bit code the stub's address would be cut to 32 bits, where the guest may have code.
    first: libc::user_regs_struct,
}

impl Task {
    /// Seizes the task, which the stub has parked, and stops it.
    pub fn seize(tid: libc::pid_t) -> Result<Self, PlatformError> {
        ptrace(libc::PTRACE_SEIZE, tid, 0, OPTIONS)?;
        ptrace(libc::PTRACE_INTERRUPT, tid, 0, 0)?;
        Self::stopped(tid, ended)
    }

    /// The child that has asked for the calling thread to trace it, and stops; `failure` says why it ended
    /// instead.
    pub fn volunteer(
        tid: libc::pid_t,
        failure: impl Fn(i32) -> String,
    ) -> Result<Self, PlatformError> {
        let task = Self::stopped(tid, failure)?;
        ptrace(libc::PTRACE_SETOPTIONS, tid, 0, OPTIONS)?;
        Ok(task)
    }

    fn stopped(tid: libc::pid_t, ended: impl Fn(i32) -> String) -> Result<Self, PlatformError> {
        // SAFETY: the structure has numbers alone, for which zero is a value.
        let first = unsafe { std::mem::zeroed() };
        let mut task = Self { tid, first };
        task.wait_or(ended)?;
        task.first = task.registers()?;
        Ok(task)
    }

    /// The registers of its first stop.
    pub fn first(&self) -> libc::user_regs_struct {
        self.first
    }

    /// Whether registers are those of 64-bit code.
    pub fn is_64_bit(&self, user: &libc::user_regs_struct) -> bool {
        user.cs == self.first.cs
    }

    pub fn registers(&self) -> Result<libc::user_regs_struct, PlatformError> {
        // SAFETY: the structure has numbers alone, for which zero is a value.
        let mut user: libc::user_regs_struct = unsafe { std::mem::zeroed() };
        self.ptrace(libc::PTRACE_GETREGS, 0, (&raw mut user) as u64)?;
        Ok(user)
    }

    /// Sets all registers but the segment selectors, which stay what they were at first.
    pub fn set_registers(&self, user: &libc::user_regs_struct) -> Result<(), PlatformError> {
        let first = &self.first;
        let user = libc::user_regs_struct {
            cs: first.cs,
            ss: first.ss,
            ds: first.ds,
            es: first.es,
            fs: first.fs,
            gs: first.gs,
            // No restart of a system call that the host believes to be interrupted.
            orig_rax: u64::MAX,
            ..*user
        };
        self.ptrace(libc::PTRACE_SETREGS, 0, (&raw const user) as u64)
    }

    /// A request of ptrace(2) for this task.
    pub fn ptrace(
        &self,
        request: libc::c_uint,
        address: u64,
        data: u64,
    ) -> Result<(), PlatformError> {
        ptrace(request, self.tid, address, data)
    }

    /// Waits until the task stops; returns the stop's status.
    pub fn wait(&self) -> Result<i32, PlatformError> {
        self.wait_or(ended)
    }

    /// The same; `ended` says what the status of an end means.
    fn wait_or(&self, ended: impl Fn(i32) -> String) -> Result<i32, PlatformError> {
        let mut status = 0;
        loop {
            // SAFETY: `status` is an integer of this frame, which outlives the call that writes to it.
            let waited = unsafe { libc::waitpid(self.tid, &raw mut status, libc::__WALL) };
            if waited == self.tid && libc::WIFSTOPPED(status) {
                return Ok(status);
            }
            if waited == self.tid {
                return Err(PlatformError::Guest(ended(status)));
            }
            if std::io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
                return Err(host("waitpid"));
            }
        }
    }

    /// Makes the (stopped) task do one system call of the tracer's.
    pub fn call(&self, entry: Entry, number: i64, args: [u64; 6]) -> Result<u64, PlatformError> {
        let user = libc::user_regs_struct {
            rip: entry.start,
            rax: number as u64,
            rdi: args[0],
            rsi: args[1],
            rdx: args[2],
            r10: args[3],
            r8: args[4],
            r9: args[5],
            eflags: FIXED_FLAGS,
            ..self.first
        };
        self.set_registers(&user)?;
        let result = loop {
            self.ptrace(libc::PTRACE_CONT, 0, 0)?;
            let status = self.wait()?;
            match libc::WSTOPSIG(status) {
                // It may also be one that the guest's trap flag has left behind.
                libc::SIGTRAP if status >> 16 == 0 => {
                    let user = self.registers()?;
                    if user.rip == entry.end {
                        break user.rax as i64;
                    }
                }
                signal @ (libc::SIGSEGV | libc::SIGBUS | libc::SIGILL | libc::SIGSYS) => {
                    return Err(PlatformError::Guest(format!(
                        "system call {number} in the traced process ended with signal {signal}"
                    )));
                }
                // A kick that comes meanwhile stays pending; other signals are from outside.
                _ => {}
            }
        };
        if (-4095..0).contains(&result) {
            return Err(PlatformError::Host {
                call: format!("system call {number} in the traced process"),
                source: std::io::Error::from_raw_os_error(-result as i32),
            });
        }
        Ok(result as u64)
    }

    /// Writes to the (stopped) task's memory, whole words, even where it may only read.
    pub fn poke(&self, address: u64, bytes: &[u8]) -> Result<(), PlatformError> {
        let (words, _) = bytes.as_chunks();
        for (at, word) in (address..).step_by(size_of::<u64>()).zip(words) {
            self.ptrace(libc::PTRACE_POKEDATA, at, u64::from_ne_bytes(*word))?;
        }
        Ok(())
    }

    /// Unmaps `len` bytes at `start`.
    pub fn unmap(&self, start: u64, len: u64) -> Result<(), PlatformError> {
        self.call(stub::CALL, libc::SYS_munmap, [start, len, 0, 0, 0, 0])
            .map(drop)
    }

    /// Ends the task.
    pub fn end(&self) {
        let user = libc::user_regs_struct {
            rip: stub::CALL.start,
            rax: libc::SYS_exit as u64,
            rdi: 0,
            eflags: FIXED_FLAGS,
            // The host takes back no base out of user space, which wrgsbase may have put there.
            fs_base: 0,
            gs_base: 0,
            ..self.first
        };
        let going = self.set_registers(&user).is_ok();
        // A kick may stop it on its way.
        while going && self.ptrace(libc::PTRACE_CONT, 0, 0).is_ok() && self.wait().is_ok() {}
    }
}

/// What is said of a task that ended without being asked to.
fn ended(status: i32) -> String {
    format!("its task ended: {}", ExitStatus::from_raw(status))
}

/// A tracer that ends takes the task with it; stops at system calls can be told from traps.
const OPTIONS: u64 = (libc::PTRACE_O_EXITKILL | libc::PTRACE_O_TRACESYSGOOD) as u64;

/// A request of ptrace(2). `address` and `data` are numbers, addresses of the tracee, or, where the request says so,
/// addresses of a structure of the caller's that is as long as the request wants.
fn ptrace(
    request: libc::c_uint,
    tid: libc::pid_t,
    address: u64,
    data: u64,
) -> Result<(), PlatformError> {
    // SAFETY: addresses of this process come from references to locals of the callers, which outlive the call: one
    // `user_regs_struct`, `siginfo_t` or `ptrace_syscall_info` for the requests that read or write those, and an iovec
    // with its buffer's own length for register sets. With all other requests both values are numbers.
    let result = unsafe { libc::ptrace(request, tid, address as *mut c_void, data as *mut c_void) };
    if result < 0 {
        Err(host(&format!("ptrace request {request:#x}")))
    } else {
        Ok(())
    }
}
