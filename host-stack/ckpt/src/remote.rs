//! System calls that a held thread makes for its tracer: one by one at a `syscall` instruction that its
//! process has anyway, or a table of them by a stub that is mapped for a while.
//!
//! ```text
//! stub page    code: makes the calls of a table, one after the other
//! table page   calls, 64 bytes each: number, six arguments, result; the last one is tgkill(SIGSTOP) to itself,
//! and more     which the tracer takes away. Behind it: room for what calls read and write.
//! ```
//! A table costs one stop, whatever its length; a single call two.
//!
//! What must stay true: all signals are blocked in the thread meanwhile; a stop signal from elsewhere that comes
//! in between is given back with the thread.

use std::{arch::global_asm, io, slice};

use libc::pid_t;

use crate::{
    error::{Error, Result},
    memory,
    trace::{Regs, Stop, Tracee},
};

/// Bytes of a page.
pub const PAGE: u64 = 4096;
/// Bytes of the stub and its room.
pub const STUB_BYTES: u64 = PAGE + ROOM_BYTES;
/// Bytes of the table and what is behind it.
const ROOM_BYTES: u64 = 252 << 10;
/// Bytes of one call in the table.
const CALL_BYTES: u64 = 64;
/// Calls in one table: the rest of the room is for their data.
const CALLS_MAX: usize = 1024;

global_asm!(
    ".pushsection .rodata.snaprig_ckpt_stub, \"a\"",
    ".globl snaprig_ckpt_stub",
    ".globl snaprig_ckpt_stub_end",
    "snaprig_ckpt_stub:",
    "2:",
    "mov rax, [r15]",
    "mov rdi, [r15 + 8]",
    "mov rsi, [r15 + 16]",
    "mov rdx, [r15 + 24]",
    "mov r10, [r15 + 32]",
    "mov r8, [r15 + 40]",
    "mov r9, [r15 + 48]",
    "syscall",
    "mov [r15 + 56], rax",
    "add r15, 64",
    "dec r14",
    "jnz 2b",
    // SIGCONT has taken the stop away: it is asked for again.
    "inc r14",
    "sub r15, 64",
    "jmp 2b",
    "snaprig_ckpt_stub_end:",
    ".popsection",
);

unsafe extern "C" {
    static snaprig_ckpt_stub: u8;
    static snaprig_ckpt_stub_end: u8;
}

/// The stub's code.
pub fn stub() -> &'static [u8] {
    let (start, end) = (
        &raw const snaprig_ckpt_stub,
        &raw const snaprig_ckpt_stub_end,
    );
    // SAFETY: both are of the assembly above, and what is between them is never written to.
    unsafe { slice::from_raw_parts(start, end.addr() - start.addr()) }
}

/// A system call: number and arguments.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    number: i64,
    pub arguments: [u64; 6],
}

/// A call with the arguments that it has.
pub fn call<const N: usize>(number: i64, given: [u64; N]) -> Call {
    let mut arguments = [0; 6];
    arguments[..N].copy_from_slice(&given);
    Call { number, arguments }
}

/// What a call returned: errors are the numbers from -4095 to -1.
pub fn result(returned: i64) -> io::Result<u64> {
    match returned {
        -4095..=-1 => Err(io::Error::from_raw_os_error(-returned as i32)),
        returned => Ok(returned as u64),
    }
}

/// A thread that makes system calls.
pub struct Remote<'a> {
    tracee: &'a Tracee,
    /// Number of its process.
    pid: pid_t,
    /// Registers that it has while it does, but for those of the call.
    base: Regs,
    /// Whether somebody has sent SIGSTOP meanwhile.
    pub stopped: bool,
}

impl<'a> Remote<'a> {
    /// Of a held thread, whose signals are blocked from now on.
    pub fn new(tracee: &'a Tracee, pid: pid_t) -> Result<Self> {
        tracee.set_mask(u64::MAX)?;
        let base = Regs {
            // No restart of a call that the kernel believes to be interrupted.
            orig_rax: u64::MAX,
            ..tracee.regs()?
        };
        Ok(Self {
            tracee,
            pid,
            base,
            stopped: false,
        })
    }

    /// One call, by the `syscall` instruction at an address.
    pub fn call_at(&mut self, at: u64, call: Call) -> Result<io::Result<u64>> {
        let [rdi, rsi, rdx, r10, r8, r9] = call.arguments;
        let rax = call.number as u64;
        self.tracee.set_regs(&Regs {
            rip: at,
            rax,
            rdi,
            rsi,
            rdx,
            r10,
            r8,
            r9,
            ..self.base
        })?;
        for _ in 0..2 {
            self.tracee.go_to_syscall()?;
            while self.tracee.wait()? != Stop::Syscall {
                self.stopped = true;
                self.tracee.go_to_syscall()?;
            }
        }
        Ok(result(self.tracee.regs()?.rax as i64))
    }

    /// Starts on a table of calls with the stub at `stub`.
    pub fn start(&mut self, stub: u64, tid: pid_t, calls: &[Call]) -> Result<()> {
        let table = stub + PAGE;
        self.start_at(stub, table, tid, calls)
    }

    /// As [`Remote::start`], with the table elsewhere in the stub's room.
    pub fn start_at(&mut self, stub: u64, table: u64, tid: pid_t, calls: &[Call]) -> Result<()> {
        assert!(calls.len() < CALLS_MAX, "a table has room for so many");
        let stop = [self.pid as u64, tid as u64, libc::SIGSTOP as u64];
        let last = call(libc::SYS_tgkill, stop);
        let mut bytes = Vec::with_capacity((calls.len() + 1) * CALL_BYTES as usize);
        for call in calls.iter().chain([&last]) {
            bytes.extend_from_slice(&call.number.to_ne_bytes());
            for argument in call.arguments {
                bytes.extend_from_slice(&argument.to_ne_bytes());
            }
            bytes.extend_from_slice(&0u64.to_ne_bytes());
        }
        memory::write(self.tracee.tid(), table, &bytes)?;
        self.tracee.set_regs(&Regs {
            rip: stub,
            r14: calls.len() as u64 + 1,
            r15: table,
            ..self.base
        })?;
        self.tracee.go_on(0)
    }

    /// Waits until the table that was started is done; what its calls returned.
    pub fn finish(&mut self, table: u64, calls: usize) -> Result<Vec<i64>> {
        finish(self.tracee, self.pid, table, calls, &mut self.stopped)
    }

    /// A table of calls.
    pub fn calls(&mut self, stub: u64, tid: pid_t, calls: &[Call]) -> Result<Vec<i64>> {
        let mut results = Vec::with_capacity(calls.len());
        for calls in calls.chunks(CALLS_MAX - 1) {
            self.start(stub, tid, calls)?;
            results.extend(self.finish(stub + PAGE, calls.len())?);
        }
        Ok(results)
    }
}

/// Where data of calls may be, in the room of a stub: behind the largest table.
pub fn data(stub: u64) -> u64 {
    stub + PAGE + CALLS_MAX as u64 * CALL_BYTES
}

/// Bytes at [`data`].
pub const DATA_BYTES: u64 = ROOM_BYTES - CALLS_MAX as u64 * CALL_BYTES;

/// Waits until a table is done that was started in a thread; what its calls returned. `stopped`: SIGSTOP came.
pub fn finish(
    tracee: &Tracee,
    pid: pid_t,
    table: u64,
    calls: usize,
    stopped: &mut bool,
) -> Result<Vec<i64>> {
    loop {
        let stop = tracee.wait()?;
        if stop == Stop::Signal(libc::SIGSTOP) && tracee.regs()?.r14 == 1 {
            break;
        }
        match stop {
            Stop::Signal(libc::SIGSTOP) | Stop::Event(_) => *stopped = true,
            Stop::Signal(signal) => {
                let what = format!("signal {signal} in the checkpointer's calls");
                let source = io::ErrorKind::Other.into();
                return Err(Error::Process { pid, what, source });
            }
            Stop::Syscall | Stop::Born => {}
        }
        tracee.go_on(0)?;
    }
    let mut bytes = vec![0; calls * CALL_BYTES as usize];
    memory::read(tracee.tid(), table, &mut bytes)?;
    let results = bytes.chunks_exact(CALL_BYTES as usize);
    Ok(results
        .map(|call| i64::from_ne_bytes(call[56..].try_into().expect("eight bytes")))
        .collect())
}
