//! Restartable sequences (the kernel's Documentation/userspace-api/rseq.rst): a thread learns from
//! memory which core it is on, and a critical section in which it lost its core, or had a signal,
//! starts again at its abort handler.
//!
//! What must stay true: while a thread is in ring 3 nobody else is there on the core that its `cpu_id`
//! names. So a section is aborted whenever the thread leaves ring 3 within it: its core may have
//! been another's before it comes back.

use serde::{Deserialize, Serialize};
use snaprig_card_driver::{device::UserMemory, errno::Errno, wait::SysResult};
use snaprig_card_memory::USER_END;

use super::{
    call::Call,
    mm::AddressSpace,
    signal::{self, Info},
    state::{State, lock},
};

const UNREGISTER: i32 = 1;
/// `struct rseq` when it was new, and what it must be aligned to then.
const ORIGINAL_BYTES: u32 = 32;
/// Offset of the end of what is known of it.
pub const FEATURE_BYTES: u32 = 28;
/// What `struct rseq` is aligned to.
pub const ALIGN: u64 = 32;
/// `cpu_id` of a thread that is not registered.
const UNINITIALIZED: u32 = u32::MAX;
const CRITICAL_SECTION_AT: u64 = 8;
const NODE_AT: u64 = 20;

/// A thread's registration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rseq {
    /// Where its `struct rseq` is; 0: it has none.
    address: u64,
    bytes: u32,
    signature: u32,
    /// The core that is told there.
    core: Option<u32>,
}

impl Rseq {
    /// Whether another core than `core` is told.
    pub fn is_elsewhere(&self, core: u32) -> bool {
        self.address != 0 && self.core != Some(core)
    }

    /// In a restored process, which tells its core before it runs.
    pub fn moved(self) -> Self {
        Self { core: None, ..self }
    }
}

/// Tells a thread its core.
pub fn tell_core(state: &mut State, tid: i32, core: u32) {
    let (pid, rseq) = (state.thread(tid).pid, &mut state.thread(tid).rseq);
    rseq.core = Some(core);
    let rseq = *rseq;
    let mm = state.process(pid).mm.clone();
    let told = write_ids(&mut lock(&mm), &rseq, core, core);
    if told.is_err() {
        signal::force(state, tid, Info::kernel(libc::SIGSEGV));
        if let Some(thread) = state.threads.get_mut(&tid) {
            thread.poke();
        }
    }
}

/// `cpu_id_start` and `cpu_id`; then the node and the id within the process, if there is room for them.
fn write_ids(mm: &mut AddressSpace, rseq: &Rseq, start: u32, core: u32) -> Result<(), Errno> {
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
        Err(_) => signal::force(state, tid, Info::kernel(libc::SIGSEGV)),
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

impl Call<'_> {
    /// rseq.
    pub fn rseq(&mut self, address: u64, bytes: u32, flags: i32, signature: u32) -> SysResult {
        let now = self.thread().rseq;
        let is_same = now.address == address && now.bytes == bytes;
        if flags & UNREGISTER != 0 {
            if flags != UNREGISTER || now.address == 0 || !is_same {
                return Err(Errno::EINVAL.into());
            }
            if now.signature != signature {
                return Err(Errno::EPERM.into());
            }
            let mm = self.process().mm.clone();
            write_ids(&mut lock(&mm), &now, 0, UNINITIALIZED)?;
            self.thread().rseq = Rseq::default();
            return Ok(0);
        }
        if flags != 0 {
            return Err(Errno::EINVAL.into());
        }
        if now.address != 0 {
            return Err(match is_same {
                false => Errno::EINVAL,
                true if now.signature != signature => Errno::EPERM,
                true => Errno::EBUSY,
            }
            .into());
        }
        if bytes < ORIGINAL_BYTES || !address.is_multiple_of(ALIGN) {
            return Err(Errno::EINVAL.into());
        }
        if address >= USER_END - u64::from(bytes) {
            return Err(Errno::EFAULT.into());
        }
        self.thread().rseq = Rseq {
            address,
            bytes,
            signature,
            core: None,
        };
        Ok(0)
    }
}
