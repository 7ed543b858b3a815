//! A guest thread's task, as its tracer sees it.

use std::{
    ffi::c_void,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI32, Ordering},
    },
};

use super::{
    super::{Cpu, Exit, Kick, PlatformError, Regs, Space, kick_signal},
    host,
    space::{MEMORY_FD, PtraceSpace},
    stub::STUB,
};
use crate::{
    memory::PAGE,
    paging::{self, Access},
    xstate,
};

/// Pages that one fault maps at most, where their frames are neighbours.
const MAP_PAGES: u64 = 512;
const USER_FLAGS: u64 = 0x0025_0dd5;
const FIXED_FLAGS: u64 = 0x202;
/// End of a host process's addresses.
const TASK_END: u64 = 0x7fff_ffff_f000;
const NT_X86_XSTATE: libc::c_int = 0x202;
const SYSCALL_STOP: i32 = libc::SIGTRAP | 0x80;
const SI_KERNEL: i32 = 0x80;
const SEGV_ACCERR: i32 = 2;
/// Larger than any state that a processor has today.
const XSTATE_MAX: usize = 16 << 10;
const XSTATE_BV: usize = 512;
const SW_BYTES: usize = 464;

/// A traced task that runs a thread of `space`.
pub struct PtraceCpu {
    space: Arc<dyn Space>,
    tid: libc::pid_t,
    kick: Arc<PtraceKick>,
    /// Segment selectors and all else that the kernel does not touch.
    user: libc::user_regs_struct,
}

impl PtraceCpu {
    /// A new task, seized by the calling thread.
    pub fn new(space: Arc<dyn Space>) -> Result<Self, PlatformError> {
        let process = process(&space)?;
        let tid = process.new_task()?;
        let options = libc::PTRACE_O_EXITKILL | libc::PTRACE_O_TRACESYSGOOD;
        ptrace(libc::PTRACE_SEIZE, tid, 0, options as u64)?;
        ptrace(libc::PTRACE_INTERRUPT, tid, 0, 0)?;
        let kick = Arc::new(PtraceKick {
            pid: AtomicI32::new(process.pid()),
            tid: AtomicI32::new(tid),
            pending: AtomicBool::new(false),
        });
        // SAFETY: plain integers, for which zero is a value.
        let user = unsafe { std::mem::zeroed() };
        let mut cpu = Self {
            space: space.clone(),
            tid,
            kick,
            user,
        };
        cpu.wait()?;
        cpu.user = cpu.registers()?;
        if process.first_cpu() {
            // What is left of the VMM's memory in a process that was forked from it.
            let above = STUB + 2 * PAGE;
            cpu.call(libc::SYS_munmap, [0, STUB, 0, 0, 0, 0])?;
            cpu.call(libc::SYS_munmap, [above, TASK_END - above, 0, 0, 0, 0])?;
        }
        Ok(cpu)
    }

    fn registers(&self) -> Result<libc::user_regs_struct, PlatformError> {
        // SAFETY: plain integers, for which zero is a value.
        let mut user: libc::user_regs_struct = unsafe { std::mem::zeroed() };
        ptrace(libc::PTRACE_GETREGS, self.tid, 0, (&raw mut user) as u64)?;
        Ok(user)
    }

    fn set_registers(&self, user: &libc::user_regs_struct) -> Result<(), PlatformError> {
        ptrace(libc::PTRACE_SETREGS, self.tid, 0, (&raw const *user) as u64)
    }

    /// Waits until the task stops; returns the stop's status.
    fn wait(&self) -> Result<i32, PlatformError> {
        let mut status = 0;
        loop {
            // SAFETY: `status` is valid to write to.
            let waited = unsafe { libc::waitpid(self.tid, &raw mut status, libc::__WALL) };
            if waited == self.tid && libc::WIFSTOPPED(status) {
                return Ok(status);
            }
            if waited == self.tid {
                return Err(PlatformError::Guest(format!("its task ended: {status:#x}")));
            }
            if std::io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
                return Err(host("waitpid"));
            }
        }
    }

    /// Makes the (stopped) task do one system call of the tracer's.
    pub fn call(&mut self, number: i64, args: [u64; 6]) -> Result<u64, PlatformError> {
        let mut user = self.user;
        (user.rip, user.rax) = (STUB, number as u64);
        user.orig_rax = u64::MAX;
        (user.rdi, user.rsi, user.rdx) = (args[0], args[1], args[2]);
        (user.r10, user.r8, user.r9) = (args[3], args[4], args[5]);
        user.eflags = FIXED_FLAGS;
        self.set_registers(&user)?;
        loop {
            ptrace(libc::PTRACE_CONT, self.tid, 0, 0)?;
            let status = self.wait()?;
            // The `int3` behind the `syscall`. A kick that comes meanwhile stays pending.
            if libc::WSTOPSIG(status) == libc::SIGTRAP && status >> 16 == 0 {
                break;
            }
        }
        let result = self.registers()?.rax;
        if (-4095..0).contains(&(result as i64)) {
            return Err(PlatformError::Host {
                call: format!("system call {number} in the traced process"),
                source: std::io::Error::from_raw_os_error(-(result as i64) as i32),
            });
        }
        Ok(result)
    }

    fn load(&mut self, regs: &Regs) -> Result<(), PlatformError> {
        let u = &mut self.user;
        (u.rax, u.rbx, u.rcx, u.rdx) = (regs.rax, regs.rbx, regs.rcx, regs.rdx);
        (u.rsi, u.rdi, u.rbp, u.rsp) = (regs.rsi, regs.rdi, regs.rbp, regs.rsp);
        (u.r8, u.r9, u.r10, u.r11) = (regs.r8, regs.r9, regs.r10, regs.r11);
        (u.r12, u.r13, u.r14, u.r15) = (regs.r12, regs.r13, regs.r14, regs.r15);
        (u.rip, u.fs_base, u.gs_base) = (regs.rip, regs.fs_base, regs.gs_base);
        u.eflags = regs.rflags & USER_FLAGS | FIXED_FLAGS;
        // No restart of a system call that the host believes to be interrupted.
        u.orig_rax = u64::MAX;
        let user = self.user;
        self.set_registers(&user)
    }

    fn store(&mut self, regs: &mut Regs) -> Result<(), PlatformError> {
        self.user = self.registers()?;
        let u = &self.user;
        *regs = Regs {
            rax: u.rax,
            rbx: u.rbx,
            rcx: u.rcx,
            rdx: u.rdx,
            rsi: u.rsi,
            rdi: u.rdi,
            rbp: u.rbp,
            rsp: u.rsp,
            r8: u.r8,
            r9: u.r9,
            r10: u.r10,
            r11: u.r11,
            r12: u.r12,
            r13: u.r13,
            r14: u.r14,
            r15: u.r15,
            rip: u.rip,
            fs_base: u.fs_base,
            gs_base: u.gs_base,
            rflags: u.eflags & USER_FLAGS | FIXED_FLAGS,
        };
        Ok(())
    }

    /// What a signal that stopped the task means.
    fn signal(&mut self, signal: i32, regs: &mut Regs) -> Result<Option<Exit>, PlatformError> {
        let exception = |vector| {
            Some(Exit::Exception {
                vector,
                error_code: 0,
            })
        };
        if signal == kick_signal() {
            return Ok(self
                .kick
                .pending
                .swap(false, Ordering::SeqCst)
                .then_some(Exit::Kicked));
        }
        // SAFETY: plain integers, for which zero is a value.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        ptrace(libc::PTRACE_GETSIGINFO, self.tid, 0, (&raw mut info) as u64)?;
        Ok(match signal {
            libc::SIGFPE => exception(0),
            libc::SIGTRAP => exception(3),
            libc::SIGILL => exception(6),
            libc::SIGSEGV | libc::SIGBUS if info.si_code == SI_KERNEL => exception(13),
            libc::SIGSEGV | libc::SIGBUS => {
                // SAFETY: the signal is one of those that have an address.
                let address = unsafe { info.si_addr() } as u64;
                self.page_fault(address, info.si_code == SEGV_ACCERR, regs)?
            }
            other => {
                tracing::warn!(
                    signal = other,
                    "a traced task was sent a signal from outside"
                );
                None
            }
        })
    }

    /// Maps what the page tables have at `address`, or reports the fault.
    ///
    /// The host does not tell reads from writes. But reading is allowed wherever anything is, so
    /// an access to nothing counts as a read, and one that was `denied` is a write or a fetch.
    fn page_fault(
        &mut self,
        address: u64,
        denied: bool,
        regs: &Regs,
    ) -> Result<Option<Exit>, PlatformError> {
        let execute = address & !(PAGE - 1) == regs.rip & !(PAGE - 1);
        let write = denied && !execute;
        let fault = Exit::PageFault {
            address,
            write,
            execute,
        };
        let space = self.space.clone();
        let process = process(&space)?;
        let page = address & !(PAGE - 1);
        let look = |va| paging::lookup(&process.memory, process.root, va);
        let Some((frame, access)) = look(page).filter(|(_, a)| a.allows(write, execute)) else {
            return Ok(Some(fault));
        };
        // Where writes are tracked, the first one to a page has to come here.
        let tracked = process.memory.dirty().is_on();
        let writes = access.write && (write || access.execute || !tracked);
        let map = |cpu: &mut Self, first: u64, last: u64| {
            let offset = frame - (page - first);
            let len = last - first + PAGE;
            for at in (offset..offset + len).step_by(PAGE as usize) {
                if tracked && writes {
                    process.memory.dirty().mark(at);
                }
            }
            let flags = (libc::MAP_SHARED | libc::MAP_FIXED) as u64;
            let prot = prot(Access {
                write: writes,
                ..access
            });
            cpu.call(
                libc::SYS_mmap,
                [first, len, prot, flags, MEMORY_FD as u64, offset],
            )
        };
        // The host has room for only so many pages that differ from their neighbours.
        if tracked && writes && map(self, page, page).is_ok() {
            return Ok(None);
        }
        let (mut first, mut last) = (page, page);
        let fits = |va: u64, at: u64| look(va) == Some((at, access));
        while first > 0
            && (page - first) / PAGE < MAP_PAGES
            && frame >= page - first + PAGE
            && fits(first - PAGE, frame - (page - first) - PAGE)
        {
            first -= PAGE;
        }
        while (last - page) / PAGE < MAP_PAGES && fits(last + PAGE, frame + (last - page) + PAGE) {
            last += PAGE;
        }
        map(self, first, last)?;
        Ok(None)
    }
}

fn prot(access: Access) -> u64 {
    let write = if access.write { libc::PROT_WRITE } else { 0 };
    let execute = if access.execute { libc::PROT_EXEC } else { 0 };
    (libc::PROT_READ | write | execute) as u64
}

impl PtraceCpu {
    fn xsave_area(&self) -> Result<Vec<u8>, PlatformError> {
        let mut area = vec![0; XSTATE_MAX];
        let mut vector = libc::iovec {
            iov_base: area.as_mut_ptr().cast(),
            iov_len: area.len(),
        };
        let at = (&raw mut vector) as u64;
        ptrace(libc::PTRACE_GETREGSET, self.tid, NT_X86_XSTATE as u64, at)?;
        area.truncate(vector.iov_len);
        Ok(area)
    }

    /// Ends the task.
    fn end(&mut self) {
        let mut user = self.user;
        (user.rip, user.rax, user.rdi, user.orig_rax) = (STUB, libc::SYS_exit as u64, 0, u64::MAX);
        // The host takes back no base out of user space, which wrgsbase may have put there.
        (user.fs_base, user.gs_base) = (0, 0);
        let going = self.set_registers(&user).is_ok();
        // A kick may stop it on its way.
        while going && ptrace(libc::PTRACE_CONT, self.tid, 0, 0).is_ok() && self.wait().is_ok() {}
    }
}

impl Cpu for PtraceCpu {
    fn run(&mut self, regs: &mut Regs) -> Result<Exit, PlatformError> {
        loop {
            if self.kick.pending.swap(false, Ordering::SeqCst) {
                return Ok(Exit::Kicked);
            }
            self.load(regs)?;
            ptrace(libc::PTRACE_SYSEMU, self.tid, 0, 0)?;
            let signal = libc::WSTOPSIG(self.wait()?);
            self.store(regs)?;
            if signal == SYSCALL_STOP {
                regs.rax = self.user.orig_rax;
                return Ok(Exit::Syscall);
            }
            if let Some(exit) = self.signal(signal, regs)? {
                return Ok(exit);
            }
        }
    }

    fn xstate(&mut self) -> Result<Vec<u8>, PlatformError> {
        let mut area = self.xsave_area()?;
        area.resize(xstate::bytes(), 0);
        area[SW_BYTES..XSTATE_BV].fill(0);
        xstate::mask_features(&mut area);
        Ok(area)
    }

    fn set_xstate(&mut self, state: &[u8]) -> Result<(), PlatformError> {
        xstate::check(state)?;
        let mut area = self.xsave_area()?;
        let len = state.len().min(area.len());
        area[..len].copy_from_slice(&state[..len]);
        let mut vector = libc::iovec {
            iov_base: area.as_mut_ptr().cast(),
            iov_len: area.len(),
        };
        let at = (&raw mut vector) as u64;
        ptrace(libc::PTRACE_SETREGSET, self.tid, NT_X86_XSTATE as u64, at)
    }

    fn set_space(&mut self, space: Arc<dyn Space>) -> Result<(), PlatformError> {
        let mut successor = Self::new(space)?;
        self.end();
        // The kernel keeps the handle that it was given first.
        self.kick
            .pid
            .store(process(&successor.space)?.pid(), Ordering::SeqCst);
        self.kick.tid.store(successor.tid, Ordering::SeqCst);
        std::mem::swap(&mut self.space, &mut successor.space);
        std::mem::swap(&mut self.tid, &mut successor.tid);
        self.user = successor.user;
        // The task that it would end has ended already.
        std::mem::forget(successor);
        Ok(())
    }

    fn kicker(&self) -> Arc<dyn Kick> {
        self.kick.clone()
    }

    fn as_any_mut(&mut self) -> &mut dyn std::any::Any {
        self
    }
}

impl Drop for PtraceCpu {
    fn drop(&mut self) {
        self.kick.tid.store(0, Ordering::SeqCst);
        self.end();
    }
}

struct PtraceKick {
    pid: AtomicI32,
    /// 0 when there is no task any more.
    tid: AtomicI32,
    pending: AtomicBool,
}

impl Kick for PtraceKick {
    fn kick(&self) {
        self.pending.store(true, Ordering::SeqCst);
        let (pid, tid) = (
            self.pid.load(Ordering::SeqCst),
            self.tid.load(Ordering::SeqCst),
        );
        if tid != 0 {
            // SAFETY: no memory is involved; the tracer swallows the signal.
            unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, kick_signal()) };
        }
    }
}

fn process(space: &Arc<dyn Space>) -> Result<&PtraceSpace, PlatformError> {
    space
        .as_any()
        .downcast_ref::<PtraceSpace>()
        .ok_or_else(|| PlatformError::Guest("a space of another platform".into()))
}

fn ptrace(
    request: libc::c_uint,
    tid: libc::pid_t,
    address: u64,
    data: u64,
) -> Result<(), PlatformError> {
    // SAFETY: every caller passes the addresses that its request wants, valid for the call.
    let result = unsafe { libc::ptrace(request, tid, address as *mut c_void, data as *mut c_void) };
    if result < 0 {
        Err(host(&format!("ptrace request {request:#x}")))
    } else {
        Ok(())
    }
}
