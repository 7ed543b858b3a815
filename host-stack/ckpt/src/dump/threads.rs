//! What only a thread itself can say: all threads of a process are asked at once.

use snaprig_resources::error::{Error, Result};
use snaprig_tracee::{
    freeze::HeldProcess,
    memory,
    remote::{self, HOME_BYTES, call},
    stub::Stub,
};

/// Where the parts of threads begin in the stub's room, behind the process's data.
pub const SLOTS: u64 = 8 << 10;
/// From one thread's part to the next: home, 16 calls, data.
const SLOT_BYTES: u64 = 2 << 10;
const SLOT_DATA: u64 = HOME_BYTES + 16 * 64;
/// Where a memory policy is in a thread's data: mode, then nodes.
const POLICY: u64 = 48;
const NODES: u64 = 64;
const NODES_MAX: u64 = 1024;
/// Bytes of a thread's data.
const DATA_BYTES: u64 = NODES + NODES_MAX / 8;
/// prctl(2): PR_SPEC_STORE_BYPASS, PR_SPEC_INDIRECT_BRANCH, PR_SPEC_L1D_FLUSH.
const SPECULATIONS: [u64; 3] = [0, 1, 2];
/// PR_SPEC_PRCTL, and the states that can be set: PR_SPEC_ENABLE to PR_SPEC_DISABLE_NOEXEC.
const SPECULATION_IS_OWN: i64 = 1;
const SPECULATION_STATES: i64 = 0b11110;
const SPECULATION_ENABLED: i64 = 2;
/// linux/prctl.h
const PR_GET_SPECULATION_CTRL: i32 = 52;
const PR_SET_SPECULATION_CTRL: i32 = 53;
const PR_SET_IO_FLUSHER: i32 = 57;
const PR_GET_IO_FLUSHER: i32 = 58;
/// keyctl(2): KEY_SPEC_THREAD_KEYRING.
const THREAD_KEYRING: u64 = -1i64 as u64;

/// What a thread has said.
#[derive(Clone, Default)]
pub struct AskedThread {
    pub alternate_stack: [u64; 3],
    pub clear_tid: u64,
    pub parent_death_signal: i32,
    pub timer_slack: u64,
    pub secure_bits: u32,
    pub no_new_privileges: bool,
    pub personality: u32,
    pub memory_policy: (i32, Vec<u64>),
    pub options: Vec<[u64; 3]>,
}

/// Asks all threads, as many at a time as the stub has room for.
pub fn ask(process: &mut HeldProcess, stub: &Stub) -> Result<Vec<AskedThread>> {
    let pid = process.pid;
    let mut asked = Vec::new();
    let slots = ((remote::DATA_BYTES - SLOTS) / SLOT_BYTES) as usize;
    for threads in process.threads.chunks_mut(slots) {
        let slot = |index: usize| remote::data(stub.at) + SLOTS + index as u64 * SLOT_BYTES;
        let count = calls(0).len();
        for (index, thread) in threads.iter_mut().enumerate() {
            let (table, tid) = (slot(index), thread.tracee.tid());
            let calls = calls(table + SLOT_DATA);
            thread.remote(pid, stub.end, |remote| {
                remote.start_at(stub.at, table, tid, &calls)
            })?;
        }
        for (index, thread) in threads.iter_mut().enumerate() {
            let table = slot(index);
            let results = thread.finish(table, count, stub.end)?;
            let mut data = [0; DATA_BYTES as usize];
            memory::read(thread.tracee.tid(), table + SLOT_DATA, &mut data)?;
            let understood = understand(&results, &data);
            let keyring = "a keyring of a thread's own (keyctl(2))";
            asked.push(understood.ok_or_else(|| Error::refused(pid, keyring))?);
        }
    }
    Ok(asked)
}

/// The calls; what they write is at `data`.
fn calls(data: u64) -> [remote::Call; 15] {
    let prctl =
        |option: i32, argument: u64| call(libc::SYS_prctl, [option as u64, argument, 0, 0, 0]);
    let [bypass, branch, flush] = SPECULATIONS.map(|which| prctl(PR_GET_SPECULATION_CTRL, which));
    let policy = [data + POLICY, data + NODES, NODES_MAX, 0, 0];
    [
        call(libc::SYS_sigaltstack, [0, data]),
        prctl(libc::PR_GET_TID_ADDRESS, data + 24),
        prctl(libc::PR_GET_PDEATHSIG, data + 32),
        prctl(libc::PR_GET_TSC, data + 40),
        prctl(libc::PR_GET_TIMERSLACK, 0),
        prctl(libc::PR_GET_SECUREBITS, 0),
        prctl(libc::PR_GET_NO_NEW_PRIVS, 0),
        prctl(libc::PR_MCE_KILL_GET, 0),
        prctl(PR_GET_IO_FLUSHER, 0),
        bypass,
        branch,
        flush,
        call(libc::SYS_get_mempolicy, policy),
        call(libc::SYS_personality, [0xffff_ffff]),
        call(libc::SYS_keyctl, [0, THREAD_KEYRING, 0]),
    ]
}

/// What the calls say; none: what cannot be saved.
fn understand(results: &[i64], data: &[u8]) -> Option<AskedThread> {
    let word = |at: u64| {
        let bytes = data[at as usize..][..8].try_into();
        u64::from_ne_bytes(bytes.expect("eight bytes"))
    };
    let &[
        _,
        _,
        _,
        _,
        slack,
        bits,
        privileges,
        on_error,
        flusher,
        ..,
        persona,
        keyring,
    ] = results
    else {
        return None;
    };
    if keyring > 0 {
        return None;
    }
    let mut options = Vec::new();
    if word(40) as i32 == libc::PR_TSC_SIGSEGV {
        options.push([libc::PR_SET_TSC as u64, libc::PR_TSC_SIGSEGV as u64, 0]);
    }
    if [libc::PR_MCE_KILL_EARLY, libc::PR_MCE_KILL_LATE].contains(&(on_error as i32)) {
        let set = libc::PR_MCE_KILL_SET as u64;
        options.push([libc::PR_MCE_KILL as u64, set, on_error as u64]);
    }
    if flusher == 1 {
        options.push([PR_SET_IO_FLUSHER as u64, 1, 0]);
    }
    for (which, state) in SPECULATIONS.into_iter().zip(&results[9..12]) {
        if *state > 0 && state & SPECULATION_IS_OWN != 0 && state & SPECULATION_ENABLED == 0 {
            let state = (state & SPECULATION_STATES) as u64;
            options.push([PR_SET_SPECULATION_CTRL as u64, which, state]);
        }
    }
    let nodes = (0..NODES_MAX / 64).map(|index| word(NODES + index * 8));
    Some(AskedThread {
        alternate_stack: [word(0), word(8) & 0xffff_ffff, word(16)],
        clear_tid: word(24),
        parent_death_signal: word(32) as i32,
        timer_slack: slack.max(0) as u64,
        secure_bits: bits.max(0) as u32,
        no_new_privileges: privileges == 1,
        personality: persona.max(0) as u32,
        memory_policy: (word(POLICY) as i32, nodes.collect()),
        options,
    })
}
