//! A guest thread's virtual CPU.

use std::{
    os::fd::AsRawFd,
    sync::{
        Arc, Once,
        atomic::{AtomicBool, AtomicI32, Ordering},
    },
};

use kvm_bindings::{
    KVM_VCPU_TSC_CTRL, KVM_VCPU_TSC_OFFSET, Msrs, kvm_device_attr, kvm_msr_entry, kvm_regs,
    kvm_run, kvm_sregs, kvm_xcr, kvm_xcrs, kvm_xsave,
};
use kvm_ioctls::{SyncReg, VcpuExit, VcpuFd};
use snaprig_card_memory::{PAGE, paging};

use super::{
    KvmSpace, Vm, host,
    system::{self, EXCEPTION_PORT, STUB, SYSCALL_PORT, USER_CS, VECTORS},
};
use crate::{Cpu, Exit, Kick, PlatformError, Regs, Space, signal::send_kick, xstate};

const MSR_TSC: u32 = 0x10;
/// `_IOW(KVMIO, 0xe1, struct kvm_device_attr)`, of a virtual CPU.
const KVM_SET_DEVICE_ATTR: libc::c_ulong = 0x4018_aee1;
const MSR_STAR: u32 = 0xc000_0081;
const MSR_LSTAR: u32 = 0xc000_0082;
const MSR_SFMASK: u32 = 0xc000_0084;
/// Flags that `syscall` clears where it enters ring 0: trap, interrupt, direction, nested task.
const SYSCALL_MASK: u64 = 0x4700;
/// Flags that a program sees and may change: CF PF AF ZF SF TF DF OF RF AC ID.
const USER_FLAGS: u64 = 0x0025_0dd5;
/// Always set: the reserved bit, and interrupts on.
const FIXED_FLAGS: u64 = 0x202;
/// Exceptions that push an error code (AMD64 manual, volume 2, table 8-1).
const ERROR_CODE_VECTORS: u32 = 1 << 8 | 0x1f << 10 | 1 << 17 | 1 << 21 | 1 << 29 | 1 << 30;

/// A virtual CPU, in use or idle.
pub struct Vcpu {
    fd: VcpuFd,
    tss: u64,
    /// Frame of its exception stack.
    stack: u64,
    /// Extended state as the processor starts with it.
    initial: Box<kvm_xsave>,
}

impl Vcpu {
    /// Virtual CPU number `index` of the VM, ready for ring 3.
    pub fn new(vm: &Vm, index: u64) -> Result<Self, PlatformError> {
        // First, as memory may be full: a virtual CPU that is made is never unmade.
        let (tss, stack) = vm.system.add_cpu(&vm.memory, index)?;
        let mut fd = vm
            .fd
            .create_vcpu(index)
            .map_err(|e| host("KVM_CREATE_VCPU", e))?;
        fd.set_cpuid2(&vm.cpuid)
            .map_err(|e| host("KVM_SET_CPUID2", e))?;
        let (xcr0, fsgsbase) = system::features(&vm.cpuid);
        let mut sregs = fd.get_sregs().map_err(|e| host("KVM_GET_SREGS", e))?;
        system::boot(&mut sregs, 0, tss, fsgsbase);
        fd.set_sregs(&sregs).map_err(|e| host("KVM_SET_SREGS", e))?;
        let mut xcrs = kvm_xcrs {
            nr_xcrs: 1,
            ..Default::default()
        };
        xcrs.xcrs[0] = kvm_xcr {
            xcr: 0,
            value: xcr0,
            ..Default::default()
        };
        fd.set_xcrs(&xcrs).map_err(|e| host("KVM_SET_XCRS", e))?;
        set_msrs(
            &fd,
            &[
                (MSR_STAR, system::STAR),
                (MSR_LSTAR, STUB),
                (MSR_SFMASK, SYSCALL_MASK),
            ],
        )?;
        take_host_counter(&fd);
        fd.set_sync_valid_reg(SyncReg::Register);
        fd.set_sync_valid_reg(SyncReg::SystemRegister);
        let initial = Box::new(fd.get_xsave().map_err(|e| host("KVM_GET_XSAVE", e))?);
        Ok(Self {
            fd,
            tss,
            stack,
            initial,
        })
    }

    /// Whether its time stamp counter is the host's, as KVM has it.
    pub fn has_host_counter(&self) -> Result<bool, PlatformError> {
        // SAFETY: every x86-64 processor has the counter, and Linux lets programs read it.
        let counter = || unsafe { std::arch::x86_64::_rdtsc() };
        let entry = kvm_msr_entry {
            index: MSR_TSC,
            ..Default::default()
        };
        let mut msrs = Msrs::from_entries(&[entry]).expect("one entry fits");
        let before = counter();
        let read = self.fd.get_msrs(&mut msrs);
        let read = read.map_err(|e| host("KVM_GET_MSRS", e))?;
        let theirs = msrs.as_slice()[0].data;
        Ok(read == 1 && (before..=counter()).contains(&theirs))
    }

    fn set_root(&mut self, root: u64) -> Result<(), PlatformError> {
        let mut sregs = self.fd.get_sregs().map_err(|e| host("KVM_GET_SREGS", e))?;
        sregs.cr3 = root;
        self.fd
            .set_sregs(&sregs)
            .map_err(|e| host("KVM_SET_SREGS", e))?;
        // KVM fills in the shared copy only at an exit, and there has been none with this root.
        self.fd.sync_regs_mut().sregs = sregs;
        Ok(())
    }

    fn set_xsave(&self, xsave: &kvm_xsave) -> Result<(), PlatformError> {
        // SAFETY: the structure is 4096 bytes, and no feature that needs more is enabled: AMX is
        // hidden from CPUID.
        unsafe { self.fd.set_xsave(xsave) }.map_err(|e| host("KVM_SET_XSAVE", e))
    }
}

/// Lets the time stamp counter be the host's (kvm's vcpu.rst, KVM_VCPU_TSC_OFFSET), so that clocks
/// can be read in ring 3. Where it cannot be, [`Vcpu::has_host_counter`] tells.
fn take_host_counter(fd: &VcpuFd) {
    let offset = 0u64;
    let attribute = kvm_device_attr {
        flags: 0,
        group: KVM_VCPU_TSC_CTRL,
        attr: KVM_VCPU_TSC_OFFSET.into(),
        addr: (&raw const offset) as u64,
    };
    // SAFETY: the structure and the value that it points to live through the call.
    unsafe { libc::ioctl(fd.as_raw_fd(), KVM_SET_DEVICE_ATTR, &raw const attribute) };
}

fn set_msrs(fd: &VcpuFd, values: &[(u32, u64)]) -> Result<(), PlatformError> {
    let entries: Vec<_> = values
        .iter()
        .map(|&(index, data)| kvm_msr_entry {
            index,
            data,
            ..Default::default()
        })
        .collect();
    let msrs = Msrs::from_entries(&entries).expect("three entries fit");
    match fd.set_msrs(&msrs) {
        Ok(count) if count == values.len() => Ok(()),
        Ok(count) => Err(PlatformError::Guest(format!(
            "KVM took only {count} of 3 MSRs"
        ))),
        Err(error) => Err(host("KVM_SET_MSRS", error)),
    }
}

/// A virtual CPU that runs a thread of `space`.
pub struct KvmCpu {
    vm: Arc<Vm>,
    /// Always there but while it is being dropped.
    vcpu: Option<Vcpu>,
    space: Arc<dyn Space>,
    root: u64,
    kick: Arc<KvmKick>,
    /// The last fault that the page tables did not explain.
    unexplained: Option<u64>,
}

impl KvmCpu {
    /// Takes over a virtual CPU, for the calling thread.
    pub fn new(vm: Arc<Vm>, mut vcpu: Vcpu, space: Arc<dyn Space>) -> Result<Self, PlatformError> {
        vcpu.set_xsave(&vcpu.initial)?;
        let run = std::ptr::from_mut(vcpu.fd.get_kvm_run());
        let root = root(&space);
        vcpu.set_root(root)?;
        let kick = Arc::new(KvmKick {
            run,
            _vm: vm.clone(),
            thread: AtomicI32::new(rustix::thread::gettid().as_raw_pid()),
            pending: AtomicBool::new(false),
        });
        Ok(Self {
            vm,
            vcpu: Some(vcpu),
            space,
            root,
            kick,
            unexplained: None,
        })
    }

    fn vcpu(&mut self) -> &mut Vcpu {
        self.vcpu.as_mut().expect("only `drop` takes it")
    }

    fn load(&mut self, regs: &Regs) {
        let sync = self.vcpu().fd.sync_regs_mut();
        sync.regs = to_kvm(regs);
        let sregs = &mut sync.sregs;
        let ring = sregs.cs.selector;
        if ring != USER_CS || sregs.fs.base != regs.fs_base || sregs.gs.base != regs.gs_base {
            system::enter_user(sregs);
            sregs.fs.base = regs.fs_base;
            sregs.gs.base = regs.gs_base;
            self.vcpu().fd.set_sync_dirty_reg(SyncReg::SystemRegister);
        }
        self.vcpu().fd.set_sync_dirty_reg(SyncReg::Register);
    }

    fn exception(&mut self, vector: u8, regs: &mut Regs, at: &kvm_regs) -> Option<Exit> {
        let frame = self.frame(at.rsp, has_error_code(vector))?;
        from_kvm(regs, at);
        regs.rip = frame.rip;
        regs.rflags = visible(frame.rflags);
        regs.rsp = frame.rsp;
        self.segment_bases(regs);
        if vector != 14 {
            return Some(Exit::Exception {
                vector,
                error_code: frame.error_code,
            });
        }
        Some(Exit::PageFault {
            address: self.vcpu().fd.sync_regs().sregs.cr2,
            write: frame.error_code & 1 << 1 != 0,
            execute: frame.error_code & 1 << 4 != 0,
        })
    }

    /// The frame that the processor pushed for an exception in ring 3.
    fn frame(&mut self, rsp: u64, error_code: bool) -> Option<Frame> {
        let (tss, stack) = (self.vcpu().tss, self.vcpu().stack);
        let words = if error_code { 6 } else { 5 };
        if system::stack_top(tss).checked_sub(rsp)? != words * 8 {
            return None;
        }
        let base = stack + PAGE - words * 8;
        let word = |i: u64| self.vm.memory.load(base + i * 8);
        let first = words - 5;
        let user = word(first + 1) as u16 == USER_CS;
        user.then(|| Frame {
            error_code: if error_code { word(0) } else { 0 },
            rip: word(first),
            rflags: word(first + 2),
            rsp: word(first + 3),
        })
    }

    fn segment_bases(&mut self, regs: &mut Regs) {
        let sregs: &kvm_sregs = &self.vcpu().fd.sync_regs().sregs;
        regs.fs_base = sregs.fs.base;
        regs.gs_base = sregs.gs.base;
    }

    /// Whether the fault is one that the page tables do not explain: a stale translation. The
    /// second time in a row at one address, everything is flushed.
    fn stale(&mut self, exit: Exit) -> Result<bool, PlatformError> {
        let Exit::PageFault {
            address,
            write,
            execute,
        } = exit
        else {
            return Ok(false);
        };
        let allowed = paging::lookup(&self.vm.memory, self.root, address)
            .is_some_and(|(_, access)| access.allows(write, execute));
        let page = address & !(PAGE - 1);
        if !allowed {
            self.unexplained = None;
        } else if self.unexplained.replace(page) == Some(page) {
            self.vm.flush()?;
        }
        Ok(allowed)
    }

    fn step(&mut self, regs: &mut Regs) -> Result<Option<Exit>, PlatformError> {
        let (port, interrupted) = match self.vcpu().fd.run() {
            Ok(VcpuExit::IoOut(port, _) | VcpuExit::IoIn(port, _)) => (port, false),
            Ok(VcpuExit::Intr) => (0, true),
            Ok(other) => return Err(PlatformError::Guest(format!("KVM exit {other:?}"))),
            Err(e) if e.errno() == libc::EINTR => (0, true),
            // The page behind a guest access could not be had: the host is out of memory.
            Err(e) => return Err(host("KVM_RUN", e)),
        };
        let at = self.vcpu().fd.sync_regs().regs;
        let in_stub = at.rip >= STUB && at.rip < STUB + PAGE;
        if interrupted {
            self.vcpu().fd.set_kvm_immediate_exit(0);
            if in_stub || self.vcpu().fd.sync_regs().sregs.cs.selector != USER_CS {
                // Between `syscall` (or an exception) and its `out`: let it get there.
                self.vcpu().fd.set_sync_valid_reg(SyncReg::Register);
                return self.step(regs);
            }
            from_kvm(regs, &at);
            regs.rflags = visible(at.rflags);
            self.segment_bases(regs);
            return Ok(self
                .kick
                .pending
                .swap(false, Ordering::SeqCst)
                .then_some(Exit::Kicked));
        }
        let exit = match port {
            SYSCALL_PORT if in_stub => {
                from_kvm(regs, &at);
                (regs.rip, regs.rflags) = (at.rcx, visible(at.r11));
                self.segment_bases(regs);
                Some(Exit::Syscall)
            }
            EXCEPTION_PORT.. if in_stub && u64::from(port - EXCEPTION_PORT) < VECTORS => {
                self.exception((port - EXCEPTION_PORT) as u8, regs, &at)
            }
            _ if !in_stub => {
                // The program's own `in` or `out`: on Linux it has no I/O privilege.
                from_kvm(regs, &at);
                regs.rflags = visible(at.rflags);
                self.segment_bases(regs);
                Some(Exit::Exception {
                    vector: 13,
                    error_code: 0,
                })
            }
            _ => None,
        };
        match exit {
            Some(exit) => Ok(Some(exit)),
            None => Err(PlatformError::Guest(format!(
                "port {port:#x} at {:#x}",
                at.rip
            ))),
        }
    }
}

impl Cpu for KvmCpu {
    fn run(&mut self, regs: &mut Regs) -> Result<Exit, PlatformError> {
        loop {
            if self.kick.pending.swap(false, Ordering::SeqCst) {
                return Ok(Exit::Kicked);
            }
            self.load(regs);
            if let Some(exit) = self.step(regs)?
                && !self.stale(exit)?
            {
                return Ok(exit);
            }
        }
    }

    fn xstate(&mut self) -> Result<Vec<u8>, PlatformError> {
        let xsave = self
            .vcpu()
            .fd
            .get_xsave()
            .map_err(|e| host("KVM_GET_XSAVE", e))?;
        let mut bytes: Vec<u8> = xsave
            .region
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect();
        bytes.truncate(xstate::bytes());
        Ok(bytes)
    }

    fn set_xstate(&mut self, bytes: &[u8]) -> Result<(), PlatformError> {
        xstate::check(bytes)?;
        let mut xsave = kvm_xsave::default();
        for (word, bytes) in xsave.region.iter_mut().zip(bytes.chunks_exact(4)) {
            *word = u32::from_le_bytes(bytes.try_into().expect("4 bytes"));
        }
        self.vcpu().set_xsave(&xsave)
    }

    fn set_space(&mut self, space: Arc<dyn Space>) -> Result<(), PlatformError> {
        self.root = root(&space);
        let root = self.root;
        self.vcpu().set_root(root)?;
        self.space = space;
        Ok(())
    }

    fn kicker(&self) -> Arc<dyn Kick> {
        self.kick.clone()
    }

    fn as_any_mut(&mut self) -> &mut dyn std::any::Any {
        self
    }
}

impl Drop for KvmCpu {
    fn drop(&mut self) {
        self.kick.thread.store(0, Ordering::SeqCst);
        let vcpu = self.vcpu.take().expect("only `drop` takes it");
        self.vm.idle.lock().expect("no panic while held").push(vcpu);
    }
}

struct Frame {
    error_code: u64,
    rip: u64,
    rflags: u64,
    rsp: u64,
}

struct KvmKick {
    /// The CPU's shared page; it stays mapped as long as the VM lives.
    run: *mut kvm_run,
    _vm: Arc<Vm>,
    /// Host thread that runs the CPU; 0 when it does no more.
    thread: AtomicI32,
    pending: AtomicBool,
}

// SAFETY: `run` points into a mapping that lives as long as `_vm` (virtual CPUs are kept, never
// closed); the only access through it is a one-byte volatile store that the kernel expects from
// any thread (kvm's api.rst, immediate_exit).
unsafe impl Send for KvmKick {}
// SAFETY: threads that kick at the same time store the same byte, and nobody reads it here; the other fields are atomic.
unsafe impl Sync for KvmKick {}

impl Kick for KvmKick {
    fn kick(&self) {
        self.pending.store(true, Ordering::SeqCst);
        let thread = self.thread.load(Ordering::SeqCst);
        if thread == 0 {
            return;
        }
        // SAFETY: `run` is mapped for as long as `_vm` lives, and the kernel expects this byte to be set at any time.
        unsafe { (&raw mut (*self.run).immediate_exit).write_volatile(1) };
        send_kick(process_id(), thread);
    }
}

fn process_id() -> libc::pid_t {
    rustix::process::getpid().as_raw_pid()
}

/// The kick signal must interrupt KVM_RUN and do nothing else.
pub fn install_handler() {
    static ONCE: Once = Once::new();
    extern "C" fn nothing(_: libc::c_int) {}
    ONCE.call_once(|| {
        let handler: extern "C" fn(libc::c_int) = nothing;
        // SAFETY: a zeroed sigaction is valid: no flags (no SA_RESTART), empty mask; the handler
        // does nothing, which is async-signal-safe.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as usize;
            libc::sigaction(crate::kick_signal(), &action, std::ptr::null_mut());
        }
    });
}

fn root(space: &Arc<dyn Space>) -> u64 {
    space
        .as_any()
        .downcast_ref::<KvmSpace>()
        .expect("spaces of this platform are its own")
        .root
}

fn has_error_code(vector: u8) -> bool {
    ERROR_CODE_VECTORS >> vector & 1 == 1
}

fn visible(rflags: u64) -> u64 {
    rflags & USER_FLAGS | FIXED_FLAGS
}

fn to_kvm(r: &Regs) -> kvm_regs {
    kvm_regs {
        rax: r.rax,
        rbx: r.rbx,
        rcx: r.rcx,
        rdx: r.rdx,
        rsi: r.rsi,
        rdi: r.rdi,
        rsp: r.rsp,
        rbp: r.rbp,
        r8: r.r8,
        r9: r.r9,
        r10: r.r10,
        r11: r.r11,
        r12: r.r12,
        r13: r.r13,
        r14: r.r14,
        r15: r.r15,
        rip: r.rip,
        rflags: r.rflags & USER_FLAGS | FIXED_FLAGS,
    }
}

/// Everything but `rip`, `rflags` and the segment bases is what the program last had.
fn from_kvm(r: &mut Regs, k: &kvm_regs) {
    *r = Regs {
        rax: k.rax,
        rbx: k.rbx,
        rcx: k.rcx,
        rdx: k.rdx,
        rsi: k.rsi,
        rdi: k.rdi,
        rsp: k.rsp,
        rbp: k.rbp,
        r8: k.r8,
        r9: k.r9,
        r10: k.r10,
        r11: k.r11,
        r12: k.r12,
        r13: k.r13,
        r14: k.r14,
        r15: k.r15,
        rip: k.rip,
        rflags: k.rflags,
        fs_base: r.fs_base,
        gs_base: r.gs_base,
    };
}
