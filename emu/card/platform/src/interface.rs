//! What a platform is to the card kernel: it makes address spaces and CPUs, which run ring-3 code.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{error::PlatformError, kind::Kind};

/// The integer registers of one guest thread, in ring 3.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are the processor's")]
pub struct Regs {
    pub rax: u64,
    pub rbx: u64,
    pub rcx: u64,
    pub rdx: u64,
    pub rsi: u64,
    pub rdi: u64,
    pub rbp: u64,
    pub rsp: u64,
    pub r8: u64,
    pub r9: u64,
    pub r10: u64,
    pub r11: u64,
    pub r12: u64,
    pub r13: u64,
    pub r14: u64,
    pub r15: u64,
    pub rip: u64,
    pub rflags: u64,
    pub fs_base: u64,
    pub gs_base: u64,
}

/// Why a guest thread stopped running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// `syscall`: the number is in `rax`, arguments in `rdi rsi rdx r10 r8 r9`, and `rip` is the
    /// address after the instruction. The kernel puts the result in `rax`.
    Syscall,
    /// No page, or one that does not allow the access.
    PageFault {
        /// The address that was touched.
        address: u64,
        /// It was a write.
        write: bool,
        /// It was an instruction fetch.
        execute: bool,
    },
    /// Another exception; `rip` is as the processor reports it.
    Exception {
        /// x86 vector: 0 divide, 3 breakpoint, 6 invalid opcode, 13 general protection, ...
        vector: u8,
        /// The error code, or 0.
        error_code: u64,
    },
    /// [`Kick::kick`] was called, or nothing happened: look for work, then run on.
    Kicked,
}

/// Makes spaces and CPUs.
pub trait Platform: Send + Sync {
    /// Which one it is.
    fn kind(&self) -> Kind;

    /// An address space whose page tables are rooted at card-physical `root` (one zeroed frame).
    /// The platform may put its own entries into the root's slots from [`USER_END`](snaprig_card_memory::USER_END) up.
    fn new_space(&self, root: u64) -> Result<Arc<dyn Space>, PlatformError>;

    /// A CPU, to be used on the calling host thread only.
    fn new_cpu(&self, space: Arc<dyn Space>) -> Result<Box<dyn Cpu>, PlatformError>;

    /// CPUs that there can be at a time.
    fn cpus_max(&self) -> usize;

    /// Whether programs that read the time stamp counter read the host's.
    fn has_host_counter(&self) -> bool;

    /// Bytes of [`Cpu::xstate`].
    fn xstate_bytes(&self) -> usize;
}

/// One address space.
pub trait Space: Send + Sync {
    /// Makes earlier removals (or protections) of entries in `start..end` visible to every CPU of
    /// this space, with the page tables already changed. `cpu` is one of this space that the
    /// calling thread owns; without one it may take longer to reach the memory.
    fn flush(&self, cpu: Option<&mut dyn Cpu>, start: u64, end: u64) -> Result<(), PlatformError>;

    /// Forgets all that is known of its tables, before their frames, and those of its pages, are another's.
    /// No CPU runs in it any more.
    fn end(&self) -> Result<(), PlatformError>;

    /// Whether its CPUs reach memory through another mapping than the card kernel's, so that who watches
    /// that one sees no writes of theirs.
    fn has_own_mapping(&self) -> bool;

    /// For implementations to find their own type again.
    fn as_any(&self) -> &dyn std::any::Any;
}

/// One guest thread's processor.
pub trait Cpu {
    /// Runs ring-3 code from `regs` until something needs the kernel.
    fn run(&mut self, regs: &mut Regs) -> Result<Exit, PlatformError>;

    /// The extended state (x87, SSE, AVX, ...) in XSAVE's standard format.
    fn xstate(&mut self) -> Result<Vec<u8>, PlatformError>;

    /// Sets the extended state. A shorter or malformed image is refused.
    fn set_xstate(&mut self, xstate: &[u8]) -> Result<(), PlatformError>;

    /// Moves to another space (`execve`).
    fn set_space(&mut self, space: Arc<dyn Space>) -> Result<(), PlatformError>;

    /// A handle with which any thread can make [`Cpu::run`] return.
    fn kicker(&self) -> Arc<dyn Kick>;

    /// For implementations to find their own type again.
    fn as_any_mut(&mut self) -> &mut dyn std::any::Any;
}

/// Makes a CPU leave ring 3.
pub trait Kick: Send + Sync {
    /// The CPU's current `run` returns soon, or else its next one returns at once, with
    /// [`Exit::Kicked`] if nothing else happened. Never lost, may be spurious.
    fn kick(&self);
}
