//! What a process is, but for its memory's bytes and its files.

use std::{collections::BTreeMap, fs, os::unix::ffi::OsStrExt};

use libc::pid_t;
use procfs::process::{LimitValue, Process as Proc, Stat, Status};

use super::{
    areas::{Flags, Shared, areas},
    named::Named,
    stub::Stub,
};
use crate::{
    error::{Error, Result},
    freeze::{HeldProcess, HeldThread},
    memory,
    plugins::Owned,
    remote::{self, Call, call, regs_words, result},
    state::{Area, Backing, Body, Credentials, Layout, PosixTimer, Thread},
    steps::{self, Step},
    trace::{Regs, SigInfo},
};

/// Signals are numbered from 1 to this.
pub const SIGNALS: u64 = 64;
/// Bytes of the kernel's struct sigaction.
const ACTION_BYTES: u64 = 32;
/// prctl(2): attributes of a process that are asked for, and how they are set.
const ATTRIBUTES: [(i32, i32); 3] = [
    (libc::PR_GET_DUMPABLE, libc::PR_SET_DUMPABLE),
    (libc::PR_GET_NO_NEW_PRIVS, libc::PR_SET_NO_NEW_PRIVS),
    (libc::PR_GET_THP_DISABLE, libc::PR_SET_THP_DISABLE),
];
/// From one thread's part of the stub's room to the next.
const SLOT_BYTES: u64 = 1 << 10;
/// Where a thread's data are in its part, behind its home and its calls.
const SLOT_DATA: u64 = 768;
/// Where the parts begin, behind the process's data.
const SLOTS: u64 = 8 << 10;

/// What calls of its threads say of a process.
struct Asked {
    actions: Vec<[u64; 4]>,
    interval_timers: [[u64; 4]; 3],
    timers: Vec<[u64; 4]>,
    brk: u64,
    attributes: BTreeMap<i32, u64>,
    threads: Vec<AskedThread>,
}

#[derive(Clone, Copy, Default)]
struct AskedThread {
    alternate_stack: [u64; 3],
    clear_tid: u64,
    parent_death_signal: i32,
    timer_slack: u64,
}

/// Describes a process; its descriptors are added by others.
pub fn describe(
    process: &mut HeldProcess,
    stat: &Stat,
    before: (&Flags, &Owned),
    shared: &mut Shared,
    named: &mut Named,
    nameless: &mut Vec<(pid_t, u64)>,
) -> Result<Body> {
    let pid = process.pid;
    let proc = Proc::new(pid)?;
    let status = proc.status()?;
    if status.seccomp.is_some_and(|mode| mode != 0) {
        return Err(Error::refused(pid, "a seccomp filter"));
    }
    let areas = areas(pid, before, shared, named, nameless)?;
    let timers = timers(pid)?;
    let asked = ask(process, &areas, &timers)?;
    let set = |setting: &[u64; 4], timer: &PosixTimer| PosixTimer {
        setting: *setting,
        ..*timer
    };
    let layout = Layout {
        code: (stat.startcode, stat.endcode),
        data: (stat.start_data.unwrap_or(0), stat.end_data.unwrap_or(0)),
        brk: (stat.start_brk.unwrap_or(0), asked.brk),
        stack: stat.startstack,
        arguments: (stat.arg_start.unwrap_or(0), stat.arg_end.unwrap_or(0)),
        environment: (stat.env_start.unwrap_or(0), stat.env_end.unwrap_or(0)),
    };
    let threads = process.threads.iter().zip(&asked.threads);
    let threads = threads.map(|(thread, asked)| describe_thread(pid, thread, *asked));
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
    Ok(Body {
        threads: threads.collect::<Result<_>>()?,
        exe: named.file(pid, &proc.exe()?, true)?,
        cwd: link("cwd")?,
        umask: status.umask.unwrap_or(0o22),
        limits: limits(&proc)?,
        layout,
        auxv: read("auxv")?,
        areas,
        descriptors: Vec::new(),
        actions: asked.actions,
        pending: process.threads[0]
            .tracee
            .pending(true)?
            .iter()
            .map(words)
            .collect(),
        interval_timers: asked.interval_timers,
        posix_timers: asked
            .timers
            .iter()
            .zip(&timers)
            .map(|(s, t)| set(s, t))
            .collect(),
        attributes: asked.attributes,
        oom_score: oom_score.unwrap_or(0),
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

fn describe_thread(pid: pid_t, thread: &HeldThread, asked: AskedThread) -> Result<Thread> {
    let tid = thread.tracee.tid();
    let comm = format!("/proc/{pid}/task/{tid}/comm");
    let name = fs::read(&comm).map_err(|source| Error::io(comm, source))?;
    let mut robust = (0u64, 0u64);
    // SAFETY: both are valid to write to.
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
        credentials: credentials(&Proc::new(pid)?.task_from_tid(tid)?.status()?),
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
    }
}

/// Words as `struct user_regs_struct`; none: they are not as many.
pub fn regs_of(words: &[u64]) -> Option<Regs> {
    // SAFETY: plain integers, for which zero is a value.
    let mut regs: Regs = unsafe { std::mem::zeroed() };
    let count = size_of::<Regs>() / 8;
    if words.len() != count {
        return None;
    }
    // SAFETY: it is made of so many 64-bit integers.
    unsafe { std::slice::from_raw_parts_mut((&raw mut regs).cast::<u64>(), count) }
        .copy_from_slice(words);
    Some(regs)
}

fn affinity(tid: pid_t) -> Option<Vec<u8>> {
    let of = |tid: pid_t| {
        let mut set = vec![0u8; 128];
        // SAFETY: `set` is as long as it says.
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
    // SAFETY: plain integers, for which zero is a value; valid to write to.
    unsafe {
        let mut parameters: libc::sched_param = std::mem::zeroed();
        let policy = libc::sched_getscheduler(tid);
        libc::sched_getparam(tid, &raw mut parameters);
        let nice = libc::getpriority(libc::PRIO_PROCESS, tid as u32);
        (policy, parameters.sched_priority, nice)
    }
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
fn ask(process: &mut HeldProcess, areas: &[Area], timers: &[PosixTimer]) -> Result<Asked> {
    let stub = Stub::map(process, areas)?;
    let asked = ask_with(process, &stub, timers);
    steps::reached(Step::Asked);
    // Whatever came of it.
    stub.unmap(process)?;
    asked
}

/// A `syscall` instruction that the process has: the vDSO has one, and so has any C library.
pub fn syscall_instruction(pid: pid_t, areas: &[Area]) -> Result<u64> {
    let is_code = |area: &&Area| area.protection & libc::PROT_EXEC != 0;
    let is_kernels = |area: &&Area| matches!(area.backing, Backing::Kernel(_));
    let kernels = areas.iter().filter(is_code).filter(is_kernels);
    let others = areas
        .iter()
        .filter(is_code)
        .filter(|area| !is_kernels(area));
    for area in kernels.chain(others) {
        let mut bytes = vec![0; (area.end - area.start).min(4 << 20) as usize];
        if memory::read(pid, area.start, &mut bytes).is_err() {
            continue;
        }
        if let Some(at) = find_syscall(&bytes) {
            return Ok(area.start + at);
        }
    }
    Err(Error::refused(pid, "code without a single system call"))
}

/// Where in some code there is a `syscall` instruction.
pub fn find_syscall(code: &[u8]) -> Option<u64> {
    let at = code.windows(2).position(|two| two == [0x0f, 0x05])?;
    Some(at as u64)
}

fn ask_with(process: &mut HeldProcess, stub: &Stub, timers: &[PosixTimer]) -> Result<Asked> {
    let pid = process.pid;
    let data = remote::data(stub.at);
    let timers_at = data + SIGNALS * ACTION_BYTES;
    let interval_at = timers_at + timers.len() as u64 * 32;
    let subreaper_at = interval_at + 3 * 32;
    if subreaper_at + 8 > data + SLOTS {
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
    let subreaper = libc::PR_GET_CHILD_SUBREAPER as u64;
    calls.push(call(libc::SYS_prctl, [subreaper, subreaper_at]));
    let asked_at = calls.len();
    calls.push(call(libc::SYS_brk, [0]));
    for (get, _) in ATTRIBUTES {
        calls.push(call(libc::SYS_prctl, [get as u64, 0, 0, 0, 0]));
    }
    let first = &mut process.threads[0];
    let tid = first.tracee.tid();
    let results = first.remote(pid, stub.end, |remote| remote.calls(stub.at, tid, &calls))?;
    let mut bytes = vec![0; (subreaper_at + 8 - data) as usize];
    memory::read(pid, data, &mut bytes)?;
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
    let is_subreaper = bytes[(subreaper_at - data) as usize];
    attributes.insert(libc::PR_SET_CHILD_SUBREAPER, u64::from(is_subreaper));
    let asked = Asked {
        actions: (0..SIGNALS)
            .map(|index| four(data + index * ACTION_BYTES))
            .collect(),
        interval_timers: std::array::from_fn(|which| four(interval_at + which as u64 * 32)),
        timers: (0..timers.len() as u64)
            .map(|index| four(timers_at + index * 32))
            .collect(),
        brk: results[asked_at] as u64,
        attributes,
        threads: Vec::new(),
    };
    let threads = ask_threads(process, stub)?;
    Ok(Asked { threads, ..asked })
}

/// Asks all threads, as many at a time as the stub has room for.
fn ask_threads(process: &mut HeldProcess, stub: &Stub) -> Result<Vec<AskedThread>> {
    let pid = process.pid;
    let mut asked = Vec::new();
    let slots = ((remote::DATA_BYTES - SLOTS) / SLOT_BYTES) as usize;
    for threads in process.threads.chunks_mut(slots) {
        let slot = |index: usize| remote::data(stub.at) + SLOTS + index as u64 * SLOT_BYTES;
        for (index, thread) in threads.iter_mut().enumerate() {
            let (table, tid) = (slot(index), thread.tracee.tid());
            let data = table + SLOT_DATA;
            let calls = [
                call(libc::SYS_sigaltstack, [0, data]),
                call(
                    libc::SYS_prctl,
                    [libc::PR_GET_TID_ADDRESS as u64, data + 24],
                ),
                call(libc::SYS_prctl, [libc::PR_GET_PDEATHSIG as u64, data + 32]),
                call(libc::SYS_prctl, [libc::PR_GET_TIMERSLACK as u64]),
            ];
            thread.remote(pid, stub.end, |remote| {
                remote.start_at(stub.at, table, tid, &calls)
            })?;
        }
        for (index, thread) in threads.iter_mut().enumerate() {
            let table = slot(index);
            let results = thread.finish(table, 4, stub.end)?;
            let mut bytes = [0; 40];
            memory::read(pid, table + SLOT_DATA, &mut bytes)?;
            let word = |index: usize| {
                u64::from_ne_bytes(
                    bytes[index * 8..index * 8 + 8]
                        .try_into()
                        .expect("eight bytes"),
                )
            };
            asked.push(AskedThread {
                alternate_stack: [word(0), word(1) & 0xffff_ffff, word(2)],
                clear_tid: word(3),
                parent_death_signal: word(4) as i32,
                timer_slack: results[3].max(0) as u64,
            });
        }
    }
    Ok(asked)
}
