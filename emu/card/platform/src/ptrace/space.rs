//! An address space: a host process with nothing in it.

use std::{
    ffi::c_void,
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::process::ExitStatusExt,
    },
    process::ExitStatus,
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        mpsc::{Sender, channel},
    },
};

use seccompiler::BpfProgram;
use snaprig_card_memory::{CardMemory, PAGE, USER_END};

use super::{
    Request,
    cpu::PtraceCpu,
    filter, host,
    stub::{self, STUB},
    task::Task,
};
use crate::{Cpu, PlatformError, Space};

/// Descriptor of card memory in every traced process, and the only one it has, but while a peer's memory is
/// mapped (`outside`).
pub const MEMORY_FD: i32 = 3;
/// How a task is made: a thread of the process, without a stack, which the stub does not need.
pub const CLONE_FLAGS: u64 = (libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_FILES
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD
    | libc::CLONE_SYSVSEM) as u64;
/// End of a host process's addresses.
const TASK_END: u64 = 0x7fff_ffff_f000;

/// The traced process of one address space.
pub struct PtraceSpace {
    pub(super) memory: Arc<CardMemory>,
    pub(super) root: u64,
    leader: Leader,
    /// Held for reading from a look into the page tables until what they say is mapped: who changes them
    /// and then flushes finds it mapped, or it is the change that is.
    pub(super) mapping: RwLock<()>,
    /// Held while the process has a descriptor of a peer's memory.
    pub(super) opening: Mutex<()>,
    /// To the forking thread, which traces the leader.
    forker: Mutex<Sender<Request>>,
}

/// The first task of a process. It never runs the guest's code: it makes the tasks that do. Traced by the
/// thread that forked it.
struct Leader(Task);

impl PtraceSpace {
    /// A process with the stub and nothing else, traced by the calling thread, which answers `forker`.
    pub fn new(
        memory: &Arc<CardMemory>,
        root: u64,
        forker: Sender<Request>,
    ) -> Result<Self, PlatformError> {
        let code = stub_file()?;
        let filter = filter::program().map_err(|source| PlatformError::Host {
            call: "the traced processes' seccomp filter".into(),
            source,
        })?;
        let parent = rustix::process::getpid().as_raw_pid();
        let (stub_fd, memory_fd) = (code.as_raw_fd(), memory.memfd().as_fd().as_raw_fd());
        let rseq = rseq_area();
        // SAFETY: the child calls only async-signal-safe functions until it is in the stub.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // SAFETY: this is the forked child, and `filter` was built before the fork.
            unsafe { become_empty(parent, stub_fd, memory_fd, rseq, &filter) }
        }
        if pid < 0 {
            return Err(host("fork of an address space"));
        }
        let task = Task::volunteer(pid, failure)?;
        let leader = Leader(task);
        // What is left of the VMM's memory in a process that was forked from it.
        let above = STUB + PAGE;
        task.unmap(0, STUB)?;
        task.unmap(above, TASK_END - above)?;
        Ok(Self {
            memory: memory.clone(),
            root,
            leader,
            mapping: RwLock::default(),
            opening: Mutex::default(),
            forker: Mutex::new(forker),
        })
    }

    /// Has the leader make a task, parked in the stub; returns its id.
    pub fn new_task(&self) -> Result<libc::pid_t, PlatformError> {
        self.ask(|leader, reply| Request::Task { leader, reply })
    }

    /// Has the thread that traces the leader do something with it.
    fn ask<T>(
        &self,
        request: impl FnOnce(Task, Sender<Result<T, PlatformError>>) -> Request,
    ) -> Result<T, PlatformError> {
        let (reply, answer) = channel();
        let forker = self.forker.lock().unwrap_or_else(PoisonError::into_inner);
        let sent = forker.send(request(self.leader.0, reply));
        sent.map_err(|_| super::forker_gone())?;
        drop(forker);
        answer.recv().map_err(|_| super::forker_gone())?
    }

    /// The process of all tasks.
    pub fn pid(&self) -> libc::pid_t {
        self.leader.0.tid
    }
}

/// Has a leader make a task. On the thread that traces it.
pub fn spawn(leader: Task) -> Result<libc::pid_t, PlatformError> {
    let made = leader.call(stub::SPAWN, libc::SYS_clone, [CLONE_FLAGS, 0, 0, 0, 0, 0]);
    made.map(|tid| tid as libc::pid_t)
}

impl Space for PtraceSpace {
    fn flush(&self, cpu: Option<&mut dyn Cpu>, start: u64, end: u64) -> Result<(), PlatformError> {
        let _nobody_maps = self.mapping.write().unwrap_or_else(PoisonError::into_inner);
        let len = end.min(USER_END) - start;
        let Some(cpu) = cpu else {
            return self.ask(|leader, reply| Request::Unmap {
                leader,
                start,
                len,
                reply,
            });
        };
        let cpu = cpu.as_any_mut().downcast_mut::<PtraceCpu>();
        let cpu = cpu.ok_or_else(|| PlatformError::Guest("a CPU of another platform".into()))?;
        cpu.unmap(start, len)
    }

    /// Its processes end with it.
    fn end(&self) -> Result<(), PlatformError> {
        Ok(())
    }

    fn has_own_mapping(&self) -> bool {
        true
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        let mut status = 0;
        let mut wait = |flags| {
            // SAFETY: `status` is an integer of this frame, which outlives the call that writes to it.
            let waited =
                unsafe { libc::waitpid(self.0.tid, &raw mut status, flags | libc::__WALL) };
            waited == 0 || waited == self.0.tid && libc::WIFSTOPPED(status)
        };
        // Killed from outside it may be nobody's any more, and its number another's.
        let mut alive = wait(libc::WNOHANG);
        while alive {
            // The process is a child that has not been waited for, so the number is still its own.
            if let Some(child) = rustix::process::Pid::from_raw(self.0.tid) {
                let _ = rustix::process::kill_process(child, rustix::process::Signal::KILL);
            }
            alive = wait(0);
        }
    }
}

/// A memfd with the stub's code.
fn stub_file() -> Result<OwnedFd, PlatformError> {
    use std::io::Write;
    let memfd = rustix::fs::memfd_create(c"snaprig-stub", rustix::fs::MemfdFlags::CLOEXEC);
    let memfd = memfd.map_err(|errno| PlatformError::Host {
        call: "memfd_create of the stub".into(),
        source: errno.into(),
    })?;
    let mut file = std::fs::File::from(memfd);
    let written = file.write_all(&stub::code());
    written.map_err(|source| PlatformError::Host {
        call: "the stub".into(),
        source,
    })?;
    Ok(file.into())
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
        // SAFETY: the name ends with a zero byte, and dlsym(3) only reads it; the default handle is always there.
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

/// What a child that did not get into the stub exits with, for want of another way to say it.
const NO_PARENT: i32 = 1;
const NO_STUB: i32 = 2;
const NOT_TRACED: i32 = 3;
/// And what seccomp(2) said, as far as it fits into a byte (ENOTSUPP, which it says when the kernel has no room
/// for the filter's code, does not).
const NO_FILTER: i32 = 4;
const ERRNO_MAX: i32 = u8::MAX as i32 - NO_FILTER;

/// Why a child never got into the stub, by the status of its end.
fn failure(status: i32) -> String {
    let status = ExitStatus::from_raw(status);
    let why = match status.code() {
        Some(NO_PARENT) => "it was orphaned at once".into(),
        Some(NO_STUB) => "the stub could not be mapped".into(),
        Some(NOT_TRACED) => "it may not be traced".into(),
        Some(code) if code >= NO_FILTER => match code - NO_FILTER {
            ERRNO_MAX => "the kernel has no room for its filter's code".into(),
            errno => format!("its filter: {}", std::io::Error::from_raw_os_error(errno)),
        },
        _ => status.to_string(),
    };
    format!("its process did not become an address space: {why}")
}

/// Maps the stub, gives up all descriptors but card memory, enters the filter, and stops in the stub for
/// its tracer.
///
/// # Safety
/// To be called in a forked child only. It makes plain system calls and never returns.
unsafe fn become_empty(
    parent: libc::pid_t,
    stub_fd: i32,
    memory_fd: i32,
    rseq: Option<(usize, u32)>,
    filter: &BpfProgram,
) -> ! {
    // SAFETY: the caller is a forked child: a process of one thread with a copy of its parent's memory, all of which it is
    // about to lose. Every call here is a system call, or as plain as one (async-signal-safe), so none waits for a lock
    // that another thread of the parent held. The pointers are to locals and to `filter`, which live through the calls;
    // the mapping replaces nothing, since the stub is above what programs of the host get. Of descriptors only numbers
    // are used: the stub's once, card memory's becomes `MEMORY_FD`, and no Rust code that owns one runs any more.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        if libc::getppid() != parent {
            libc::_exit(NO_PARENT);
        }
        if let Some((area, bytes)) = rseq {
            for bytes in [bytes, RSEQ_BYTES] {
                libc::syscall(libc::SYS_rseq, area, bytes, RSEQ_UNREGISTER, RSEQ_SIGNATURE);
            }
        }
        let mapped = libc::mmap(
            STUB as *mut c_void,
            PAGE as usize,
            libc::PROT_READ | libc::PROT_EXEC,
            libc::MAP_PRIVATE | libc::MAP_FIXED,
            stub_fd,
            0,
        );
        libc::dup2(memory_fd, MEMORY_FD + 1);
        libc::dup2(MEMORY_FD + 1, MEMORY_FD);
        libc::syscall(libc::SYS_close_range, MEMORY_FD + 1, u32::MAX, 0);
        for fd in 0..MEMORY_FD {
            libc::close(fd);
        }
        // Signals do what they do by default; none is blocked.
        for signal in 1..=libc::SIGRTMAX() {
            libc::signal(signal, libc::SIG_DFL);
        }
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
        if mapped == libc::MAP_FAILED {
            libc::_exit(NO_STUB);
        }
        if libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) != 0 {
            libc::_exit(NOT_TRACED);
        }
        if !filter::enter(filter) {
            libc::_exit(NO_FILTER + (*libc::__errno_location()).min(ERRNO_MAX));
        }
        // The tracer unmaps everything else: it can, from the stub; this code could not.
        std::arch::asm!(
            "jmp {stop}",
            stop = in(reg) stub::CALL.end - 1,
            options(noreturn),
        );
    }
}
