//! Memory of peers in the VM: a slot each, above card memory.

use std::{collections::BTreeMap, io, ptr::NonNull, sync::PoisonError};

use kvm_bindings::kvm_userspace_memory_region;
use snaprig_card_memory::outside::Show;

use super::Vm;

/// Slots below are the VM's own.
const FIRST: u32 = 2;

/// Which slot shows what begins at an address.
#[derive(Default)]
pub struct Slots {
    by_address: BTreeMap<u64, u32>,
    /// Slots that have shown something.
    free: Vec<u32>,
}

impl Show for Vm {
    fn show(&self, start: u64, bytes: u64, base: NonNull<u8>) -> io::Result<()> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let used = slots.by_address.len() as u32;
        let slot = slots.free.pop().unwrap_or(FIRST + used);
        let set = set(self, slot, start, bytes, base.as_ptr() as u64);
        match set {
            Ok(()) => drop(slots.by_address.insert(start, slot)),
            Err(_) => slots.free.push(slot),
        }
        set
    }

    fn hide(&self, start: u64) {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(slot) = slots.by_address.remove(&start) else {
            return;
        };
        if let Err(error) = set(self, slot, start, 0, 0) {
            // A guest would see memory that is no longer there.
            tracing::error!(%error, "a peer's memory cannot be taken from the VM");
            std::process::abort();
        }
        slots.free.push(slot);
    }
}

/// Puts memory into a slot; none takes it out. KVM keeps what is in different slots apart.
fn set(vm: &Vm, slot: u32, start: u64, bytes: u64, base: u64) -> io::Result<()> {
    let region = kvm_userspace_memory_region {
        slot,
        flags: 0,
        guest_phys_addr: start,
        memory_size: bytes,
        userspace_addr: base,
    };
    // SAFETY: who shows memory keeps it mapped until it has hidden it.
    unsafe { vm.fd.set_user_memory_region(region) }.map_err(Into::into)
}
