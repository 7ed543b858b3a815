//! The MMIO registers in BAR4. Offsets are those of Knights Corner (Linux's former
//! `drivers/misc/mic/host/mic_x100.h` and `drivers/dma/mic_x100_dma.h`); all registers are 32 bit.
//!
//! Deviations, all in registers that only a driver of ours uses: the scratchpads' meanings
//! ([`spad`]), and byte-granular DMA descriptors ([`crate::dma`]).

/// Start of the SBOX block.
pub const SBOX: u64 = 0x1_0000;
/// First of 16 scratchpads, 4 bytes each.
pub const SPAD0: u64 = SBOX + 0xAB20;
/// Scratchpads in the SBOX.
pub const SPAD_COUNT: u64 = 16;
/// Interrupt cause: one bit a cause ([`cause`]); read to see, write to [`SICC0`] to clear.
pub const SICR0: u64 = SBOX + 0x9004;
/// Interrupt enable, set: bits written as one become enabled.
pub const SICE0: u64 = SBOX + 0x900C;
/// Interrupt cause, clear: bits written as one are cleared in [`SICR0`].
pub const SICC0: u64 = SBOX + 0x9010;
/// Reset and general control: writing [`RGCR_RESET`] resets the card.
pub const RGCR: u64 = SBOX + 0x4010;
/// Reset bit of [`RGCR`].
pub const RGCR_RESET: u32 = 1;
/// First of four doorbells from host to card: a write rings it.
pub const SDBIC0: u64 = SBOX + 0xCC90;
/// Doorbells from host to card.
pub const SDBIC_COUNT: u64 = 4;
/// The doorbell that says "look at your SCIF ring".
pub const DOORBELL_SCIF: u64 = 0;

/// First DMA channel's registers.
pub const DMA: u64 = 0x1_A000;
/// Distance between two channels' registers.
pub const DMA_STRIDE: u64 = 0x40;
/// Channels of the card. The host owns the lower half, the card the upper half.
pub const DMA_CHANNELS: usize = 8;
/// Channels that the host owns (`0..HOST_DMA_CHANNELS`).
pub const HOST_DMA_CHANNELS: usize = 4;
/// Descriptor channel attributes: bit 0 enables the channel.
pub const DCAR: u64 = 0x00;
/// Head pointer: index one past the last descriptor that is ready to run (written by the owner).
pub const DHPR: u64 = 0x04;
/// Tail pointer: index of the next descriptor to run (read only).
pub const DTPR: u64 = 0x08;
/// Ring address in card memory, low 32 bits.
pub const DRAR_LO: u64 = 0x14;
/// Ring address bits 32 to 35, and the ring's size in descriptors in bits 4 to 20.
pub const DRAR_HI: u64 = 0x18;
/// Status: bit 0 is set while the channel is halted by an error.
pub const DSTAT: u64 = 0x20;
/// Error: index of the descriptor that failed; its cause is in [`DCHERRMSK`]'s place as an errno.
pub const DCHERR: u64 = 0x2C;
/// The errno of the error in [`DCHERR`].
pub const DCHERRMSK: u64 = 0x30;

/// Offset in BAR4 of register `reg` of DMA channel `channel`.
pub const fn dma_register(channel: usize, reg: u64) -> u64 {
    DMA + channel as u64 * DMA_STRIDE + reg
}

/// Meanings of the 16 scratchpads. Addresses are card-physical, in pages of 4 KiB.
pub mod spad {
    /// [`STATE_BOOTING`], [`STATE_ONLINE`] or [`STATE_CRASHED`].
    pub const STATE: u64 = 0;
    /// The card's SCIF node number, 1 and up.
    pub const NODE: u64 = 1;
    /// Card memory, in pages.
    pub const MEMORY_PAGES: u64 = 2;
    /// Page of the host-to-card ring.
    pub const RING_TO_CARD: u64 = 3;
    /// Page of the card-to-host ring.
    pub const RING_TO_HOST: u64 = 4;
    /// Size of each ring, header included, in pages.
    pub const RING_PAGES: u64 = 5;
    /// Page of the host's descriptor rings; one a channel, one after the other.
    pub const DMA_RINGS: u64 = 6;
    /// Descriptors in each of the host's descriptor rings.
    pub const DMA_RING_LEN: u64 = 7;
    /// [`crate::scif::VERSION`] that the card speaks.
    pub const SCIF_VERSION: u64 = 8;
    /// Card cores.
    pub const CORES: u64 = 9;

    /// The card kernel is starting.
    pub const STATE_BOOTING: u32 = 0;
    /// The card's programs run and SCIF answers.
    pub const STATE_ONLINE: u32 = 1;
    /// The card kernel stopped; only a reset helps.
    pub const STATE_CRASHED: u32 = 2;
}

/// Interrupt causes in [`SICR0`].
pub mod cause {
    /// The card wrote to its SCIF ring.
    pub const SCIF: u32 = 1 << 0;
    /// A host-owned DMA channel completed descriptors or halted; bit `8 + channel`.
    pub const DMA0: u32 = 1 << 8;
    /// The card changed [`super::spad::STATE`].
    pub const STATE: u32 = 1 << 1;
}
