//! What open files and devices of a card are, for those who write one: drivers outside of the card kernel (SCIF's is
//! one), the RAM file system, and the kernel itself.
//!
//! | file | what it is |
//! |---|---|
//! | [`errno`] | why a system call fails |
//! | [`wait`] | how one waits |
//! | [`mod@file`] | open files |
//! | [`device`] | character devices, memory of programs, how to wake threads |
//! | [`signals`] | sets of signals |
//! | [`clock`] | what time it is on a card, and the page that tells programs |
//! | [`random`] | random numbers |
//! | [`network`] | a network beyond the card's own |

pub mod clock;
pub mod device;
pub mod errno;
pub mod file;
pub mod network;
pub mod random;
pub mod signals;
pub mod wait;
