//! The way back from a handler (sigreturn(2)).

use snaprig_card_driver::{errno::Errno, signals::SigSet, wait::SysResult};
use snaprig_card_memory::USER_END;
use snaprig_card_platform::{Regs, xstate};

use super::frame::{GREGS, SW_BYTES, UC_BYTES, UC_MASK, UCONTEXT};
use crate::call::Call;

impl Call<'_> {
    /// rt_sigreturn(2): everything back to what the frame says, as far as a program may say it.
    pub fn rt_sigreturn(&mut self) -> SysResult {
        let frame = self.thread().regs.rsp.wrapping_sub(8);
        let mut uc = [0; UC_BYTES];
        self.read(frame.wrapping_add(UCONTEXT), &mut uc)?;
        let get = |at: usize| u64::from_le_bytes(uc[at..at + 8].try_into().expect("8 bytes"));
        let g = |index: usize| get(GREGS + index * 8);
        let fp = g(23);
        if fp != 0 {
            let mut extended = vec![0; xstate::bytes()];
            self.read(fp, &mut extended)?;
            extended[SW_BYTES..512].fill(0);
            xstate::check(&extended).map_err(|_| Errno::EFAULT)?;
            self.thread().xstate = Some(extended);
        }
        let old = self.thread().regs;
        let regs = Regs {
            r8: g(0),
            r9: g(1),
            r10: g(2),
            r11: g(3),
            r12: g(4),
            r13: g(5),
            r14: g(6),
            r15: g(7),
            rdi: g(8),
            rsi: g(9),
            rbp: g(10),
            rbx: g(11),
            rdx: g(12),
            rax: g(13),
            rcx: g(14),
            rsp: g(15),
            rip: g(16),
            rflags: g(17),
            ..old
        };
        if regs.rip >= USER_END {
            return Err(Errno::EFAULT.into());
        }
        self.thread().regs = regs;
        self.thread().mask = SigSet(get(UC_MASK)).blockable();
        // What cannot be set is left (Linux: restore_altstack).
        let _ = self.set_alt_stack([get(16), get(24), get(32)], regs.rsp);
        // The result is what the interrupted code had in rax.
        Ok(regs.rax)
    }
}
