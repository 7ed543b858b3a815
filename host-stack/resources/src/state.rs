//! What an image says of processes, but for the bytes of their memory.
//!
//! What must stay true: everything here is what the processes saw: numbers of processes and threads,
//! addresses, descriptors.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use crate::{
    epolls::state::*, files::state::*, locks::state::*, memory::state::*, pipes::state::*,
    sockets::state::*, sysv::state::*, terminals::state::*, watches::state::*,
};

/// Everything of one tree of processes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Tree {
    /// The process that supervises them, their first one's parent.
    pub supervisor: i32,
    /// The first one.
    pub root: i32,
    /// CLOCK_MONOTONIC and CLOCK_BOOTTIME when they stood still: nanoseconds.
    pub monotonic_nanos: u64,
    /// As above.
    pub boottime_nanos: u64,
    /// The vDSO that they use.
    pub vdso: Vec<u8>,
    /// Processes, a parent before its children.
    pub processes: Vec<Process>,
    /// Open file descriptions, by number.
    pub files: Vec<OpenFile>,
    /// Pipes and FIFOs, by number.
    pub pipes: Vec<Pipe>,
    /// Pseudoterminals both of whose sides are the tree's, by number.
    pub terminals: Vec<Terminal>,
    /// The terminal that the tree was on with its supervisor.
    pub console: Option<Console>,
    /// Memory that several can map.
    pub shared: Vec<SharedMemory>,
    /// System V objects; none: it has the IPC namespace of whoever restarts it, and nothing in it.
    pub sysv: Option<Sysv>,
}

/// A process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Process {
    /// Its number.
    pub pid: i32,
    /// Space of the image that its memory is.
    pub space: u32,
    /// Its parent's.
    pub parent: i32,
    /// Its process group's.
    pub group: i32,
    /// Its session's.
    pub session: i32,
    /// What its parent gets when it ends; most often SIGCHLD.
    pub exit_signal: i32,
    /// Only for its parent to wait for: its wait status.
    pub zombie: Option<i32>,
    /// Stopped by job control: with this signal.
    pub stopped: Option<i32>,
    /// The rest, if it is not a zombie.
    pub body: Option<Box<Body>>,
}

/// A process that lives.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Body {
    /// Threads, the one with the process's number first.
    pub threads: Vec<Thread>,
    /// Its executable.
    pub exe: FileId,
    /// Working directory.
    pub cwd: Vec<u8>,
    /// umask(2).
    pub umask: u32,
    /// getrlimit(2), by number: soft and hard.
    pub limits: Vec<(u64, u64)>,
    /// Where code, data, stack, arguments and so on are (PR_SET_MM_MAP).
    pub layout: Layout,
    /// /proc/PID/auxv.
    pub auxv: Vec<u8>,
    /// Its memory.
    pub areas: Vec<Area>,
    /// Where parts of it are to be.
    pub placements: Vec<Placement>,
    /// Pages that nobody may touch (MADV_GUARD_INSTALL): first address, and that behind them.
    pub guards: Vec<(u64, u64)>,
    /// Descriptors: number, open file, close-on-exec.
    pub descriptors: Vec<Descriptor>,
    /// What it does on each signal, from 1 on (the kernel's struct sigaction).
    pub actions: Vec<[u64; 4]>,
    /// Signals that wait for any of its threads.
    pub pending: Vec<SigInfo>,
    /// setitimer(2), by number: interval and rest, microseconds' seconds and parts.
    pub interval_timers: [[u64; 4]; 3],
    /// timer_create(2).
    pub posix_timers: Vec<PosixTimer>,
    /// prctl(2): attributes by option, as PR_SET_ takes them.
    pub attributes: BTreeMap<i32, u64>,
    /// oom_score_adj.
    pub oom_score: i32,
    /// coredump_filter (core(5)).
    pub core_filter: u32,
    /// membarrier(2): what it has registered for.
    pub membarrier: u32,
    /// mlockall(2): MCL_FUTURE, MCL_ONFAULT.
    pub locks_future: i32,
}

/// struct prctl_mm_map, but for what is elsewhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// Code.
    pub code: (u64, u64),
    /// Initialised data.
    pub data: (u64, u64),
    /// The heap.
    pub brk: (u64, u64),
    /// Bottom of the stack.
    pub stack: u64,
    /// Arguments.
    pub arguments: (u64, u64),
    /// Environment.
    pub environment: (u64, u64),
}

/// A thread.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Thread {
    /// Its number.
    pub tid: i32,
    /// Its name.
    pub name: Vec<u8>,
    /// `struct user_regs_struct`.
    pub regs: Vec<u64>,
    /// XSAVE area.
    pub xstate: Vec<u8>,
    /// Signal mask.
    pub mask: u64,
    /// Signals that wait for it.
    pub pending: Vec<SigInfo>,
    /// sigaltstack(2): address, flags, size.
    pub alternate_stack: [u64; 3],
    /// set_tid_address(2).
    pub clear_tid: u64,
    /// set_robust_list(2): address and length.
    pub robust_list: (u64, u64),
    /// rseq(2): address, length, signature.
    pub rseq: Option<(u64, u32, u32)>,
    /// sched_setaffinity(2): the set, none if it is what its supervisor has.
    pub affinity: Option<Vec<u8>>,
    /// Scheduling policy, priority, nice value.
    pub scheduling: (i32, i32, i32),
    /// PR_SET_PDEATHSIG.
    pub parent_death_signal: i32,
    /// PR_SET_TIMERSLACK, nanoseconds.
    pub timer_slack: u64,
    /// Who it is.
    pub credentials: Credentials,
    /// PR_SET_NO_NEW_PRIVS.
    pub no_new_privileges: bool,
    /// personality(2).
    pub personality: u32,
    /// ioprio_set(2).
    pub io_priority: i32,
    /// set_mempolicy(2): mode, and nodes as bits.
    pub memory_policy: (i32, Vec<u64>),
    /// prctl(2)'s calls that make it what it was, if the machine still allows them: option and arguments.
    pub options: Vec<[u64; 3]>,
}

/// Users, groups and capabilities of a thread.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Credentials {
    /// Real, effective, saved, and that for files.
    pub users: [u32; 4],
    /// As above.
    pub groups: [u32; 4],
    /// getgroups(2).
    pub more: Vec<u32>,
    /// capabilities(7), a bit each.
    pub effective: u64,
    /// As above.
    pub permitted: u64,
    /// As above.
    pub inheritable: u64,
    /// As above.
    pub bounding: u64,
    /// As above.
    pub ambient: u64,
    /// PR_SET_SECUREBITS.
    pub secure_bits: u32,
}

/// `siginfo_t`, as words.
pub type SigInfo = [u64; 16];

/// timer_create(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PosixTimer {
    /// Its number.
    pub id: i32,
    /// Signal, value, how it notifies, and whom.
    pub signal: i32,
    /// `sigev_value`.
    pub value: u64,
    /// `sigev_notify`.
    pub notify: i32,
    /// Thread, for SIGEV_THREAD_ID.
    pub thread: i32,
    /// Clock.
    pub clock: i32,
    /// Interval and rest: seconds, nanoseconds each.
    pub setting: [u64; 4],
}

/// Part of an address space.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Area {
    /// First address.
    pub start: u64,
    /// First address behind it.
    pub end: u64,
    /// PROT_ bits.
    pub protection: i32,
    /// MAP_SHARED.
    pub is_shared: bool,
    /// Where its pages come from.
    pub backing: Backing,
    /// Flags of smaps(5), two letters each, that are not told otherwise.
    pub flags: Vec<[u8; 2]>,
    /// Bytes of its huge pages (MAP_HUGETLB); 0: ordinary ones.
    pub huge_bytes: u64,
}

impl Area {
    /// Whether it is a process's own, of no file, and of ordinary pages.
    pub fn is_own(&self) -> bool {
        !self.is_shared && self.backing == Backing::Anonymous && self.huge_bytes == 0
    }
}

/// A policy of a part of memory (mbind(2)).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// First address.
    pub start: u64,
    /// First address behind it.
    pub end: u64,
    /// MPOL_, with its flags.
    pub mode: i32,
    /// Nodes, as bits.
    pub nodes: Vec<u64>,
}

/// Where the pages of an area come from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Backing {
    /// Nowhere: zeros.
    Anonymous,
    /// A file.
    File {
        /// Which.
        file: FileId,
        /// Offset in it.
        offset: u64,
        /// Whether it is opened for writing.
        write: bool,
    },
    /// Memory that can be mapped by several: number in [`Tree::shared`], offset.
    Shared(u32, u64),
    /// System V shared memory: its number, offset.
    Segment(i32, u64),
    /// The kernel's: vDSO and its data, by name.
    Kernel(Vec<u8>),
    /// A plugin's: it cannot be touched until that has mapped something there.
    Plugin,
}

/// A descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Descriptor {
    /// Its number.
    pub fd: i32,
    /// Number in [`Tree::files`].
    pub file: u32,
    /// FD_CLOEXEC.
    pub close_on_exec: bool,
}
