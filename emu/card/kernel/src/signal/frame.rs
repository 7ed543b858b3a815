//! What a handler finds on its stack, and the way back from there (sigreturn(2)).

use snaprig_card_driver::{device::UserMemory, errno::Errno, signals::SigSet};
use snaprig_card_platform::Regs;

use super::{Action, AltStack, Info, SA_RESTORER};
use crate::mm::AddressSpace;

/// The red zone below the stack pointer that a leaf function may use (x86-64 ABI).
const RED_ZONE: u64 = 128;

/// What goes onto the stack for a handler: `struct rt_sigframe` (arch/x86/include/asm/sigframe.h).
///
/// ```text
/// frame + 0    return address (restorer)
/// frame + 8    ucontext, 304 bytes: flags, link, stack, registers, mask
/// frame + 312  siginfo, 128 bytes
/// above        extended state, 64-byte aligned, then FP_XSTATE_MAGIC2
/// ```
pub(super) struct Frame<'a> {
    pub(super) regs: Regs,
    pub(super) mask: SigSet,
    pub(super) alt: AltStack,
    pub(super) info: &'a Info,
}

pub(super) const UCONTEXT: u64 = 8;
pub(super) const GREGS: usize = 40;
pub(super) const UC_MASK: usize = 296;
pub(super) const UC_BYTES: usize = 304;
const SIGINFO: u64 = UCONTEXT + UC_BYTES as u64;
const FRAME_BYTES: u64 = SIGINFO + 128;
const FP_XSTATE_MAGIC1: u32 = 0x4650_5853;
const FP_XSTATE_MAGIC2: u32 = 0x4650_5845;
/// `fpstate_sw_bytes` in the legacy region.
pub(super) const SW_BYTES: usize = 464;
const UC_FLAGS: u64 = 0b111;

impl Frame<'_> {
    /// Writes it; the registers with which the handler starts.
    pub(super) fn push(
        &self,
        mm: &mut AddressSpace,
        action: &Action,
        extended: &[u8],
    ) -> Result<Regs, Errno> {
        let on_alt = action.flags & libc::SA_ONSTACK as u64 != 0
            && self.alt.bytes > 0
            && !self.alt.holds(self.regs.rsp);
        let top = if on_alt {
            self.alt.start + self.alt.bytes
        } else {
            self.regs.rsp.wrapping_sub(RED_ZONE)
        };
        let fp = top.wrapping_sub(extended.len() as u64 + 4) & !63;
        // As at a function's entry: 16-byte aligned but for the return address.
        let frame = (fp.wrapping_sub(FRAME_BYTES) & !15).wrapping_sub(8);
        if action.flags & SA_RESTORER == 0 {
            return Err(Errno::EFAULT);
        }
        mm.write(fp, &with_sw_bytes(extended))?;
        mm.write(frame, &action.restorer.to_le_bytes())?;
        mm.write(frame + UCONTEXT, &self.ucontext(fp))?;
        mm.write(frame + SIGINFO, &self.info.siginfo())?;
        Ok(Regs {
            rip: action.handler,
            rsp: frame,
            rax: 0,
            rdi: self.info.signal as u64,
            rsi: frame + SIGINFO,
            rdx: frame + UCONTEXT,
            rflags: 0x202,
            ..self.regs
        })
    }

    fn ucontext(&self, fp: u64) -> [u8; UC_BYTES] {
        let mut uc = [0; UC_BYTES];
        let mut put = |at: usize, value: u64| uc[at..at + 8].copy_from_slice(&value.to_le_bytes());
        put(0, UC_FLAGS);
        let [start, flags, bytes] = self.alt.words(self.regs.rsp);
        put(16, start);
        put(24, flags);
        put(32, bytes);
        for (index, value) in gregs(&self.regs).into_iter().enumerate() {
            put(GREGS + index * 8, value);
        }
        // cs, gs, fs, ss: the user's selectors.
        put(GREGS + 18 * 8, 0x33 | 0x2b << 48);
        put(GREGS + 21 * 8, self.mask.0);
        put(GREGS + 22 * 8, self.info.address);
        put(GREGS + 23 * 8, fp);
        put(UC_MASK, self.mask.0);
        uc
    }
}

fn with_sw_bytes(extended: &[u8]) -> Vec<u8> {
    let mut fp = extended.to_vec();
    let size = fp.len() as u32;
    fp[SW_BYTES..SW_BYTES + 4].copy_from_slice(&FP_XSTATE_MAGIC1.to_le_bytes());
    fp[SW_BYTES + 4..SW_BYTES + 8].copy_from_slice(&(size + 4).to_le_bytes());
    fp[SW_BYTES + 8..SW_BYTES + 16].copy_from_slice(&0x2e7_u64.to_le_bytes());
    fp[SW_BYTES + 16..SW_BYTES + 20].copy_from_slice(&size.to_le_bytes());
    fp.extend_from_slice(&FP_XSTATE_MAGIC2.to_le_bytes());
    fp
}

fn gregs(r: &Regs) -> [u64; 18] {
    [
        r.r8, r.r9, r.r10, r.r11, r.r12, r.r13, r.r14, r.r15, r.rdi, r.rsi, r.rbp, r.rbx, r.rdx,
        r.rax, r.rcx, r.rsp, r.rip, r.rflags,
    ]
}
