//! The windows through which the card sees host memory: [`bar4::SMPT00`].
//!
//! A window is a page of 16 GiB: no protection, no fault of its own. What it shows is the host's DMA
//! address space, in which there is something only where the host has mapped memory for the card.

use snaprig_wire::bar4::{SMPT_COUNT, SMPT_SHIFT};

/// Bit 0 turns snooping off, bit 1 is reserved: the address begins at bit 2.
const ADDRESS_SHIFT: u32 = 2;
const WRITABLE: u32 = !0b10;

/// The registers.
pub(super) struct Smpt([u32; SMPT_COUNT as usize]);

impl Default for Smpt {
    /// Window `n` shows page `n`, as the host's driver sets it up (Linux's former `mic_smpt.c`).
    fn default() -> Self {
        Self(std::array::from_fn(|n| (n as u32) << ADDRESS_SHIFT))
    }
}

impl Smpt {
    pub(super) fn read(&self, index: usize) -> u32 {
        self.0[index]
    }

    pub(super) fn write(&mut self, index: usize, value: u32) {
        self.0[index] = value & WRITABLE;
    }

    /// The host's DMA address of `len` bytes at `system` bytes into the windows. Nothing if that is
    /// beyond them, or goes on in a window that does not show what follows.
    pub(super) fn translate(&self, system: u64, len: u64) -> Option<u64> {
        let page = |at: u64| {
            let entry = self.0.get(usize::try_from(at >> SMPT_SHIFT).ok()?)?;
            Some(u64::from(entry >> ADDRESS_SHIFT) << SMPT_SHIFT | at & ((1 << SMPT_SHIFT) - 1))
        };
        let more = len.checked_sub(1)?;
        let (first, last) = (page(system)?, page(system.checked_add(more)?)?);
        (first.checked_add(more)? == last).then_some(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn windows_show_what_the_host_says_and_ranges_end_where_they_differ() {
        let mut smpt = Smpt::default();
        assert_eq!(smpt.translate(5, 10), Some(5));
        assert_eq!(smpt.translate(16 * GIB - 4, 8), Some(16 * GIB - 4));
        assert_eq!(smpt.translate(512 * GIB - 1, 1), Some(512 * GIB - 1));
        assert_eq!(smpt.translate(512 * GIB - 1, 2), None);
        assert_eq!(smpt.translate(u64::MAX, 2), None);
        smpt.write(1, u32::MAX);
        assert_eq!(smpt.read(1), !2);
        assert_eq!(smpt.translate(16 * GIB, 1), Some(u64::MAX << 34));
        assert_eq!(smpt.translate(32 * GIB - 1, 1), Some(u64::MAX));
        assert_eq!(smpt.translate(16 * GIB - 4, 8), None);
        assert_eq!(smpt.translate(16 * GIB - 4, 4), Some(16 * GIB - 4));
    }
}
