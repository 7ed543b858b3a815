//! What a process is, but for its memory's bytes and its files.
//!
//! | state | |
//! |---|---|
//! | registers, x87 to AVX-512 and PKRU, TLS, name, signal mask, pending signals, alternate stack | saved |
//! | robust list, rseq, set_tid_address(2), parent death signal, timer slack | saved |
//! | users, groups, capabilities, ambient and bounding set, securebits, setfsuid(2), no_new_privs | saved |
//! | dumpable | saved; 2 becomes 0, which is as strict |
//! | personality(2), nice value, policy, priority, affinity, ioprio_set(2), set_mempolicy(2) | saved |
//! | PR_SET_TSC, PR_MCE_KILL, PR_SET_SPECULATION_CTRL, PR_SET_IO_FLUSHER | saved |
//! | PR_SET_CHILD_SUBREAPER, _THP_DISABLE, _MDWE, _MEMORY_MERGE; membarrier(2), mlockall(MCL_FUTURE) | saved |
//! | limits, umask, oom_score_adj, core filter, signal actions, all timers | saved |
//! | mlock(2), mlock2(2), mseal(2), MAP_DROPPABLE, all of madvise(2) that lasts, mbind(2) ([`super::placement`]) | saved |
//! | a first thread that has ended while others live | saved |
//! | seccomp(2) filters, a tracer, namespaces, a root directory, a control group, a security label of its own | refused |
//! | userfaultfd(2) on its memory, protection keys, a shadow stack, 32-bit programs | refused |
//! | io_setup(2), mapped sockets and objects of the kernel (io_uring, perf), a program whose file is gone | refused |
//! | an LDT, keyrings of its own, syscall user dispatch | refused, but only a stopped process says so |
//! | huge pages of any size, shared and private, with what is reserved ([`super::huge`]) | saved |
//! | what a memfd or segment of huge pages has reserved that nobody maps | lost, or that of all of a segment |
//! | System V shared memory, semaphores (SEM_UNDO, too), queues ([`super::sysv`]) | saved; what others have, too: refused |
//! | times of System V objects, who has attached a segment last, or sent and received | lost |
//! | MADV_GUARD_INSTALL | saved from Linux 6.15 on; refused in shared memory, when it stands still |
//! | landlock(7), F_NOTIFY | lost: nothing tells of it |
//!
//! What is refused is so before anything stops ([`super::refused`]), but for what a process must be asked for.

use std::{collections::BTreeMap, fs, os::unix::ffi::OsStrExt};

use super::{
    areas::{Flags, areas},
    refused,
    threads::{self, AskedThread},
};
use crate::faults;
use libc::pid_t;
use procfs::process::{LimitValue, Process as Proc, Status};
use snaprig_resources::{
    clocks::{self, Clocks, MICROS, SECOND_NANOS},
    error::{Error, Result},
    files::named::Named,
    memory::shared::Shared,
    plugins::owned::Owned,
    state::{Area, Backing, Body, Credentials, Layout, PosixTimer, Thread},
};
use snaprig_tracee::faults::reached;
use snaprig_tracee::{
    code::{Code, Origin, syscall_instruction},
    freeze::{HeldProcess, HeldThread},
    memory,
    remote::{self, Call, PAGE, STUB_BYTES, call, regs_of, regs_words, result},
    stub::Stub,
    trace::SigInfo,
};

/// Signals are numbered from 1 to this.
pub const SIGNALS: u64 = 64;
/// Bytes of the kernel's struct sigaction.
const ACTION_BYTES: u64 = 32;
/// prctl(2): attributes of a process that are asked for, and how they are set.
const ATTRIBUTES: [(i32, i32); 4] = [
    (libc::PR_GET_DUMPABLE, libc::PR_SET_DUMPABLE),
    (libc::PR_GET_THP_DISABLE, libc::PR_SET_THP_DISABLE),
    (libc::PR_GET_MDWE, libc::PR_SET_MDWE),
    (PR_GET_MEMORY_MERGE, PR_SET_MEMORY_MERGE),
];
/// linux/prctl.h
const PR_SET_MEMORY_MERGE: i32 = 67;
const PR_GET_MEMORY_MERGE: i32 = 68;
/// keyctl(2): KEYCTL_GET_KEYRING_ID, KEY_SPEC_PROCESS_KEYRING, KEY_SPEC_SESSION_KEYRING.
const GET_KEYRING: u64 = 0;
const PROCESS_KEYRING: u64 = -2i64 as u64;
const SESSION_KEYRING: u64 = -3i64 as u64;
/// KEY_SPEC_USER_SESSION_KEYRING: what those have of a user who have no other.
const USER_SESSION_KEYRING: u64 = -5i64 as u64;
/// membarrier(2): MEMBARRIER_CMD_GET_REGISTRATIONS.
const GET_REGISTRATIONS: u64 = 1 << 9;

/// What calls of its threads say of a process.
struct ProcessAnswers {
    /// When its timers were looked at.
    clocks: Clocks,
    actions: Vec<[u64; 4]>,
    interval_timers: [[u64; 4]; 3],
    timers: Vec<[u64; 4]>,
    brk: u64,
    attributes: BTreeMap<i32, u64>,
    membarrier: u32,
    locks_future: i32,
    threads: Vec<AskedThread>,
}

impl ProcessAnswers {
    /// A timer's interval and rest, seconds and parts of them each: what was left of it when `then` were read.
    fn since(&self, then: Clocks, clock: i32, setting: [u64; 4], parts: u64) -> [u64; 4] {
        clocks::with_left(setting, parts, |left| then.left(clock, left, &self.clocks))
    }
}

/// Describes a process; its descriptors are added by others.
pub fn describe(
    process: &mut HeldProcess,
    before: (&Flags, &Owned),
    clocks: Clocks,
    shared: &mut Shared,
    named: &mut Named,
    nameless: &mut Vec<(pid_t, u64)>,
) -> Result<Body> {
    let pid = process.handle();
    let proc = Proc::new(pid)?;
    let (status, stat) = (proc.status()?, proc.stat()?);
    refused::held(process)?;
    let areas = areas(pid, before, shared, named, nameless)?;
    let timers = timers(pid)?;
    let asked = ask(process, &areas, &timers)?;
    let set = asked.timers.iter().zip(&timers);
    let posix_timers = set.map(|(setting, timer)| PosixTimer {
        setting: asked.since(clocks, timer.clock, *setting, SECOND_NANOS),
        ..*timer
    });
    let posix_timers = posix_timers.collect();
    let mut interval_timers = asked.interval_timers;
    interval_timers[0] = asked.since(clocks, libc::CLOCK_MONOTONIC, interval_timers[0], MICROS);
    let layout = Layout {
        code: (stat.startcode, stat.endcode),
        data: (stat.start_data.unwrap_or(0), stat.end_data.unwrap_or(0)),
        brk: (stat.start_brk.unwrap_or(0), asked.brk),
        stack: stat.startstack,
        arguments: (stat.arg_start.unwrap_or(0), stat.arg_end.unwrap_or(0)),
        environment: (stat.env_start.unwrap_or(0), stat.env_end.unwrap_or(0)),
    };
    let threads = process.threads.iter().zip(&asked.threads);
    let threads = threads.map(|(thread, asked)| describe_thread(process.pid, thread, asked));
    let mut threads: Vec<Thread> = threads.collect::<Result<_>>()?;
    if pid != process.pid {
        threads.insert(0, ended(process.pid, &areas, &threads[0])?);
    }
    let link = |name: &str| -> Result<Vec<u8>> {
        let path = format!("/proc/{pid}/{name}");
        let target = fs::read_link(&path).map_err(|source| Error::io(path, source))?;
        Ok(target.as_os_str().as_bytes().to_vec())
    };
    let read = |name: &str| {
        let path = format!("/proc/{pid}/{name}");
        fs::read(&path).map_err(|source| Error::io(path, source))
    };
    let oom_score = String::from_utf8_lossy(&read("oom_score_adj")?)
        .trim()
        .parse();
    let policies = &before.0.policies;
    let placements = policies.of(&areas, &asked.threads[0].memory_policy);
    Ok(Body {
        threads,
        exe: named.file(pid, &proc.exe()?, true)?,
        cwd: link("cwd")?,
        umask: status.umask.unwrap_or(0o22),
        limits: limits(&proc)?,
        layout,
        auxv: read("auxv")?,
        areas,
        placements,
        guards: Vec::new(),
        descriptors: Vec::new(),
        actions: asked.actions,
        pending: process.threads[0]
            .tracee
            .pending(true)?
            .iter()
            .map(words)
            .collect(),
        interval_timers,
        posix_timers,
        attributes: asked.attributes,
        oom_score: oom_score.unwrap_or(0),
        core_filter: u32::from_str_radix(
            String::from_utf8_lossy(&read("coredump_filter")?).trim(),
            16,
        )
        .unwrap_or(0x33),
        membarrier: asked.membarrier,
        locks_future: asked.locks_future,
    })
}

/// A first thread that has ended while others live, as one that is about to: it makes exit(2).
fn ended(pid: pid_t, areas: &[Area], other: &Thread) -> Result<Thread> {
    let stat = Proc::new(pid)?.stat()?;
    let status = stat.exit_code.unwrap_or(0) >> 8;
    let mut regs = regs_of(&other.regs).unwrap_or_else(|| regs_of(&[0; 27]).expect("27 words"));
    regs.rip = syscall_instruction(other.tid, &code_among(areas))?;
    regs.rax = libc::SYS_exit as u64;
    regs.rdi = status as u64;
    regs.orig_rax = u64::MAX;
    Ok(Thread {
        tid: pid,
        name: stat.comm.into_bytes(),
        regs: regs_words(&regs).to_vec(),
        mask: u64::MAX,
        pending: Vec::new(),
        alternate_stack: [0, 2, 0],
        clear_tid: 0,
        robust_list: (0, 0),
        rseq: None,
        ..other.clone()
    })
}

/// `siginfo_t` as words.
fn words(info: &SigInfo) -> [u64; 16] {
    let mut words = [0; 16];
    for (word, bytes) in words.iter_mut().zip(info.chunks_exact(8)) {
        *word = u64::from_ne_bytes(bytes.try_into().expect("eight bytes"));
    }
    words
}

fn describe_thread(pid: pid_t, thread: &HeldThread, asked: &AskedThread) -> Result<Thread> {
    let tid = thread.tracee.tid();
    let comm = format!("/proc/{pid}/task/{tid}/comm");
    let name = fs::read(&comm).map_err(|source| Error::io(comm, source))?;
    let mut robust = (0u64, 0u64);
    // SAFETY: get_robust_list(2) writes an address and a length, of eight bytes each, to variables of this function; if
    // it fails they stay 0.
    unsafe {
        libc::syscall(
            libc::SYS_get_robust_list,
            tid,
            &raw mut robust.0,
            &raw mut robust.1,
        );
    }
    Ok(Thread {
        tid,
        name: name.strip_suffix(b"\n").unwrap_or(&name).to_vec(),
        regs: regs_words(&thread.own_regs()).to_vec(),
        xstate: thread.tracee.xstate()?,
        mask: thread.mask,
        pending: thread.tracee.pending(false)?.iter().map(words).collect(),
        alternate_stack: asked.alternate_stack,
        clear_tid: asked.clear_tid,
        robust_list: robust,
        rseq: thread.tracee.rseq().unwrap_or(None),
        affinity: affinity(tid),
        scheduling: scheduling(tid),
        parent_death_signal: asked.parent_death_signal,
        timer_slack: asked.timer_slack,
        credentials: Credentials {
            secure_bits: asked.secure_bits,
            ..credentials(&Proc::new(pid)?.task_from_tid(tid)?.status()?)
        },
        no_new_privileges: asked.no_new_privileges,
        personality: asked.personality,
        io_priority: io_priority(tid),
        memory_policy: asked.memory_policy.clone(),
        options: asked.options.clone(),
    })
}

/// Who a thread is.
pub fn credentials(status: &Status) -> Credentials {
    Credentials {
        users: [status.ruid, status.euid, status.suid, status.fuid],
        groups: [status.rgid, status.egid, status.sgid, status.fgid],
        more: status.groups.clone(),
        effective: status.capeff,
        permitted: status.capprm,
        inheritable: status.capinh,
        bounding: status.capbnd.unwrap_or(0),
        ambient: status.capamb.unwrap_or(0),
        secure_bits: 0,
    }
}

fn affinity(tid: pid_t) -> Option<Vec<u8>> {
    let of = |tid: pid_t| {
        let mut set = vec![0u8; 128];
        // SAFETY: sched_getaffinity(2) writes at most as many bytes as it is told, which is the length of the vector.
        let length = unsafe {
            libc::syscall(
                libc::SYS_sched_getaffinity,
                tid,
                set.len(),
                set.as_mut_ptr(),
            )
        };
        set.truncate(usize::try_from(length).unwrap_or(0));
        set
    };
    let set = of(tid);
    (set != of(0)).then_some(set)
}

fn scheduling(tid: pid_t) -> (i32, i32, i32) {
    // SAFETY: the structure has numbers alone, for which zero is a value; sched_getparam(2) writes it, or fails. The
    // others take numbers alone.
    unsafe {
        let mut parameters: libc::sched_param = std::mem::zeroed();
        let policy = libc::sched_getscheduler(tid);
        libc::sched_getparam(tid, &raw mut parameters);
        let nice = libc::getpriority(libc::PRIO_PROCESS, tid as u32);
        (policy, parameters.sched_priority, nice)
    }
}

/// ioprio_get(2); 0: none of its own.
fn io_priority(tid: pid_t) -> i32 {
    const WHO_PROCESS: i32 = 1;
    // SAFETY: ioprio_get(2) takes numbers alone and no address, so the kernel reads and writes no memory of this
    // process.
    unsafe { libc::syscall(libc::SYS_ioprio_get, WHO_PROCESS, tid) as i32 }.max(0)
}

/// From /proc: prlimit(2) is not for processes of others.
fn limits(proc: &Proc) -> Result<Vec<(u64, u64)>> {
    let limits = proc.limits()?;
    let by_number = [
        limits.max_cpu_time,
        limits.max_file_size,
        limits.max_data_size,
        limits.max_stack_size,
        limits.max_core_file_size,
        limits.max_resident_set,
        limits.max_processes,
        limits.max_open_files,
        limits.max_locked_memory,
        limits.max_address_space,
        limits.max_file_locks,
        limits.max_pending_signals,
        limits.max_msgqueue_size,
        limits.max_nice_priority,
        limits.max_realtime_priority,
        limits.max_realtime_timeout,
    ];
    let value = |value| match value {
        LimitValue::Unlimited => libc::RLIM_INFINITY,
        LimitValue::Value(value) => value,
    };
    let pairs = by_number.map(|limit| (value(limit.soft_limit), value(limit.hard_limit)));
    Ok(pairs.to_vec())
}

/// The timers of a process, from /proc/PID/timers; without their settings.
fn timers(pid: pid_t) -> Result<Vec<PosixTimer>> {
    let path = format!("/proc/{pid}/timers");
    let text = fs::read_to_string(&path).map_err(|source| Error::io(path, source))?;
    let mut timers = Vec::new();
    for line in text.lines() {
        let Some((key, value)) = line.split_once(": ") else {
            continue;
        };
        let timer: Option<&mut PosixTimer> = timers.last_mut();
        match (key, timer) {
            ("ID", _) => timers.push(PosixTimer {
                id: value.parse().unwrap_or(0),
                signal: 0,
                value: 0,
                notify: 0,
                thread: 0,
                clock: 0,
                setting: [0; 4],
            }),
            // "14/0000000000000000"
            ("signal", Some(timer)) => {
                let (signal, data) = value.split_once('/').unwrap_or((value, "0"));
                timer.signal = signal.parse().unwrap_or(0);
                timer.value = u64::from_str_radix(data, 16).unwrap_or(0);
            }
            // "signal/pid.1234", "thread/tid.1234", "none/pid.1234"
            ("notify", Some(timer)) => {
                let (how, whom) = value.split_once('/').unwrap_or((value, ""));
                let (kind, number) = whom.split_once('.').unwrap_or(("", ""));
                timer.thread = number.parse().unwrap_or(0);
                timer.notify = match (how, kind) {
                    ("none", _) => libc::SIGEV_NONE,
                    (_, "tid") => libc::SIGEV_THREAD_ID,
                    _ => libc::SIGEV_SIGNAL,
                };
            }
            ("ClockID", Some(timer)) => timer.clock = value.parse().unwrap_or(0),
            _ => {}
        }
    }
    Ok(timers)
}

/// Asks a process for what only it can be asked for.
fn ask(process: &mut HeldProcess, areas: &[Area], timers: &[PosixTimer]) -> Result<ProcessAnswers> {
    let locked = locked_bytes(process.handle())?;
    let stub = Stub::map(process, &code_among(areas))?;
    let asked = ask_with(process, &stub, timers, locked);
    reached(&faults::ASKED);
    // Whatever came of it.
    stub.unmap(process)?;
    asked
}

/// Its code, of the areas that it has.
pub fn code_among(areas: &[Area]) -> Vec<Code> {
    let code = areas
        .iter()
        .filter(|area| area.protection & libc::PROT_EXEC != 0);
    let code = code.map(|area| Code {
        start: area.start,
        end: area.end,
        is_readable: area.protection & libc::PROT_READ != 0,
        is_shared: area.is_shared,
        origin: match &area.backing {
            Backing::Kernel(_) => Origin::Kernel,
            Backing::File { .. } => Origin::File,
            _ => Origin::Other,
        },
    });
    code.collect()
}

fn ask_with(
    process: &mut HeldProcess,
    stub: &Stub,
    timers: &[PosixTimer],
    locked: u64,
) -> Result<ProcessAnswers> {
    let pid = process.pid;
    let data = remote::data(stub.at);
    let timers_at = data + SIGNALS * ACTION_BYTES;
    let interval_at = timers_at + timers.len() as u64 * 32;
    let clocks_at = interval_at + 3 * 32;
    let subreaper_at = clocks_at + 32;
    if subreaper_at + 16 > data + threads::SLOTS {
        return Err(Error::refused(pid, format!("{} timers", timers.len())));
    }
    let mut calls: Vec<Call> = (0..SIGNALS)
        .map(|index| {
            call(
                libc::SYS_rt_sigaction,
                [index + 1, 0, data + index * ACTION_BYTES, 8],
            )
        })
        .collect();
    for (index, timer) in timers.iter().enumerate() {
        let at = timers_at + index as u64 * 32;
        calls.push(call(libc::SYS_timer_gettime, [timer.id as u64, at]));
    }
    for which in 0..3 {
        calls.push(call(libc::SYS_getitimer, [which, interval_at + which * 32]));
    }
    for (index, clock) in [libc::CLOCK_MONOTONIC, libc::CLOCK_BOOTTIME]
        .iter()
        .enumerate()
    {
        let at = clocks_at + index as u64 * 16;
        calls.push(call(libc::SYS_clock_gettime, [*clock as u64, at]));
    }
    let subreaper = libc::PR_GET_CHILD_SUBREAPER as u64;
    calls.push(call(libc::SYS_prctl, [subreaper, subreaper_at]));
    let asked_at = calls.len();
    calls.push(call(libc::SYS_brk, [0]));
    for (get, _) in ATTRIBUTES {
        calls.push(call(libc::SYS_prctl, [get as u64, 0, 0, 0, 0]));
    }
    let others_at = calls.len();
    let last = stub.at + STUB_BYTES - PAGE;
    calls.extend([
        call(libc::SYS_keyctl, [GET_KEYRING, PROCESS_KEYRING, 0]),
        call(libc::SYS_keyctl, [GET_KEYRING, SESSION_KEYRING, 0]),
        call(libc::SYS_keyctl, [GET_KEYRING, USER_SESSION_KEYRING, 0]),
        call(libc::SYS_modify_ldt, [0, subreaper_at, 8]),
        call(libc::SYS_membarrier, [GET_REGISTRATIONS, 0, 0]),
        call(libc::SYS_mincore, [last, PAGE, subreaper_at + 8]),
    ]);
    let first = &mut process.threads[0];
    let tid = first.tracee.tid();
    let results = first.remote(pid, stub.end, |remote| remote.calls(stub.at, tid, &calls))?;
    let mut bytes = vec![0; (subreaper_at + 16 - data) as usize];
    memory::read(process.handle(), data, &mut bytes)?;
    let four = |at: u64| -> [u64; 4] {
        std::array::from_fn(|index| {
            let at = (at - data) as usize + index * 8;
            u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
        })
    };
    let of_attribute = |(index, (_, set)): (usize, &(i32, i32))| {
        let value = result(results[asked_at + 1 + index]).ok()?;
        Some((*set, value))
    };
    let mut attributes: BTreeMap<_, _> = ATTRIBUTES
        .iter()
        .enumerate()
        .filter_map(of_attribute)
        .collect();
    let &[own, session, of_user, table, registered, _] = &results[others_at..] else {
        return Err(Error::refused(pid, "calls without results"));
    };
    if own > 0 || ![own_session_keyring(), of_user].contains(&session) {
        return Err(Error::refused(pid, "a keyring of its own (keyctl(2))"));
    }
    if table > 0 {
        return Err(Error::refused(pid, "an LDT (modify_ldt(2))"));
    }
    let is_subreaper = bytes[(subreaper_at - data) as usize];
    let is_there = bytes[(subreaper_at - data) as usize + 8] & 1 != 0;
    attributes.insert(libc::PR_SET_CHILD_SUBREAPER, u64::from(is_subreaper));
    let [monotonic, monotonic_nanos, boottime, boottime_nanos] = four(clocks_at);
    let asked = ProcessAnswers {
        clocks: Clocks {
            monotonic: clocks::nanos([monotonic, monotonic_nanos], SECOND_NANOS),
            boottime: clocks::nanos([boottime, boottime_nanos], SECOND_NANOS),
        },
        actions: (0..SIGNALS)
            .map(|index| four(data + index * ACTION_BYTES))
            .collect(),
        interval_timers: std::array::from_fn(|which| four(interval_at + which as u64 * 32)),
        timers: (0..timers.len() as u64)
            .map(|index| four(timers_at + index * 32))
            .collect(),
        brk: results[asked_at] as u64,
        attributes,
        membarrier: registered.max(0) as u32,
        locks_future: match (locked_bytes(process.handle())? > locked, is_there) {
            (false, _) => 0,
            (true, true) => libc::MCL_FUTURE,
            (true, false) => libc::MCL_FUTURE | libc::MCL_ONFAULT,
        },
        threads: Vec::new(),
    };
    let threads = threads::ask(process, stub)?;
    Ok(ProcessAnswers { threads, ..asked })
}

/// What a process has locked (mlock(2)).
fn locked_bytes(tid: pid_t) -> Result<u64> {
    Ok(Proc::new(tid)?.status()?.vmlck.unwrap_or(0))
}

/// The session keyring of this thread, or a negative errno value. Who has none gets the user's with the first question
/// (session-keyring(7)), and so other credentials, with which a process may not write to HCAs any more that it has opened (the kernel's
/// `ib_safe_file_access`): a supervisor asks before it starts processes, which have what it has, and none changes when it is asked.
pub fn own_session_keyring() -> i64 {
    // SAFETY: KEYCTL_GET_KEYRING_ID takes numbers alone, so keyctl(2) reads and writes no memory of this process.
    let keyring = unsafe { libc::syscall(libc::SYS_keyctl, GET_KEYRING, SESSION_KEYRING, 0) };
    match keyring {
        keyring if keyring < 0 => {
            -i64::from(std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
        }
        keyring => keyring,
    }
}
