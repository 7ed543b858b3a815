//! What the programs of the offload stack say to each other, on the host and on a card, byte for byte.
//!
//! It is a crate of its own because programs on a card link it, which have room for little, and the simulator and the
//! fuzz targets do. What devices and their drivers agree on is [`snaprig_wire`].
//!
//! | module | between | carried by |
//! |---|---|---|
//! | [`coi`] | host process, COI daemon, offload process | SCIF connections |
//! | [`coi_result`] | COI and programs, on the host and on a card | return values |
//! | [`snapify`] | the same three | the COI control connection and a Unix socket on the card |
//! | [`snapify_io`] | Snapify-IO daemons | SCIF connections |
//!
//! What must stay true: every decoder takes bytes from somebody who may be hostile, so it checks lengths, never panics,
//! and never allocates more than the bytes it was given could describe.
#![no_std]

extern crate alloc;

pub mod coi;
pub mod coi_result;
pub mod snapify;
pub mod snapify_io;
