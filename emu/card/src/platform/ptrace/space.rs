//! An address space: a host process with nothing in it.

use std::{
    ffi::c_void,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
};

use super::{
    super::{Cpu, PlatformError, Space, USER_END},
    cpu::PtraceCpu,
    host,
    stub::{self, LEADER, STUB, WORDS},
};
use crate::memory::{CardMemory, PAGE};

/// Descriptor of card memory in every traced process.
pub const MEMORY_FD: i32 = 3;

/// The traced process of one address space.
pub struct PtraceSpace {
    pub(super) memory: Arc<CardMemory>,
    pub(super) root: u64,
    pid: libc::pid_t,
    words: Words,
    making: Mutex<()>,
    has_cpu: AtomicBool,
    _code: OwnedFd,
}

/// The page shared with the leader.
struct Words(*mut AtomicU32);

// SAFETY: the page is mapped shared for as long as the space lives and only accessed atomically.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

impl Words {
    fn command(&self) -> &AtomicU32 {
        // SAFETY: see `Send`.
        unsafe { &*self.0 }
    }

    fn tid(&self) -> &AtomicU32 {
        // SAFETY: see `Send`; the word is the second of the page.
        unsafe { &*self.0.add(1) }
    }
}

impl PtraceSpace {
    /// A process with the stub and nothing else.
    pub fn new(memory: &Arc<CardMemory>, root: u64) -> Result<Self, PlatformError> {
        let code = stub_file()?;
        // SAFETY: a shared mapping of the second page of a file of ours; the result is checked.
        let words = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                PAGE as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                code.as_raw_fd(),
                PAGE as libc::off_t,
            )
        };
        if words == libc::MAP_FAILED {
            return Err(host("mmap of the stub's words"));
        }
        // SAFETY: getpid has no preconditions.
        let parent = unsafe { libc::getpid() };
        let (stub_fd, memory_fd) = (code.as_raw_fd(), memory.memfd().as_fd().as_raw_fd());
        let rseq = rseq_area();
        // SAFETY: the child calls only async-signal-safe functions until it is in the stub.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // SAFETY: this is the child, which has one thread; see `become_empty`.
            unsafe { become_empty(parent, stub_fd, memory_fd, rseq) }
        }
        if pid < 0 {
            return Err(host("fork of an address space"));
        }
        Ok(Self {
            memory: memory.clone(),
            root,
            pid,
            words: Words(words.cast()),
            making: Mutex::new(()),
            has_cpu: AtomicBool::new(false),
            _code: code,
        })
    }

    /// Has the leader make a task, parked in the stub; returns its id.
    pub fn new_task(&self) -> Result<libc::pid_t, PlatformError> {
        let _one_at_a_time = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        let command = self.words.command();
        command.store(1, Ordering::SeqCst);
        futex(command, libc::FUTEX_WAKE, 1);
        while command.load(Ordering::SeqCst) != 0 {
            // The timeout only guards against a leader that was killed from outside.
            futex(command, libc::FUTEX_WAIT, 1);
            if !self.is_alive() {
                return Err(PlatformError::Guest("its process is gone".into()));
            }
        }
        match self.words.tid().load(Ordering::SeqCst) as i32 {
            tid if tid > 0 => Ok(tid),
            _ => Err(PlatformError::Exhausted(
                "the host makes no more tasks".into(),
            )),
        }
    }

    /// Whether the caller is the first to have a CPU here.
    pub fn first_cpu(&self) -> bool {
        !self.has_cpu.swap(true, Ordering::SeqCst)
    }

    /// The process of all tasks.
    pub fn pid(&self) -> libc::pid_t {
        self.pid
    }

    fn is_alive(&self) -> bool {
        // SAFETY: WNOWAIT leaves the child as it is; `info` is valid to write to.
        unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
            libc::waitid(libc::P_PID, self.pid as u32, &raw mut info, flags) == 0
                && info.si_pid() == 0
        }
    }
}

impl Space for PtraceSpace {
    fn flush(&self, cpu: &mut dyn Cpu, start: u64, end: u64) -> Result<(), PlatformError> {
        let cpu = cpu.as_any_mut().downcast_mut::<PtraceCpu>();
        let cpu = cpu.ok_or_else(|| PlatformError::Guest("a CPU of another platform".into()))?;
        let end = end.min(USER_END);
        cpu.call(libc::SYS_munmap, [start, end - start, 0, 0, 0, 0])
            .map(|_| ())
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

impl Drop for PtraceSpace {
    fn drop(&mut self) {
        // SAFETY: the child is ours and not waited for yet; the words are mapped by `new`.
        unsafe {
            libc::kill(self.pid, libc::SIGKILL);
            libc::waitpid(self.pid, std::ptr::null_mut(), libc::__WALL);
            libc::munmap(self.words.0.cast(), PAGE as usize);
        }
    }
}

/// A memfd with the stub's code, then the page of words.
fn stub_file() -> Result<OwnedFd, PlatformError> {
    use std::{io::Write, os::fd::FromRawFd};
    // SAFETY: the name is a C string; the result is checked, and the descriptor is ours.
    let mut file = unsafe {
        let fd = libc::memfd_create(c"snaprig-stub".as_ptr(), libc::MFD_CLOEXEC);
        if fd < 0 {
            return Err(host("memfd_create of the stub"));
        }
        std::fs::File::from_raw_fd(fd)
    };
    let written = file
        .write_all(&stub::code())
        .and_then(|()| file.set_len(2 * PAGE));
    written.map_err(|source| PlatformError::Host {
        call: "the stub".into(),
        source,
    })?;
    Ok(file.into())
}

fn futex(word: &AtomicU32, operation: libc::c_int, value: u32) {
    let timeout = libc::timespec {
        tv_sec: 0,
        tv_nsec: 100_000_000,
    };
    // SAFETY: the word and the timeout are valid for the call.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            operation,
            value,
            &raw const timeout,
        );
    }
}

/// Bytes of the first version of `struct rseq`.
const RSEQ_BYTES: u32 = 32;
const RSEQ_UNREGISTER: i32 = 1;
/// glibc's signature on x86.
const RSEQ_SIGNATURE: u32 = 0x5305_3053;

/// The calling thread's restartable-sequences area (rseq(2)) and its size, if the C library has
/// registered one. A forked child inherits the registration, and would be killed by SIGSEGV if
/// the area were simply unmapped.
fn rseq_area() -> Option<(usize, u32)> {
    let symbol = |name: &std::ffi::CStr| {
        // SAFETY: the name is a C string.
        let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        (!address.is_null()).then_some(address)
    };
    // SAFETY: glibc declares the one as ptrdiff_t and the other as unsigned int, both constant.
    let (offset, bytes) = unsafe {
        (
            *symbol(c"__rseq_offset")?.cast::<isize>(),
            *symbol(c"__rseq_size")?.cast::<u32>(),
        )
    };
    let thread: usize;
    // SAFETY: on x86-64 the word at %fs:0 is the thread pointer itself (ELF TLS ABI).
    unsafe { std::arch::asm!("mov {}, fs:0", out(reg) thread, options(nostack, readonly)) };
    (bytes > 0).then(|| (thread.wrapping_add_signed(offset), bytes))
}

/// Maps the stub, gives up all descriptors but card memory, and goes to the leader's loop.
///
/// # Safety
/// To be called in a forked child only. It makes plain system calls and never returns.
unsafe fn become_empty(
    parent: libc::pid_t,
    stub_fd: i32,
    memory_fd: i32,
    rseq: Option<(usize, u32)>,
) -> ! {
    // SAFETY: as above. Descriptors: the stub's is used once, card memory's becomes `MEMORY_FD`.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        if libc::getppid() != parent {
            libc::_exit(1);
        }
        if let Some((area, bytes)) = rseq {
            for bytes in [bytes, RSEQ_BYTES] {
                libc::syscall(libc::SYS_rseq, area, bytes, RSEQ_UNREGISTER, RSEQ_SIGNATURE);
            }
        }
        let map = |fd: i32, prot: i32, flags: i32, at: u64, offset: u64| {
            let mapped = libc::mmap(
                at as *mut c_void,
                PAGE as usize,
                prot,
                flags,
                fd,
                offset as i64,
            );
            if mapped == libc::MAP_FAILED {
                libc::_exit(1);
            }
        };
        let fixed = libc::MAP_FIXED;
        map(
            stub_fd,
            libc::PROT_READ | libc::PROT_EXEC,
            libc::MAP_PRIVATE | fixed,
            STUB,
            0,
        );
        let words = libc::PROT_READ | libc::PROT_WRITE;
        map(stub_fd, words, libc::MAP_SHARED | fixed, WORDS, PAGE);
        libc::dup2(memory_fd, MEMORY_FD + 1);
        libc::dup2(MEMORY_FD + 1, MEMORY_FD);
        libc::syscall(libc::SYS_close_range, MEMORY_FD + 1, u32::MAX, 0);
        for fd in 0..MEMORY_FD {
            libc::close(fd);
        }
        // Signals do what they do by default; none is blocked.
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
        // The first CPU unmaps everything else: it can, from the stub; this code could not.
        std::arch::asm!(
            "jmp {leader}",
            leader = in(reg) STUB + LEADER,
            options(noreturn),
        );
    }
}
