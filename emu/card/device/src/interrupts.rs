//! Interrupts to the host: causes, and the MSI-X vector that says that there are some.
//!
//! ```text
//! raise --> SICR0 --SICE0--> vector --unmasked--> eventfd
//!                               '----masked-----> pending bit --unmasked--> eventfd
//! ```
//!
//! The vector is masked by its own mask bit in the table or by the function's in the capability (PCI
//! Local Bus 3.0, 6.8.2). A client of vfio-user that programs the table itself finds both; one that
//! names an eventfd has it programmed by that, as VFIO does.
//!
//! What must stay true: nothing that was raised and enabled is ever lost: it is signalled, pending, or
//! waits in SICR0 for an eventfd.

use std::os::fd::OwnedFd;

use super::vector::Vector;

/// The dword of a table entry that holds the mask bit (bit 0).
const CONTROL: usize = 3;

#[derive(Default)]
pub(super) struct Interrupts {
    pub(super) cause: u32,
    pub(super) enabled: u32,
    table: [u32; 4],
    is_function_masked: bool,
    is_pending: bool,
    vector: Vector,
}

impl Interrupts {
    pub(super) fn raise(&mut self, causes: u32) {
        self.cause |= causes;
        self.signal(causes);
    }

    pub(super) fn enable(&mut self, causes: u32) {
        self.enabled |= causes;
        self.signal(self.cause & causes);
    }

    /// Signals go here from now on, what waits included.
    pub(super) fn set_vector(&mut self, event: Option<OwnedFd>) {
        self.table[CONTROL] &= !1;
        self.vector.set(event);
        self.signal(self.cause);
        self.unmask();
    }

    pub(super) fn mask_function(&mut self, is_masked: bool) {
        self.is_function_masked = is_masked;
        self.unmask();
    }

    pub(super) fn table(&self, dword: usize) -> u32 {
        self.table[dword]
    }

    pub(super) fn set_table(&mut self, dword: usize, value: u32) {
        self.table[dword] = if dword == CONTROL { value & 1 } else { value };
        self.unmask();
    }

    pub(super) fn pending_bits(&self) -> u32 {
        self.is_pending.into()
    }

    /// As after power-on, but for the eventfd, which is the client's.
    pub(super) fn reset(&mut self) {
        // A new vector would be a new io_uring, and a card that runs may make none.
        let Self {
            cause,
            enabled,
            table,
            is_function_masked,
            is_pending,
            vector: _,
        } = self;
        (*cause, *enabled, *table) = (0, 0, [0; 4]);
        (*is_function_masked, *is_pending) = (false, false);
    }

    fn signal(&mut self, causes: u32) {
        match causes & self.enabled != 0 {
            true if self.is_masked() => self.is_pending = true,
            true => self.vector.signal(),
            false => {}
        }
    }

    fn unmask(&mut self) {
        if !self.is_masked() && std::mem::take(&mut self.is_pending) {
            self.vector.signal();
        }
    }

    fn is_masked(&self) -> bool {
        self.is_function_masked || self.table[CONTROL] & 1 != 0
    }
}
