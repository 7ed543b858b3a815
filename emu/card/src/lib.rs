//! The coprocessor card: a small Linux machine that lives in one process.
//!
//! | folder | what it is |
//! |---|---|
//! | [`memory`] | card memory: one memfd, handed out in 4 KiB frames |
//! | [`outside`] | memory of others, above it: what programs have mapped of their peers' |
//! | [`dirty`] | which frames have been written to |
//! | `huge` | huge pages of the host behind those of the card |
//! | [`platform`] | what runs ring-3 code: `kvm`, or `ptrace` where there is no usable /dev/kvm |
//! | [`device`] | the PCI function: registers, interrupts, DMA, host memory |
//! | [`kernel`] | the card kernel: processes, threads, memory maps, files, signals, system calls |
//!
//! What must stay true: nothing a guest does may crash this process, reach memory that is not the
//! card's, or grow beyond the configured size. Page tables live in card memory, in x86-64 format,
//! and are the truth for both platforms.

pub mod capture;
pub mod device;
pub mod dirty;
mod huge;
pub mod kernel;
pub mod memory;
pub mod outside;
pub mod paging;
pub mod platform;
pub mod xstate;
