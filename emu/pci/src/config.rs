//! Type-0 configuration space (PCI Local Bus 3.0, section 6): identity, BARs that can be sized, and
//! the MSI-X capability.
//!
//! Every bit is either fixed or freely writable, so the space is two arrays: the bytes and a mask
//! of what software may change. Sizing a BAR follows from that: the address bits below its size are
//! fixed at zero.

use snaprig_wire::pci;

/// Bytes of the space.
pub const CONFIG_BYTES: usize = 256;
/// Where BAR4 holds the MSI-X table, below the first register block.
pub const MSIX_TABLE: u32 = 0;
/// Where BAR4 holds the MSI-X pending bits.
pub const MSIX_PBA: u32 = 0x800;

const COMMAND: usize = 0x04;
const STATUS: usize = 0x06;
const REVISION: usize = 0x08;
const BARS: usize = 0x10;
const SUBSYSTEM: usize = 0x2c;
const CAPABILITIES: usize = 0x34;
const INTERRUPT_LINE: usize = 0x3c;
const MSIX: usize = 0x40;

/// Memory space, bus master and interrupt disable: the command bits that this function has.
const COMMAND_WRITABLE: [u8; 2] = 0x0406u16.to_le_bytes();
/// Status bit 4: there is a capability list.
const STATUS_CAPABILITIES: u8 = 1 << 4;
const MSIX_ID: u8 = 0x11;
/// MSI-X message control: enable, and mask all.
const MSIX_CONTROL_WRITABLE: u8 = 0xc0;
/// Mask all, in the same byte.
const MSIX_FUNCTION_MASK: u8 = 0x40;
/// BAR flags: memory, 64 bit.
const BAR_64BIT: u64 = 0b0100;
/// BAR flag: prefetchable.
const BAR_PREFETCHABLE: u64 = 0b1000;

/// The configuration space of the card.
#[derive(Clone, Debug)]
pub struct ConfigSpace {
    bytes: [u8; CONFIG_BYTES],
    writable: [u8; CONFIG_BYTES],
}

impl ConfigSpace {
    /// The space of a card with an aperture of `aperture_bytes`, rounded up to a power of two as a
    /// BAR must be.
    pub fn new(aperture_bytes: u64) -> Self {
        let mut space = Self {
            bytes: [0; CONFIG_BYTES],
            writable: [0; CONFIG_BYTES],
        };
        space.put(0, &pci::VENDOR_ID.to_le_bytes());
        space.put(2, &pci::DEVICE_ID.to_le_bytes());
        space.put(STATUS, &[STATUS_CAPABILITIES]);
        space.put(REVISION + 1, &pci::CLASS_CODE);
        space.put(SUBSYSTEM, &pci::VENDOR_ID.to_le_bytes());
        space.put(SUBSYSTEM + 2, &pci::DEVICE_ID.to_le_bytes());
        space.put(CAPABILITIES, &[MSIX as u8]);
        space.writable[COMMAND..COMMAND + 2].copy_from_slice(&COMMAND_WRITABLE);
        space.writable[INTERRUPT_LINE] = 0xff;
        let aperture = aperture_bytes.next_power_of_two();
        space.bar(pci::BAR_APERTURE, aperture, BAR_64BIT | BAR_PREFETCHABLE);
        space.bar(pci::BAR_MMIO, pci::BAR_MMIO_SIZE, BAR_64BIT);
        space.msix();
        space
    }

    /// Reads bytes; beyond the space they are all ones, as on a bus where nobody answers.
    pub fn read(&self, offset: u64, to: &mut [u8]) {
        for (i, byte) in to.iter_mut().enumerate() {
            *byte = index(offset, i).map_or(0xff, |at| self.bytes[at]);
        }
    }

    /// Writes the bits that software may change; the others keep their value.
    pub fn write(&mut self, offset: u64, from: &[u8]) {
        for (i, byte) in from.iter().enumerate() {
            if let Some(at) = index(offset, i) {
                let mask = self.writable[at];
                self.bytes[at] = self.bytes[at] & !mask | byte & mask;
            }
        }
    }

    /// Whether the function mask of the MSI-X capability is set.
    pub fn masks_vectors(&self) -> bool {
        self.bytes[MSIX + 3] & MSIX_FUNCTION_MASK != 0
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn bar(&mut self, bar: u32, size: u64, flags: u64) {
        assert!(size.is_power_of_two() && size >= 4096);
        let at = BARS + bar as usize * 4;
        self.put(at, &flags.to_le_bytes());
        self.writable[at..at + 8].copy_from_slice(&(!(size - 1)).to_le_bytes());
    }

    fn msix(&mut self) {
        self.put(MSIX, &[MSIX_ID, 0]);
        self.put(MSIX + 2, &(pci::MSIX_VECTORS as u16 - 1).to_le_bytes());
        self.put(MSIX + 4, &(MSIX_TABLE | pci::BAR_MMIO).to_le_bytes());
        self.put(MSIX + 8, &(MSIX_PBA | pci::BAR_MMIO).to_le_bytes());
        self.writable[MSIX + 3] = MSIX_CONTROL_WRITABLE;
    }
}

fn index(offset: u64, i: usize) -> Option<usize> {
    let at = offset.checked_add(i as u64)?;
    (at < CONFIG_BYTES as u64).then_some(at as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn word(space: &ConfigSpace, at: u64) -> u32 {
        let mut bytes = [0; 4];
        space.read(at, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    #[test]
    fn software_finds_the_card_and_sizes_its_bars() {
        let mut space = ConfigSpace::new(64 << 20);
        assert_eq!(word(&space, 0), 0x2250_8086);
        assert_eq!(word(&space, 8) >> 8, 0x000b_4000);
        for (bar, size) in [(0x10, 64 << 20), (0x20, 128 << 10)] {
            space.write(bar, &[0xff; 8]);
            let sized = u64::from(word(&space, bar)) | u64::from(word(&space, bar + 4)) << 32;
            assert_eq!(!(sized & !0xf) + 1, size);
            assert_eq!(sized & 0b0110, 0b0100);
        }
        assert_eq!(word(&space, 0x34) & 0xff, 0x40);
        assert_eq!(word(&space, 0x40), 0x11);
        assert_eq!(word(&space, 0x44), 4);
    }

    proptest! {
        #[test]
        fn writes_never_change_identity(offset: u64, near in 0..300u64, data in prop::collection::vec(any::<u8>(), 0..16)) {
            let mut space = ConfigSpace::new(1 << 20);
            space.write(offset, &data);
            space.write(near, &data);
            prop_assert_eq!(word(&space, 0), 0x2250_8086);
            prop_assert_eq!(word(&space, 0x40) & 0x3fff_ffff, 0x11);
        }
    }
}
