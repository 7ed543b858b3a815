//! The kernel's tables: processes, threads, and who waits for what.
//!
//! One lock guards all of it. A process's memory, descriptors, file-system context and signal
//! actions are shared objects, because clone(2) lets processes share them.

mod process;
mod shared;
mod thread;

use std::collections::{BTreeMap, HashMap};

use snaprig_card_driver::{errno::Errno, wait::Channel};
use snaprig_card_fs::{FileWaits, Sockets, Vfs};

pub use self::{
    process::{ExitStatus, Process},
    shared::{Shared, lock},
    thread::Thread,
};
use crate::futex::Futexes;

/// Most threads and processes of a card.
pub const THREADS_MAX: usize = 2048;

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

    /// Lets every thread of the process end; it is gone when the last one is.
    pub fn end_process(&mut self, pid: i32, status: ExitStatus) {
        let Some(process) = self.processes.get_mut(&pid) else {
            return;
        };
        process.exit.get_or_insert(status);
        for tid in process.threads.clone() {
            self.thread(tid).poke();
        }
    }

    /// Lets every other thread of the process end (execve(2)).
    pub fn end_threads_but(&mut self, pid: i32, survivor: i32) {
        for tid in self.process(pid).threads.clone() {
            if tid != survivor {
                let thread = self.thread(tid);
                thread.must_end = true;
                thread.poke();
            }
        }
    }
}
