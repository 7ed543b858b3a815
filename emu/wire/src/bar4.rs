//! The MMIO registers in BAR4. Offsets are those of Knights Corner (Linux's former
//! `drivers/misc/mic/host/mic_x100.h` and `drivers/dma/mic_x100_dma.h`); all registers are 32 bit.
//!
//! Deviations: the scratchpads' meanings ([`spad`]); the bits of [`DCHERR`], which Intel never
//! published; and [`RGCR`], which resets the function and not the card's kernel: what holds the card's
//! process does that, as the power button would.

/// Start of the SBOX block.
pub const SBOX: u64 = 0x1_0000;
/// First of 16 scratchpads, 4 bytes each.
pub const SPAD0: u64 = SBOX + 0xAB20;
/// Scratchpads in the SBOX.
pub const SPAD_COUNT: u64 = 16;
/// Interrupt cause: one bit a cause ([`cause`]); bits written as one are cleared, here or in [`SICC0`].
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
/// Descriptor channel control, of all channels: bit `2 * channel` is set if the host owns it (fixed),
/// bit `2 * channel + 1` enables it. Disabling forgets what is under way, the error and both indices.
pub const DCR: u64 = SBOX + 0xA280;
/// Channel attributes: [`DCAR_MASK_HOST`].
pub const DCAR: u64 = 0x00;
/// In [`DCAR`]: the channel's interrupt to the host waits.
pub const DCAR_MASK_HOST: u32 = 1 << 25;
/// Head pointer: index one past the last descriptor that is ready to run (written by the owner).
pub const DHPR: u64 = 0x04;
/// Tail pointer: index of the next descriptor to run (read only). When the channel has halted, of the
/// one that failed.
pub const DTPR: u64 = 0x08;
/// Ring address, low 32 bits; a multiple of 64.
pub const DRAR_LO: u64 = 0x14;
/// In bits 4 to 20 the ring's size in descriptors. In card memory the address's bits 32 to 35 are in
/// 0 to 3; with [`DRAR_SYSTEM`], bits 32 and 33 in 0 and 1, and the window's number in 21 to 25.
pub const DRAR_HI: u64 = 0x18;
/// In [`DRAR_HI`]: the ring is in host memory, in one of the windows of [`SMPT00`].
pub const DRAR_SYSTEM: u32 = 1 << 26;
/// Status: the tail ([`DSTAT_TAIL`]), and [`DSTAT_QUIET`].
pub const DSTAT: u64 = 0x20;
/// In [`DSTAT`]: the tail.
pub const DSTAT_TAIL: u32 = 0x1_ffff;
/// In [`DSTAT`]: the channel runs nothing, for it is disabled or has halted.
pub const DSTAT_QUIET: u32 = 1 << 29;
/// Error: not zero once the channel has halted, and why ([`crate::dma::error`]).
pub const DCHERR: u64 = 0x2C;
/// Causes in [`DCHERR`] that raise no interrupt. The channel halts all the same.
pub const DCHERRMSK: u64 = 0x30;

/// First of the windows through which the card sees host memory (Knights Corner's SMPT, system memory
/// page table): window `n` shows the 16 GiB at [`crate::dma::HOST_BASE`]` + n * 16 GiB`. Bits 2 to 31
/// of a register are bits 34 to 63 of the host's DMA address there; bit 0, no snooping, means nothing
/// here. After a reset window `n` shows the host's 16 GiB number `n`.
pub const SMPT00: u64 = SBOX + 0x3100;
/// Windows.
pub const SMPT_COUNT: u64 = 32;
/// Each window's size is 1 << this.
pub const SMPT_SHIFT: u32 = 34;

/// Offset in BAR4 of register `reg` of DMA channel `channel`.
pub const fn dma_register(channel: usize, reg: u64) -> u64 {
    DMA + channel as u64 * DMA_STRIDE + reg
}

/// Meanings of the 16 scratchpads. Addresses are card-physical, in pages of 4 KiB.
pub mod spad {
    /// [`STATE_BOOTING`], [`STATE_ONLINE`], [`STATE_CRASHED`] or [`STATE_SHUTTING_DOWN`].
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
    /// The card was told to end: its function goes away next.
    pub const STATE_SHUTTING_DOWN: u32 = 3;
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
