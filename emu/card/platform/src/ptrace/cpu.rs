//! A guest thread's task.

use std::sync::{
    Arc, PoisonError,
    atomic::{AtomicBool, AtomicI32, Ordering},
};

use snaprig_card_memory::{
    PAGE, outside,
    paging::{self, Access},
};

use super::{
    outside as peer,
    space::{MEMORY_FD, PtraceSpace},
    stub,
    task::{FIXED_FLAGS, Task},
};
use crate::{Cpu, Exit, Kick, PlatformError, Regs, Space, kick_signal, signal::send_kick, xstate};

/// Pages that one fault maps at most, where their frames are neighbours.
const MAP_PAGES: u64 = 512;
const USER_FLAGS: u64 = 0x0025_0dd5;
const NT_X86_XSTATE: libc::c_int = 0x202;
const SYSCALL_STOP: i32 = libc::SIGTRAP | 0x80;
const SI_KERNEL: i32 = 0x80;
const SEGV_ACCERR: i32 = 2;
/// linux/audit.h.
const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;
/// The exception that a program gets for what it has no right to.
const GENERAL_PROTECTION: Exit = Exit::Exception {
    vector: 13,
    error_code: 0,
};
/// Larger than any state that a processor has today.
const XSTATE_MAX: usize = 16 << 10;
const XSTATE_BV: usize = 512;
const SW_BYTES: usize = 464;

/// A traced task that runs a thread of `space`.
pub struct PtraceCpu {
    space: Arc<dyn Space>,
    task: Task,
    kick: Arc<PtraceKick>,
    /// The task's registers at its last stop.
    user: libc::user_regs_struct,
}

impl PtraceCpu {
    /// A new task, seized by the calling thread.
    pub fn new(space: Arc<dyn Space>) -> Result<Self, PlatformError> {
        let process = process(&space)?;
        let task = Task::seize(process.new_task()?)?;
        let kick = Arc::new(PtraceKick {
            pid: AtomicI32::new(process.pid()),
            tid: AtomicI32::new(task.tid),
            pending: AtomicBool::new(false),
        });
        Ok(Self {
            user: task.first(),
            space: space.clone(),
            task,
            kick,
        })
    }

    /// Unmaps a part of its address space.
    pub fn unmap(&mut self, start: u64, len: u64) -> Result<(), PlatformError> {
        self.task.unmap(start, len)
    }

    fn load(&mut self, regs: &Regs) -> Result<(), PlatformError> {
        let u = &mut self.user;
        (u.rax, u.rbx, u.rcx, u.rdx) = (regs.rax, regs.rbx, regs.rcx, regs.rdx);
        (u.rsi, u.rdi, u.rbp, u.rsp) = (regs.rsi, regs.rdi, regs.rbp, regs.rsp);
        (u.r8, u.r9, u.r10, u.r11) = (regs.r8, regs.r9, regs.r10, regs.r11);
        (u.r12, u.r13, u.r14, u.r15) = (regs.r12, regs.r13, regs.r14, regs.r15);
        (u.rip, u.fs_base, u.gs_base) = (regs.rip, regs.fs_base, regs.gs_base);
        u.eflags = regs.rflags & USER_FLAGS | FIXED_FLAGS;
        self.task.set_registers(&self.user)
    }

    fn store(&mut self, regs: &mut Regs) -> Result<(), PlatformError> {
        self.user = self.task.registers()?;
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
        // SAFETY: the structure has numbers alone, for which zero is a value.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        self.task
            .ptrace(libc::PTRACE_GETSIGINFO, 0, (&raw mut info) as u64)?;
        Ok(match signal {
            libc::SIGFPE => exception(0),
            libc::SIGTRAP => exception(3),
            libc::SIGILL => exception(6),
            // The vsyscall page, which the filter refuses.
            libc::SIGSYS => Some(GENERAL_PROTECTION),
            libc::SIGSEGV | libc::SIGBUS if info.si_code == SI_KERNEL => Some(GENERAL_PROTECTION),
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
        let mapping = process.mapping.read();
        let _mapping = mapping.unwrap_or_else(PoisonError::into_inner);
        let look = |va| paging::lookup(&process.memory, process.root, va);
        let Some((frame, access)) = look(page).filter(|(_, a)| a.allows(write, execute)) else {
            return Ok(Some(fault));
        };
        // Where writes are tracked, the first one to a page has to come here.
        let is_outside = frame >= outside::START;
        let tracked = process.memory.dirty().is_on() && !is_outside;
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
            if is_outside {
                let opening = process.opening.lock();
                let _opening = opening.unwrap_or_else(PoisonError::into_inner);
                let prot = prot & !(libc::PROT_EXEC as u64);
                return peer::map(&cpu.task, &process.memory, first, len, prot, offset);
            }
            let mapped = cpu.task.call(
                stub::CALL,
                libc::SYS_mmap,
                [first, len, prot, flags, MEMORY_FD as u64, offset],
            );
            mapped.map(drop)
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
        self.task
            .ptrace(libc::PTRACE_GETREGSET, NT_X86_XSTATE as u64, at)?;
        area.truncate(vector.iov_len);
        Ok(area)
    }

    /// What a system call of the task's means. On the card, as behind `kvm`, there is only the 64-bit `syscall`.
    fn system_call(&self, regs: &mut Regs) -> Result<Exit, PlatformError> {
        // SAFETY: the structure has numbers and arrays of numbers alone, for which zero is a value.
        let mut info: libc::ptrace_syscall_info = unsafe { std::mem::zeroed() };
        self.task.ptrace(
            libc::PTRACE_GET_SYSCALL_INFO,
            size_of_val(&info) as u64,
            (&raw mut info) as u64,
        )?;
        if info.arch == AUDIT_ARCH_X86_64 {
            regs.rax = self.user.orig_rax;
            return Ok(Exit::Syscall);
        }
        // `int $0x80`, of two bytes. What `sysenter` leaves in rip is no address of the program's.
        regs.rip = regs.rip.wrapping_sub(2);
        Ok(GENERAL_PROTECTION)
    }
}

impl Cpu for PtraceCpu {
    fn run(&mut self, regs: &mut Regs) -> Result<Exit, PlatformError> {
        loop {
            if self.kick.pending.swap(false, Ordering::SeqCst) {
                return Ok(Exit::Kicked);
            }
            self.load(regs)?;
            self.task.ptrace(libc::PTRACE_SYSEMU, 0, 0)?;
            let signal = libc::WSTOPSIG(self.task.wait()?);
            self.store(regs)?;
            if signal == SYSCALL_STOP {
                return self.system_call(regs);
            }
            if !self.task.is_64_bit(&self.user) {
                // The card has no 32-bit code; the host cannot be kept from having it.
                return Ok(GENERAL_PROTECTION);
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
        self.task
            .ptrace(libc::PTRACE_SETREGSET, NT_X86_XSTATE as u64, at)
    }

    fn set_space(&mut self, space: Arc<dyn Space>) -> Result<(), PlatformError> {
        let mut successor = Self::new(space)?;
        self.task.end();
        // The kernel keeps the handle that it was given first.
        self.kick
            .pid
            .store(process(&successor.space)?.pid(), Ordering::SeqCst);
        self.kick.tid.store(successor.task.tid, Ordering::SeqCst);
        std::mem::swap(&mut self.space, &mut successor.space);
        self.task = successor.task;
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
        self.task.end();
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
            send_kick(pid, tid);
        }
    }
}

fn process(space: &Arc<dyn Space>) -> Result<&PtraceSpace, PlatformError> {
    space
        .as_any()
        .downcast_ref::<PtraceSpace>()
        .ok_or_else(|| PlatformError::Guest("a space of another platform".into()))
}
