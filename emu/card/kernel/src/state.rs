//! The kernel's tables: processes, threads, and who waits for what.
//!
//! One lock guards all of it. A process's memory, descriptors, file-system context and signal
//! actions are shared objects, because clone(2) lets processes share them.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Condvar, Mutex, MutexGuard},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use snaprig_card_driver::{
    errno::Errno,
    signals::SigSet,
    wait::{Channel, Wait},
};
use snaprig_card_fs::{FileTable, FileWaits, FsContext, Sockets, Vfs, files::pidfd::Ending};
use snaprig_card_platform::{Kick, Regs};

use super::{
    checkpoint::Chain,
    credentials::Credentials,
    futex::Futexes,
    jobs::Job,
    limits::Limits,
    mm::AddressSpace,
    rseq::Rseq,
    sched::{Affinity, Policy},
    settings::Settings,
    signal::{Actions, AltStack, Pending},
    timers::Timers,
};

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExitStatus {
    /// exit(2) with this code (0 to 255).
    Exited(i32),
    /// Killed by this signal.
    Signaled(i32),
}

impl ExitStatus {
    /// As wait(2) reports it.
    pub fn wait_status(self) -> i32 {
        match self {
            Self::Exited(code) => (code & 0xff) << 8,
            Self::Signaled(signal) => signal & 0x7f,
        }
    }

    /// `si_code` and `si_status` of SIGCHLD. Nothing dumps core on a card.
    pub fn code(self) -> (i32, i32) {
        match self {
            Self::Exited(code) => (libc::CLD_EXITED, code),
            Self::Signaled(signal) => (libc::CLD_KILLED, signal),
        }
    }
}

/// Shared by processes that were cloned so.
pub type Shared<T> = Arc<Mutex<T>>;

/// Locks a shared object. It is only ever taken under the kernel lock, so it is never contended.
pub fn lock<T>(shared: &Shared<T>) -> MutexGuard<'_, T> {
    shared
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// A process: a thread group.
pub struct Process {
    /// Its id, and the id of its first thread.
    pub pid: i32,
    /// Its parent.
    pub parent: i32,
    /// Its process group and session.
    pub group: (i32, i32),
    /// Memory.
    pub mm: Shared<AddressSpace>,
    /// Descriptors.
    pub files: Shared<FileTable>,
    /// Working directory and umask.
    pub fs: Shared<FsContext>,
    /// What signals do.
    pub actions: Shared<Actions>,
    /// Signals for the process as a whole.
    pub pending: Pending,
    /// Threads that have not ended.
    pub threads: Vec<i32>,
    /// For those who hold a descriptor of it.
    pub ending: Arc<Ending>,
    /// How it ends or ended; its threads are ending if it still has some.
    pub exit: Option<ExitStatus>,
    /// Woken when a child ends, or a thread of this process does.
    pub children: Channel,
    /// Woken when it executes a program or ends: its vfork(2) parent may go on.
    pub released: Channel,
    /// It has done so.
    pub is_released: bool,
    /// The signal for the parent at the end.
    pub exit_signal: i32,
    /// Whether it is stopped, and what its parent has not heard of that.
    pub job: Job,
    /// It has executed a program since it was made (setpgid(2), EACCES).
    pub has_executed: bool,
    /// Who it acts for.
    pub credentials: Credentials,
    /// What prctl(2) and its like have set.
    pub settings: Settings,
    /// The thread that has stopped all others.
    pub stopped_by: Option<i32>,
    /// Pages of files that it maps shared, by address, with checksums: what they held when the
    /// checkpoint service was told that they are saved elsewhere.
    pub marked: Option<Arc<BTreeMap<u64, u64>>>,
    /// Its last image, if others are to build on it.
    pub chain: Option<Chain>,
    /// Timers that send it signals.
    pub timers: Timers,
    /// Resource limits.
    pub limits: Limits,
    /// Processor time of its threads that have ended.
    pub ran: Duration,
    /// Processor time of its children that it has waited for, and theirs.
    pub children_ran: Duration,
    /// The id that was the last to be given to a thread of it, of those behind its own.
    pub last_id: i32,
    /// The program.
    pub exe: String,
    /// Its arguments.
    pub argv: Vec<Vec<u8>>,
}

/// A thread.
pub struct Thread {
    /// Its id.
    pub tid: i32,
    /// Its process.
    pub pid: i32,
    /// Registers in ring 3, as of its last exit.
    pub regs: Regs,
    /// Extended state, saved when it parks; `None` while its CPU holds it.
    pub xstate: Option<Vec<u8>>,
    /// Name (prctl(PR_SET_NAME)).
    pub name: String,
    /// Blocked signals.
    pub mask: SigSet,
    /// The mask to go back to after sigsuspend(2) and its like.
    pub restore_mask: Option<SigSet>,
    /// Signals for this thread.
    pub pending: Pending,
    /// sigaltstack(2).
    pub alt_stack: AltStack,
    /// set_tid_address(2).
    pub clear_child_tid: u64,
    /// set_robust_list(2).
    pub robust_list: u64,
    /// The number of the call that it is in.
    pub call: Option<u64>,
    /// When that call stops waiting.
    pub deadline: Option<Duration>,
    /// Bytes that it has moved so far.
    pub progress: usize,
    /// It waits for these; `None` if it runs or has been woken.
    pub waiting: Option<Wait>,
    /// Parked for `stopped_by`, with its extended state saved.
    pub parked: bool,
    /// It has captured what it has stopped, and keeps it so (`snaprig_wire::checkpoint::HOLD`).
    pub holds: bool,
    /// The host thread sleeps on this.
    pub wakeup: Arc<Condvar>,
    /// Makes its CPU leave ring 3.
    pub kick: Option<Arc<dyn Kick>>,
    /// What it waits for alone: futex, stop, sleep.
    pub channel: Channel,
    /// It ends at the next chance (exit(2), or another thread's execve(2)).
    pub must_end: bool,
    /// It has a vfork(2) child that has not released it.
    pub vfork_child: Option<i32>,
    /// Time that it has spent in ring 3.
    pub ran: Duration,
    /// The cores that it wants.
    pub affinity: Affinity,
    /// The core that it was on last.
    pub core: u32,
    /// How it is scheduled, as it was told.
    pub policy: Policy,
    /// Restartable sequences (`rseq`).
    pub rseq: Rseq,
}

impl Thread {
    /// A thread that will start with these registers.
    pub fn new(tid: i32, pid: i32, regs: Regs, xstate: Vec<u8>) -> Self {
        Self {
            tid,
            pid,
            regs,
            xstate: Some(xstate),
            name: String::new(),
            mask: SigSet::default(),
            restore_mask: None,
            pending: Pending::default(),
            alt_stack: AltStack::default(),
            clear_child_tid: 0,
            robust_list: 0,
            call: None,
            deadline: None,
            progress: 0,
            waiting: None,
            parked: false,
            holds: false,
            wakeup: Arc::new(Condvar::new()),
            kick: None,
            channel: Channel::new(),
            must_end: false,
            vfork_child: None,
            ran: Duration::ZERO,
            affinity: None,
            core: 0,
            policy: Policy::default(),
            rseq: Rseq::default(),
        }
    }

    /// Makes it look at the kernel's wishes, wherever it is.
    pub fn poke(&mut self) {
        self.waiting = None;
        self.wakeup.notify_all();
        if let Some(kick) = &self.kick {
            kick.kick();
        }
    }
}

/// Everything behind the kernel lock.
pub struct State {
    /// Processes, the ended but unwaited-for included.
    pub processes: BTreeMap<i32, Process>,
    /// Threads that have not ended.
    pub threads: BTreeMap<i32, Thread>,
    /// The file system.
    pub vfs: Vfs,
    /// What all sockets share.
    pub sockets: Sockets,
    /// Who waits in a call for a file that is not open yet, or for a lock.
    pub file_waits: FileWaits,
    /// Waiters on futexes.
    pub futexes: Futexes,
    /// Statuses of processes whose parent is the host, for `Kernel::wait_exit`.
    pub ended: HashMap<i32, ExitStatus>,
    /// The first process, which adopts orphans.
    pub init: Option<i32>,
    /// Host threads to join at the end.
    pub handles: Vec<std::thread::JoinHandle<()>>,
    /// The next id to try, and the range of ids.
    next_id: i32,
    ids: (i32, i32),
    /// Calls that have been answered with ENOSYS.
    pub unknown_calls: std::collections::BTreeSet<Option<u64>>,
    /// A host thread looks after timers.
    pub has_timer_thread: bool,
    /// The kernel is shut down.
    pub is_over: bool,
}

/// Ids of a card: `node * IDS_PER_CARD` and up, so that a process keeps its ids on another card.
pub const IDS_PER_CARD: i32 = 0x8000;
/// From the id of one process to that of the next; threads have those in between. So a process that is restored on a
/// card that has started again does not find its threads' ids with threads of the card's own programs.
const IDS_PER_PROCESS: i32 = 64;

impl State {
    /// An empty system for card `node`.
    pub fn new(vfs: Vfs, node: u16) -> Self {
        let first = i32::from(node) * IDS_PER_CARD + 1;
        Self {
            processes: BTreeMap::new(),
            threads: BTreeMap::new(),
            vfs,
            sockets: Sockets::default(),
            file_waits: FileWaits::default(),
            futexes: Futexes::default(),
            ended: HashMap::new(),
            init: None,
            handles: Vec::new(),
            next_id: first,
            ids: (first, first + IDS_PER_CARD - 2),
            unknown_calls: std::collections::BTreeSet::new(),
            has_timer_thread: false,
            is_over: false,
        }
    }

    /// An id for a process, which no other and no thread has.
    pub fn new_process_id(&mut self) -> Result<i32, Errno> {
        let (first, last) = self.ids;
        for _ in first..=last {
            let id = self.next_id;
            // How many ids there are is no multiple of the step: in the end it has been to all of them.
            self.next_id = first + (id - first + IDS_PER_PROCESS) % (last - first + 1);
            if self.id_is_free(id) {
                return Ok(id);
            }
        }
        Err(Errno::EAGAIN)
    }

    /// An id for a thread of a process, which no other and no process has: one of those behind its own, in turn, for as
    /// long as there are any.
    pub fn new_thread_id(&mut self, pid: i32) -> Result<i32, Errno> {
        let behind = IDS_PER_PROCESS - 1;
        let last = self.process(pid).last_id - pid;
        let own = (0..behind).map(|step| pid + 1 + (last + step) % behind);
        let is_free = |id: &i32| id / IDS_PER_CARD == pid / IDS_PER_CARD && self.id_is_free(*id);
        if let Some(id) = own.into_iter().find(is_free) {
            self.process(pid).last_id = id;
            return Ok(id);
        }
        let (first, last) = self.ids;
        let others = (first..=last).rev();
        others.into_iter().find(is_free).ok_or(Errno::EAGAIN)
    }

    /// Whether no process or thread has this id.
    pub fn id_is_free(&self, id: i32) -> bool {
        !self.processes.contains_key(&id) && !self.threads.contains_key(&id)
    }

    /// Every thread that waits for `channel` tries its call again.
    pub fn wake(&mut self, channel: Channel) {
        for thread in self.threads.values_mut() {
            if thread
                .waiting
                .as_ref()
                .is_some_and(|wait| wait.channels.contains(&channel))
            {
                thread.waiting = None;
                thread.wakeup.notify_all();
            }
        }
    }

    /// A thread takes over its process's id (execve(2) by another than the first thread).
    pub fn rename_thread(&mut self, from: i32, to: i32) {
        if let Some(mut thread) = self.threads.remove(&from) {
            thread.tid = to;
            self.threads.insert(to, thread);
            self.process(to).threads = vec![to];
        }
    }

    /// The thread; it exists, because it is the caller or was just looked up.
    pub fn thread(&mut self, tid: i32) -> &mut Thread {
        self.threads
            .get_mut(&tid)
            .expect("a running thread is in the table")
    }

    /// The process of a running thread.
    pub fn process(&mut self, pid: i32) -> &mut Process {
        self.processes
            .get_mut(&pid)
            .expect("a process outlives its threads")
    }
}
