//! System calls that a held thread makes for its tracer: one by one at a `syscall` instruction that its
//! process has anyway, or a table of them by a stub that is mapped for a while.
//!
//! ```text
//! stub page    code: makes the calls of a table, one after the other, and goes home
//! room         home: the registers and the mask that the thread had. Behind it the table: calls, 64 bytes each:
//!              number, six arguments, result; the last one is tgkill(2) to itself with a signal that the tracer
//!              takes away. Behind it: what calls read and write.
//! ```
//! A table costs one stop, whatever its length; a single call two.
//!
//! When a tracer dies, the kernel has its threads run on from where they are. So whatever a thread runs for its tracer
//! ends with the way home, which a tracer that lives never lets it take: the mask by rt_sigprocmask(2), the registers by
//! `iretq`. rt_sigreturn(2) would forget a sleep that is to go on (restart_syscall(2)). The signal at the end of a
//! table is one that does nothing to a program without a tracer.
//!
//! What must stay true: registers are set before the mask on the way in, and after it on the way out, so that the way
//! home is always there; the stack pointer stays the program's, so that a handler may run on the way; but for that
//! signal all are blocked meanwhile, and what comes from elsewhere is given back with the thread.

use std::{arch::global_asm, io, slice};

use crate::{
    error::{Error, Result},
    faults::{self, reached},
    memory,
    trace::{Regs, Stop, Tracee},
};
use libc::pid_t;

/// Of the `syscall` instruction.
pub const SYSCALL_BYTES: u64 = 2;

/// Bytes of a page.
pub const PAGE: u64 = 4096;
/// Bytes of the stub and its room.
pub const STUB_BYTES: u64 = PAGE + ROOM_BYTES;
/// Bytes of the room.
const ROOM_BYTES: u64 = 252 << 10;
/// Bytes of a home: `struct user_regs_struct`, then the mask.
pub const HOME_BYTES: u64 = 256;
/// Bytes of one call in the table.
const CALL_BYTES: u64 = 64;
/// Calls in one table: the rest of the room is for their data.
const CALLS_MAX: usize = 1024;

global_asm!(
    ".pushsection .rodata.snaprig_ckpt_stub, \"a\"",
    ".globl snaprig_ckpt_stub",
    ".globl snaprig_ckpt_one_call",
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
    "jmp 3f",
    // A single call.
    "snaprig_ckpt_one_call:",
    "syscall",
    // Home, which r13 points to: rt_sigprocmask(SIG_SETMASK), then what iretq takes, below the red zone.
    "3:",
    "mov eax, 14",
    "mov edi, 2",
    "lea rsi, [r13 + 216]",
    "xor edx, edx",
    "mov r10d, 8",
    "syscall",
    "sub rsp, 128",
    "push qword ptr [r13 + 160]",
    "push qword ptr [r13 + 152]",
    "push qword ptr [r13 + 144]",
    "push qword ptr [r13 + 136]",
    "push qword ptr [r13 + 128]",
    "mov r15, [r13]",
    "mov r14, [r13 + 8]",
    "mov r12, [r13 + 24]",
    "mov rbp, [r13 + 32]",
    "mov rbx, [r13 + 40]",
    "mov r11, [r13 + 48]",
    "mov r10, [r13 + 56]",
    "mov r9, [r13 + 64]",
    "mov r8, [r13 + 72]",
    "mov rax, [r13 + 80]",
    "mov rcx, [r13 + 88]",
    "mov rdx, [r13 + 96]",
    "mov rsi, [r13 + 104]",
    "mov rdi, [r13 + 112]",
    "mov r13, [r13 + 16]",
    "iretq",
    "snaprig_ckpt_stub_end:",
    ".popsection",
);

unsafe extern "C" {
    static snaprig_ckpt_stub: u8;
    static snaprig_ckpt_one_call: u8;
    static snaprig_ckpt_stub_end: u8;
}

/// The stub's code.
pub fn stub() -> &'static [u8] {
    code_from(&raw const snaprig_ckpt_stub)
}

/// A `syscall` instruction, and the way home.
pub fn one_call() -> &'static [u8] {
    code_from(&raw const snaprig_ckpt_one_call)
}

fn code_from(start: *const u8) -> &'static [u8] {
    let end = &raw const snaprig_ckpt_stub_end;
    // SAFETY: both pointers are of the assembly above, of one section, in which `start` comes
    // before the end. What is between them is code, loaded as long as this program is, and never
    // written to.
    unsafe { slice::from_raw_parts(start, end.addr() - start.addr()) }
}

/// Where a thread goes when its tracer dies.
#[derive(Clone, Copy, Debug)]
pub struct Home {
    regs: Regs,
    mask: u64,
}

impl Home {
    /// Of a thread that was stopped with these registers. The kernel would look whether a call is to be made again; on
    /// the way home nobody does.
    pub fn new(regs: &Regs, mask: u64) -> Self {
        const RESTARTED: [i64; 3] = [-512, -513, -514];
        const RESTART_BLOCK: i64 = -516;
        let mut regs = *regs;
        let call = match regs.rax as i64 {
            _ if (regs.orig_rax as i64) < 0 => None,
            rax if RESTARTED.contains(&rax) => Some(regs.orig_rax),
            RESTART_BLOCK => Some(libc::SYS_restart_syscall as u64),
            _ => None,
        };
        if let Some(call) = call {
            regs.rax = call;
            regs.rip -= SYSCALL_BYTES;
        }
        Self { regs, mask }
    }

    /// As the way home reads it.
    pub fn bytes(&self) -> [u8; HOME_BYTES as usize] {
        let mut bytes = [0; HOME_BYTES as usize];
        let words = regs_words(&self.regs);
        for (place, word) in bytes
            .chunks_exact_mut(8)
            .zip(words.iter().chain([&self.mask]))
        {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }
}

/// `struct user_regs_struct` as words.
pub fn regs_words(regs: &Regs) -> [u64; size_of::<Regs>() / 8] {
    // SAFETY: `Regs` is `struct user_regs_struct`, of 64-bit integers alone, without gaps; the
    // array is as long, and every value of its bytes is one of integers.
    unsafe { std::mem::transmute_copy(regs) }
}

/// Words as `struct user_regs_struct`; none: they are not as many.
pub fn regs_of(words: &[u64]) -> Option<Regs> {
    // SAFETY: `Regs` is `struct user_regs_struct`, of integers alone, so that zeroes are a value of
    // it.
    let mut regs: Regs = unsafe { std::mem::zeroed() };
    let count = size_of::<Regs>() / 8;
    if words.len() != count {
        return None;
    }
    // SAFETY: `Regs` is made of `count` 64-bit integers, so that its place is one for as many,
    // aligned as they are; it is on this stack, and nothing else refers to it until the slice is
    // gone.
    unsafe { slice::from_raw_parts_mut((&raw mut regs).cast::<u64>(), count) }
        .copy_from_slice(words);
    Some(regs)
}

/// A system call: number and arguments.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    number: i64,
    /// In order; those that it does not have are 0.
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
    /// Where it goes without us; none: nowhere, it ends with us.
    home: Option<Home>,
    /// What it sends itself at the end of a table.
    end: i32,
    /// Signals that somebody has sent meanwhile, a bit each from 1 on.
    pub stray: u64,
}

impl<'a> Remote<'a> {
    /// Of a held thread that ends with its tracer (PTRACE_O_EXITKILL).
    pub fn new(tracee: &'a Tracee, pid: pid_t) -> Result<Self> {
        Self::with_home(tracee, pid, None, libc::SIGSTOP)
    }

    /// Of a held thread that goes home without its tracer; `end`: a signal that does nothing to it.
    pub fn with_home(tracee: &'a Tracee, pid: pid_t, home: Option<Home>, end: i32) -> Result<Self> {
        let base = Regs {
            // No restart of a call that the kernel believes to be interrupted.
            orig_rax: u64::MAX,
            ..tracee.regs()?
        };
        Ok(Self {
            tracee,
            pid,
            base,
            home,
            end,
            stray: 0,
        })
    }

    /// It is on its way somewhere: its signals are blocked from now on.
    fn block(&self) -> Result<()> {
        reached(&faults::ASK_REGISTERS);
        self.tracee.set_mask(!bit(self.end))
    }

    /// One call, by the `syscall` instruction at an address. Of a thread with a home: at [`one_call`], and the home is
    /// at `home`.
    pub fn call_at(&mut self, at: u64, home: u64, call: Call) -> Result<io::Result<u64>> {
        let [rdi, rsi, rdx, r10, r8, r9] = call.arguments;
        let rax = call.number as u64;
        self.tracee.set_regs(&Regs {
            r13: home,
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
        self.block()?;
        for _ in 0..2 {
            self.tracee.go_to_syscall()?;
            loop {
                match self.tracee.wait()? {
                    Stop::Syscall => break,
                    Stop::Signal(signal) => self.stray |= bit(signal),
                    Stop::Event(_) | Stop::Born => {}
                }
                self.tracee.go_to_syscall()?;
            }
            reached(&faults::ASK_CALL);
        }
        Ok(result(self.tracee.regs()?.rax as i64))
    }

    /// Starts on a table of calls with the stub at `stub`; `home` is where in its room the home is, and then the table.
    pub fn start_at(&mut self, stub: u64, home: u64, tid: pid_t, calls: &[Call]) -> Result<()> {
        assert!(calls.len() < CALLS_MAX, "a table has room for so many");
        let end = [self.pid as u64, tid as u64, self.end as u64];
        let last = call(libc::SYS_tgkill, end);
        let bytes = (calls.len() + 1) * CALL_BYTES as usize + HOME_BYTES as usize;
        let mut bytes = Vec::with_capacity(bytes);
        let nowhere = [0; HOME_BYTES as usize];
        bytes.extend(self.home.map_or(nowhere, |home| home.bytes()));
        for call in calls.iter().chain([&last]) {
            bytes.extend_from_slice(&call.number.to_ne_bytes());
            for argument in call.arguments {
                bytes.extend_from_slice(&argument.to_ne_bytes());
            }
            bytes.extend_from_slice(&0u64.to_ne_bytes());
        }
        memory::write(self.tracee.tid(), home, &bytes)?;
        self.tracee.set_regs(&Regs {
            rip: stub,
            r13: home,
            r14: calls.len() as u64 + 1,
            r15: home + HOME_BYTES,
            ..self.base
        })?;
        self.block()?;
        self.tracee.go_on(0)?;
        reached(&faults::ASK_TABLE);
        Ok(())
    }

    /// A table of calls; what they returned.
    pub fn calls(&mut self, stub: u64, tid: pid_t, calls: &[Call]) -> Result<Vec<i64>> {
        let mut results = Vec::with_capacity(calls.len());
        for calls in calls.chunks(CALLS_MAX - 1) {
            self.start_at(stub, stub + PAGE, tid, calls)?;
            let end = self.end;
            let finished = finish(self.tracee, stub + PAGE, calls.len(), end, &mut self.stray);
            results.extend(finished?);
        }
        Ok(results)
    }
}

/// The bit of a signal in a mask.
pub fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// Where data of calls may be, in the room of a stub: behind the largest table.
pub fn data(stub: u64) -> u64 {
    stub + PAGE + HOME_BYTES + CALLS_MAX as u64 * CALL_BYTES
}

/// Bytes at [`data`].
pub const DATA_BYTES: u64 = ROOM_BYTES - HOME_BYTES - CALLS_MAX as u64 * CALL_BYTES;

/// Waits until a table is done that was started in a thread, with its home at `home` and `end` as its last signal; what
/// its calls returned. Other signals are added to `stray`.
pub fn finish(
    tracee: &Tracee,
    home: u64,
    calls: usize,
    end: i32,
    stray: &mut u64,
) -> Result<Vec<i64>> {
    loop {
        match tracee.wait()? {
            Stop::Signal(signal) if signal == end && tracee.regs()?.r14 <= 1 => break,
            Stop::Signal(signal) if signal == end || signal == libc::SIGSTOP => {
                *stray |= bit(signal)
            }
            Stop::Signal(signal) => {
                let what = format!("signal {signal} in the checkpointer's calls");
                let (pid, source) = (tracee.tid(), io::ErrorKind::Other.into());
                return Err(Error::Process { pid, what, source });
            }
            Stop::Syscall | Stop::Event(_) | Stop::Born => {}
        }
        tracee.go_on(0)?;
    }
    let mut bytes = vec![0; calls * CALL_BYTES as usize];
    memory::read(tracee.tid(), home + HOME_BYTES, &mut bytes)?;
    let results = bytes.chunks_exact(CALL_BYTES as usize);
    Ok(results
        .map(|call| i64::from_ne_bytes(call[56..].try_into().expect("eight bytes")))
        .collect())
}
