//! What host, card and guest agree on, byte for byte, and nothing else.
//!
//! Register maps, ring layouts and message types. No I/O, no clock, no allocation beyond what a
//! message needs, so that the card process, the host driver and the programs that run on the card
//! can all link it.
//!
//! | module | between | carried by |
//! |---|---|---|
//! | [`pci`], [`bar4`] | host driver and PCI function | configuration space, BAR4 |
//! | [`dma`] | host driver and DMA engine | descriptor rings in card memory |
//! | [`ring`], [`link`] | host driver and card SCIF driver | two byte rings in the aperture (BAR0) |
//! | [`scif`] | SCIF nodes | the rings; and `/dev/mic/scif` ioctls on the card |
//! | [`guarded`] | a program on the card and the card kernel | code that is marked |
//! | [`checkpoint`] | a program on the card and the card kernel | `/dev/card/checkpoint` ioctls |
//!
//! [`fault`] is what all of them say of the places where something can go wrong.
//!
//! What must stay true: every decoder takes bytes from somebody who may be hostile, so it checks
//! lengths, never panics, and never allocates more than the bytes it was given could describe.
#![no_std]

extern crate alloc;

pub mod bar4;
pub mod checkpoint;
pub mod dma;
pub mod fault;
pub mod frame;
pub mod guarded;
pub mod link;
pub mod pci;
pub mod ring;
pub mod scif;
