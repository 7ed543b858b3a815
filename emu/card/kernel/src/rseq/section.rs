//! What a thread is told of its core, and where a critical section starts again.

use snaprig_card_driver::{device::UserMemory, errno::Errno};
use snaprig_card_memory::USER_END;

use super::{CRITICAL_SECTION_AT, NODE_AT, Rseq, UNINITIALIZED};
use crate::{
    mm::AddressSpace,
    signal::{Info, send},
    state::{State, lock},
};

/// Tells a thread its core.
pub fn tell_core(state: &mut State, tid: i32, core: u32) {
    let (pid, rseq) = (state.thread(tid).pid, &mut state.thread(tid).rseq);
    rseq.core = Some(core);
    let rseq = *rseq;
    let mm = state.process(pid).mm.clone();
    let told = write_ids(&mut lock(&mm), &rseq, core, core);
    if told.is_err() {
        send::force(state, tid, Info::kernel(libc::SIGSEGV));
        if let Some(thread) = state.threads.get_mut(&tid) {
            thread.poke();
        }
    }
}

/// `cpu_id_start` and `cpu_id`; then the node and the id within the process, if there is room for them.
pub(super) fn write_ids(
    mm: &mut AddressSpace,
    rseq: &Rseq,
    start: u32,
    core: u32,
) -> Result<(), Errno> {
    let ids = [start.to_le_bytes(), core.to_le_bytes()].concat();
    mm.write(rseq.address, &ids)?;
    let id = if core == UNINITIALIZED { 0 } else { core };
    let more = [0_u32.to_le_bytes(), id.to_le_bytes()].concat();
    mm.write(rseq.address + NODE_AT, &more)
}

/// The thread has left ring 3 other than by a system call, or a signal is about to be delivered: a
/// critical section that it is in starts again.
pub fn abort_section(state: &mut State, tid: i32) {
    let thread = state.thread(tid);
    let (pid, rseq, ip) = (thread.pid, thread.rseq, thread.regs.rip);
    if rseq.address == 0 {
        return;
    }
    let mm = state.process(pid).mm.clone();
    let next = section_end(&mut lock(&mm), &rseq, ip);
    match next {
        Ok(None) => {}
        Ok(Some(abort)) => state.thread(tid).regs.rip = abort,
        Err(_) => send::force(state, tid, Info::kernel(libc::SIGSEGV)),
    }
}

/// Where to go on instead of `ip`, if that is in the critical section that the thread has named.
fn section_end(mm: &mut AddressSpace, rseq: &Rseq, ip: u64) -> Result<Option<u64>, Errno> {
    let mut pointer = [0; 8];
    mm.read(rseq.address + CRITICAL_SECTION_AT, &mut pointer)?;
    let at = u64::from_le_bytes(pointer);
    if at == 0 {
        return Ok(None);
    }
    let mut section = [0; 32];
    mm.read(at, &mut section)?;
    let word = |at: usize| u64::from_le_bytes(section[at..at + 8].try_into().expect("8 bytes"));
    let (version_and_flags, start, len, abort) = (word(0), word(8), word(16), word(24));
    let is_within = start.checked_add(len).is_some_and(|end| end <= USER_END);
    if version_and_flags != 0 || !is_within || abort.wrapping_sub(start) < len || abort >= USER_END
    {
        return Err(Errno::EINVAL);
    }
    let mut signature = [0; 4];
    mm.read(abort.wrapping_sub(4), &mut signature)?;
    if u32::from_le_bytes(signature) != rseq.signature {
        return Err(Errno::EINVAL);
    }
    mm.write(rseq.address + CRITICAL_SECTION_AT, &[0; 8])?;
    Ok((ip.wrapping_sub(start) < len).then_some(abort))
}
