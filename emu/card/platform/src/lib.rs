//! What runs ring-3 code on behalf of the card kernel.
//!
//! Two platforms stand behind one set of traits: `kvm` (a virtual CPU for each guest thread, all
//! in one VM) and `ptrace` (a traced host task for each guest thread, for hosts with no usable
//! /dev/kvm). The kernel above neither knows nor cares which.
//!
//! The page tables are the kernel's: x86-64 format, in card memory, rooted at the physical
//! address that [`Platform::new_space`] is given. KVM's CPUs walk them; `ptrace` treats them as
//! the truth that its host mappings cache, like a TLB.
//!
//! What must stay true:
//! - a [`Cpu`] is created, run and dropped on one host thread;
//! - making an entry present, or allowing more, needs no flush; taking away needs
//!   [`Space::flush`] before the frames are reused;
//! - an exit leaves `Regs` complete: the kernel may change any register and run on.

mod error;
mod interface;
mod kind;
mod kvm;
mod ptrace;
mod select;
mod signal;
pub mod testing;
pub mod xstate;

pub use self::{
    error::PlatformError,
    interface::{Cpu, Exit, Kick, Platform, Regs, Space},
    kind::Kind,
    ptrace::{MEMORY_FD as TRACED_MEMORY_FD, STUB as TRACED_STUB},
    select::{choose, probe},
    signal::kick_signal,
};
