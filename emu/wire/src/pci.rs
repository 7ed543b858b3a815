//! Identity and BAR layout of the card's PCI function, after the Knights Corner coprocessor.

/// Vendor: Intel.
pub const VENDOR_ID: u16 = 0x8086;
/// Device: Xeon Phi coprocessor 5100 series (Knights Corner is 0x2250 to 0x225e).
pub const DEVICE_ID: u16 = 0x2250;
/// Class code: co-processor (base class 0x0b, sub-class 0x40).
pub const CLASS_CODE: [u8; 3] = [0x00, 0x40, 0x0b];

/// BAR0: the memory aperture, all of card memory, prefetchable, 64 bit.
pub const BAR_APERTURE: u32 = 0;
/// BAR4: the MMIO registers of [`crate::bar4`], 64 bit.
pub const BAR_MMIO: u32 = 4;
/// Size of BAR4 in bytes.
pub const BAR_MMIO_SIZE: u64 = 128 << 10;

/// MSI-X vectors of the function.
pub const MSIX_VECTORS: u32 = 1;
/// The vector raised for every interrupt cause; the causes are in [`crate::bar4::SICR0`].
pub const VECTOR: u32 = 0;
