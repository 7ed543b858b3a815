//! Copies of a program's that may meet bad addresses: one that is marked ends there, instead of with a signal. So a library
//! finds a bad address as a system call does (EFAULT), without making one.
//!
//! ```text
//! rep movsb          what is left to copy is in rcx: not 0 if it could not go on
//! nop [rax + MARK]
//! ```

use snaprig_card_driver::device::UserMemory;
use snaprig_wire::guarded::{COPY, COPY_BYTES};

use crate::state::{State, lock};

/// Goes on behind the copy, if it is a marked one that the thread cannot go on with.
pub fn give_up(state: &mut State, tid: i32) -> bool {
    let thread = state.thread(tid);
    let (pid, ip) = (thread.pid, thread.regs.rip);
    let mm = state.process(pid).mm.clone();
    let mut code = [0; COPY.len()];
    if lock(&mm).read(ip, &mut code).is_err() || code != COPY {
        return false;
    }
    state.thread(tid).regs.rip = ip + COPY_BYTES;
    true
}
