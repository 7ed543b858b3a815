//! The `kvm` platform: one VM a card, one virtual CPU a guest thread.
//!
//! | slot | what it is |
//! |---|---|
//! | 0 | card memory |
//! | 1 | nothing, but for a moment (see below) |
//! | others | memory of peers that programs have mapped ([`outside`]) |
//!
//! Ring 0 holds nothing but an entry stub ([`system`]): `syscall` and exceptions arrive there and
//! leave for the VMM with one `out`; the VMM sets the registers for ring 3 itself. That is the same
//! on bare metal, where `syscall` enters ring 0, and on paravirtual nested KVM, where it stays in
//! ring 3 and ring 0 is interpreted.
//!
//! What must stay true: an edit that takes a page away is invisible to a running CPU until a
//! memory slot changes (paravirtual KVM shadows page tables and does not watch the host's writes;
//! bare metal has TLBs): [`Vm::flush`] adds and deletes a dummy slot, which is right on both.

mod cpu;
mod outside;
mod system;

use std::{
    os::fd::AsRawFd,
    sync::{Arc, Mutex},
};

use kvm_bindings::{CpuId, KVM_MAX_CPUID_ENTRIES, kvm_userspace_memory_region};
use kvm_ioctls::{Kvm, VmFd};
use snaprig_card_memory::{CardMemory, outside::Show};

use crate::{Cpu, Kind, Platform, PlatformError, Space, xstate};

/// Guest-physical address of the dummy slot: far above any memory.
const DUMMY_SLOT_ADDRESS: u64 = 1 << 38;
const PAGE_BYTES: u64 = 4096;
/// `_IO(KVMIO, 0x44)`: how many pages of shadow page tables a VM may have.
const KVM_SET_NR_MMU_PAGES: libc::c_ulong = 0xae44;
/// KVM's own limit is this part of a VM's memory (KVM_PERMILLE_MMU_PAGES), which for a small card is less
/// than what its CPUs have in use at once: KVM_RUN then ends with ENOSPC.
const MMU_PAGES_PART: u64 = 50;
/// Shadow page tables that a CPU has in use: the top ones, of both rings, and a path below.
const MMU_PAGES_PER_CPU: u64 = 8;
/// Virtual CPUs that are kept for threads which have ended, but not given theirs back yet.
const CPUS_SPARE: usize = 16;

/// The platform.
pub struct KvmPlatform {
    vm: Arc<Vm>,
    cpus_max: usize,
}

/// The VM, and what all of its CPUs share.
struct Vm {
    fd: VmFd,
    memory: Arc<CardMemory>,
    system: system::System,
    cpuid: CpuId,
    /// Virtual CPUs cannot be destroyed, so those of ended threads wait here.
    idle: Mutex<Vec<cpu::Vcpu>>,
    next_vcpu: Mutex<u64>,
    flushing: Mutex<()>,
    slots: Mutex<outside::Slots>,
    has_host_counter: bool,
}

impl KvmPlatform {
    /// A VM over `memory`.
    pub fn new(memory: &Arc<CardMemory>) -> Result<Self, PlatformError> {
        cpu::install_handler();
        let kvm = Kvm::new().map_err(|e| host("open /dev/kvm", e))?;
        let fd = kvm.create_vm().map_err(|e| host("KVM_CREATE_VM", e))?;
        // Needed on Intel hosts without unrestricted guests; below 4 GiB, outside low memory is
        // not possible for large cards, and it is not used by 64-bit code: see kvm's api.rst.
        fd.set_tss_address(0xfffb_d000)
            .map_err(|e| host("KVM_SET_TSS_ADDR", e))?;
        let region = kvm_userspace_memory_region {
            slot: 0,
            flags: 0,
            guest_phys_addr: 0,
            memory_size: memory.bytes(),
            userspace_addr: memory.host_base().as_ptr() as u64,
        };
        // SAFETY: the mapping lives as long as `memory`, which the VM keeps.
        unsafe { fd.set_user_memory_region(region) }
            .map_err(|e| host("KVM_SET_USER_MEMORY_REGION", e))?;
        allow_shadow_pages(&fd, memory.bytes());
        let mut cpuid = kvm
            .get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)
            .map_err(|e| host("KVM_GET_SUPPORTED_CPUID", e))?;
        system::hide_amx(&mut cpuid);
        let system = system::System::new(memory)?;
        let mut vm = Vm {
            fd,
            memory: memory.clone(),
            system,
            cpuid,
            idle: Mutex::default(),
            next_vcpu: Mutex::new(0),
            flushing: Mutex::default(),
            slots: Mutex::default(),
            has_host_counter: false,
        };
        // All CPUs are alike. The first program takes this one.
        let first = vm.new_vcpu()?;
        vm.has_host_counter = first.has_host_counter()?;
        vm.idle.lock().expect("no panic while held").push(first);
        let vm = Arc::new(vm);
        let shows: Arc<dyn Show> = vm.clone();
        memory.outside().tell(Arc::downgrade(&shows));
        Ok(Self {
            vm,
            cpus_max: kvm
                .get_max_vcpus()
                .min(system::CPUS_MAX as usize)
                .saturating_sub(CPUS_SPARE),
        })
    }
}

/// Lets a VM have as many shadow page tables as all of its CPUs need. Where KVM has none (kvm's api.rst,
/// KVM_CAP_MMU_SHADOW_CACHE_CONTROL) there is no limit either.
fn allow_shadow_pages(vm: &VmFd, memory_bytes: u64) {
    let pages = memory_bytes / PAGE_BYTES / MMU_PAGES_PART + system::CPUS_MAX * MMU_PAGES_PER_CPU;
    // SAFETY: the request takes its argument as a number, not as an address, so the kernel reads and writes nothing of
    // this process; `vm` is open for as long as it is borrowed.
    let set = unsafe { libc::ioctl(vm.as_raw_fd(), KVM_SET_NR_MMU_PAGES, pages) };
    if set != 0 {
        let error = std::io::Error::last_os_error();
        tracing::debug!(%error, "KVM_SET_NR_MMU_PAGES");
    }
}

impl Platform for KvmPlatform {
    fn kind(&self) -> Kind {
        Kind::Kvm
    }

    fn new_space(&self, root: u64) -> Result<Arc<dyn Space>, PlatformError> {
        self.vm.system.attach(&self.vm.memory, root);
        Ok(Arc::new(KvmSpace {
            vm: self.vm.clone(),
            root,
        }))
    }

    fn new_cpu(&self, space: Arc<dyn Space>) -> Result<Box<dyn Cpu>, PlatformError> {
        let vcpu = match self.vm.idle.lock().expect("no panic while held").pop() {
            Some(vcpu) => vcpu,
            None => self.vm.new_vcpu()?,
        };
        Ok(Box::new(cpu::KvmCpu::new(self.vm.clone(), vcpu, space)?))
    }

    fn cpus_max(&self) -> usize {
        self.cpus_max
    }

    fn has_host_counter(&self) -> bool {
        self.vm.has_host_counter
    }

    fn xstate_bytes(&self) -> usize {
        xstate::bytes()
    }
}

impl Vm {
    fn new_vcpu(&self) -> Result<cpu::Vcpu, PlatformError> {
        let mut next = self.next_vcpu.lock().expect("no panic while held");
        let vcpu = cpu::Vcpu::new(self, *next)?;
        *next += 1;
        Ok(vcpu)
    }

    /// Makes removed page-table entries visible to every CPU.
    fn flush(&self) -> Result<(), PlatformError> {
        let _one_at_a_time = self.flushing.lock().expect("no panic while held");
        let mut region = kvm_userspace_memory_region {
            slot: 1,
            flags: 0,
            guest_phys_addr: DUMMY_SLOT_ADDRESS,
            memory_size: PAGE_BYTES,
            userspace_addr: self.memory.host_base().as_ptr() as u64,
        };
        for size in [PAGE_BYTES, 0] {
            region.memory_size = size;
            // SAFETY: the page is the first of card memory, mapped as long as the VM lives; no
            // page table maps the dummy address, so the guest cannot reach it.
            unsafe { self.fd.set_user_memory_region(region) }
                .map_err(|e| host("KVM_SET_USER_MEMORY_REGION (flush)", e))?;
        }
        Ok(())
    }
}

/// An address space is the address of its top page table.
struct KvmSpace {
    vm: Arc<Vm>,
    root: u64,
}

impl Space for KvmSpace {
    fn flush(&self, _: Option<&mut dyn Cpu>, _start: u64, _end: u64) -> Result<(), PlatformError> {
        self.vm.flush()
    }

    /// A CPU that gets a root which it has had before keeps what it knows of that (KVM_SET_SREGS flushes
    /// for another CR3 alone), and paravirtual KVM what it knows of each table.
    fn end(&self) -> Result<(), PlatformError> {
        self.vm.flush()
    }

    fn has_own_mapping(&self) -> bool {
        false
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

fn host(call: &str, error: kvm_ioctls::Error) -> PlatformError {
    PlatformError::Host {
        call: call.into(),
        source: error.into(),
    }
}
