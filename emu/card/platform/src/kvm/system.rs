//! What the processor itself needs in guest memory: entry stub, GDT, IDT, and for each virtual CPU
//! a TSS and a stack for exceptions. All of it lies above `USER_END`, in one page-table slot that
//! every address space shares.
//!
//! ```text
//! STUB             syscall entry: out %al, $SYSCALL_PORT      user, executable, read-only
//! STUB + 0x100     vector v at + 8 * v: out %al, $(EXCEPTION_PORT + v)
//! TABLES           IDT, then GDT                              supervisor
//! CPUS + i*0x2000  TSS, then a stack page                     supervisor
//! ```

use kvm_bindings::{CpuId, kvm_segment, kvm_sregs};
use snaprig_card_memory::{CardMemory, PAGE, USER_END};

use crate::PlatformError;

/// Address of the stub page: `LSTAR`.
pub const STUB: u64 = USER_END;
/// Port of the `out` at the entry of `syscall`.
pub const SYSCALL_PORT: u16 = 0x40;
/// Port of the `out` for exception 0; the others follow.
pub const EXCEPTION_PORT: u16 = 0x60;
/// Exceptions that the processor defines.
pub const VECTORS: u64 = 32;
/// User code selector, requested privilege 3.
pub const USER_CS: u16 = 0x33;
const USER_SS: u16 = 0x2b;
const KERNEL_CS: u16 = 0x08;
const TSS_SELECTOR: u16 = 0x40;
const TABLES: u64 = STUB + PAGE;
const GDT_OFFSET: u64 = 0x800;
const CPUS: u64 = STUB + 0x1_0000;
/// The TSS proper, then the I/O permission bitmap up to port 0x7f, then the byte of ones that the
/// processor wants behind it.
const TSS_BYTES: u64 = IO_BITMAP + 16 + 1;
const IO_BITMAP: u64 = 104;
/// As many as fit under the one last-level table that is allocated for each 2 MiB.
pub const CPUS_MAX: u64 = 4096;

const PRESENT_WRITE: u64 = 0b11;
const USER: u64 = 1 << 2;
const ACCESSED_DIRTY: u64 = 1 << 5 | 1 << 6;

/// `IA32_STAR`: selectors for `syscall` (kernel code 8) and `sysret` (user code 0x33, stack 0x2b).
pub const STAR: u64 = 0x23 << 48 | (KERNEL_CS as u64) << 32;

/// The shared part of every address space.
pub struct System {
    /// The page-directory-pointer table of the shared slot.
    pdpt: u64,
    directory: u64,
}

impl System {
    /// Fills in the pages that all CPUs share.
    pub fn new(memory: &CardMemory) -> Result<Self, PlatformError> {
        let system = Self {
            pdpt: frame(memory)?,
            directory: frame(memory)?,
        };
        memory.store(system.pdpt, system.directory | PRESENT_WRITE | USER);
        let stub = frame(memory)?;
        let tables = frame(memory)?;
        memory.write(stub, &out(SYSCALL_PORT));
        for vector in 0..VECTORS {
            memory.write(
                stub + 0x100 + vector * 8,
                &out(EXCEPTION_PORT + vector as u16),
            );
            let gate = gate(STUB + 0x100 + vector * 8, vector);
            memory.store(tables + vector * 16, gate[0]);
            memory.store(tables + vector * 16 + 8, gate[1]);
        }
        for (index, descriptor) in [
            (1, 0x00af_9b00_0000_ffff),
            (2, 0x00cf_9300_0000_ffff),
            (5, 0x00cf_f300_0000_ffff),
            (6, 0x00af_fb00_0000_ffff),
        ] {
            memory.store(tables + GDT_OFFSET + index * 8, descriptor);
        }
        system.map(memory, STUB, stub | 1 | USER)?;
        system.map(memory, TABLES, tables | PRESENT_WRITE)?;
        Ok(system)
    }

    /// Puts the shared slot into an address space.
    pub fn attach(&self, memory: &CardMemory, root: u64) {
        memory.store(root + (STUB >> 39) * 8, self.pdpt | PRESENT_WRITE | USER);
    }

    /// TSS and exception stack of virtual CPU `index`: (address of the TSS, frame of the stack).
    pub fn add_cpu(&self, memory: &CardMemory, index: u64) -> Result<(u64, u64), PlatformError> {
        if index >= CPUS_MAX {
            return Err(PlatformError::Exhausted(format!(
                "more than {CPUS_MAX} threads"
            )));
        }
        let address = CPUS + index * 2 * PAGE;
        let (tss, stack) = (frame(memory)?, frame(memory)?);
        memory.write(tss + 4, &stack_top(address).to_le_bytes());
        // Ring 3 may use the port of the syscall stub and no other (paravirtual KVM runs the stub in
        // ring 3, with I/O privilege level 0).
        memory.write(tss + 102, &(IO_BITMAP as u16).to_le_bytes());
        let mut bitmap = [0xff; 17];
        bitmap[SYSCALL_PORT as usize / 8] &= !(1 << (SYSCALL_PORT % 8));
        memory.write(tss + IO_BITMAP, &bitmap);
        self.map(memory, address, tss | PRESENT_WRITE)?;
        self.map(memory, address + PAGE, stack | PRESENT_WRITE)?;
        Ok((address, stack))
    }

    fn map(&self, memory: &CardMemory, va: u64, entry: u64) -> Result<(), PlatformError> {
        let slot = self.directory + (va >> 21 & 511) * 8;
        let mut table = memory.load(slot);
        if table & 1 == 0 {
            table = frame(memory)? | PRESENT_WRITE | USER | ACCESSED_DIRTY;
            memory.store(slot, table);
        }
        memory.store(
            (table & !0xfff) + (va >> 12 & 511) * 8,
            entry | ACCESSED_DIRTY,
        );
        Ok(())
    }
}

/// First address above the exception stack of the CPU whose TSS is at `tss`.
pub fn stack_top(tss: u64) -> u64 {
    tss + 2 * PAGE
}

/// Segment registers for ring 3.
pub fn enter_user(sregs: &mut kvm_sregs) {
    let code = kvm_segment {
        base: 0,
        limit: u32::MAX,
        selector: USER_CS,
        type_: 11,
        present: 1,
        dpl: 3,
        db: 0,
        s: 1,
        l: 1,
        g: 1,
        ..Default::default()
    };
    let data = kvm_segment {
        selector: USER_SS,
        type_: 3,
        db: 1,
        l: 0,
        ..code
    };
    sregs.cs = code;
    sregs.ss = data;
    sregs.ds = data;
    sregs.es = data;
}

/// Control registers, descriptor tables and task register of a new CPU.
pub fn boot(sregs: &mut kvm_sregs, root: u64, tss: u64, fsgsbase: bool) {
    enter_user(sregs);
    (sregs.fs, sregs.gs) = (sregs.ds, sregs.ds);
    sregs.cr3 = root;
    // Protection, monitor, extension type, numeric error, write protect, alignment mask, paging.
    sregs.cr0 = 0x8005_0033;
    // PAE, OSFXSR, OSXMMEXCPT, OSXSAVE; no SMEP or SMAP: ring 0 executes the user stub page.
    sregs.cr4 = 1 << 5 | 1 << 9 | 1 << 10 | 1 << 18 | u64::from(fsgsbase) << 16;
    // SCE, LME, LMA, NXE.
    sregs.efer = 1 | 1 << 8 | 1 << 10 | 1 << 11;
    sregs.tr = kvm_segment {
        base: tss,
        limit: TSS_BYTES as u32 - 1,
        selector: TSS_SELECTOR,
        type_: 11,
        present: 1,
        ..Default::default()
    };
    (sregs.idt.base, sregs.idt.limit) = (TABLES, (VECTORS * 16 - 1) as u16);
    (sregs.gdt.base, sregs.gdt.limit) = (TABLES + GDT_OFFSET, 0x4f);
}

/// Takes AMX out of what CPUID says: its state is 8 KiB a thread and needs a permission.
pub fn hide_amx(cpuid: &mut CpuId) {
    for entry in cpuid.as_mut_slice() {
        match (entry.function, entry.index) {
            (7, 0) => entry.edx &= !(1 << 22 | 1 << 24 | 1 << 25),
            (0xd, 0) => entry.eax &= !(0b11 << 17),
            (0xd, 17 | 18) | (0x1d | 0x1e, _) => {
                (entry.eax, entry.ebx, entry.ecx, entry.edx) = (0, 0, 0, 0);
            }
            _ => {}
        }
    }
}

/// The XCR0 that CPUID allows, and whether FSGSBASE is there.
pub fn features(cpuid: &CpuId) -> (u64, bool) {
    let entries = cpuid.as_slice();
    let find = |function, index| {
        entries
            .iter()
            .find(move |entry| entry.function == function && entry.index == index)
    };
    let xcr0 = find(0xd, 0).map_or(0b11, |e| u64::from(e.eax) | u64::from(e.edx) << 32);
    (xcr0, find(7, 0).is_some_and(|e| e.ebx & 1 == 1))
}

fn frame(memory: &CardMemory) -> Result<u64, PlatformError> {
    memory
        .alloc()
        .ok_or_else(|| PlatformError::Exhausted("card memory is full".into()))
}

/// `out %al, $port; ud2`: nothing returns to behind the `out`.
fn out(port: u16) -> [u8; 4] {
    [0xe6, port as u8, 0x0f, 0x0b]
}

/// A 64-bit interrupt gate that ring 0 enters at `handler`. Breakpoint and overflow come from
/// instructions of ring 3, which need a gate of its level; without it the processor reports a
/// general protection fault (SDM volume 3, "Protection of Exception- and Interrupt-Handler
/// Procedures"). kvm_pvm does not check it, kvm-amd does.
fn gate(handler: u64, vector: u64) -> [u64; 2] {
    let kind = if matches!(vector, 3 | 4) { 0xee } else { 0x8e };
    let low =
        handler & 0xffff | u64::from(KERNEL_CS) << 16 | kind << 40 | (handler >> 16 & 0xffff) << 48;
    [low, handler >> 32]
}
