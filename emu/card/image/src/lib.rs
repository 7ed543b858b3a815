//! Capture and restore of a process on the card: the part that BLCR's kernel module plays in the
//! paper (section 4.1, Capture, and section 4.3).

pub mod chain;
pub mod stream;
