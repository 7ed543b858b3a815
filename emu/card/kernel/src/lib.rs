//! The card kernel: what Linux is to programs, inside the VMM.
//!
//! Each guest thread is run by a host thread of its own (`run`): it executes ring-3 code on its
//! CPU until something needs the kernel, takes the one kernel lock, handles it, and goes on. A call
//! that must wait says for what and is tried again later ([`snaprig_card_driver::wait`]).
//!
//! | file | what it is |
//! |---|---|
//! | [`state`] | processes, threads, who waits for what |
//! | `run`, `cores` | a thread's life; how many run at once |
//! | [`syscalls`], `call` | system calls: what there is; from a number to a function and back |
//! | `mm`, `memory_calls`, `user` | address spaces and the calls that change them |
//! | `elf`, `exec`, `clone`, `exit` | programs and processes, from start to end |
//! | [`checkpoint`] | processes to a stream and back |
//! | [`clock`] | what time it is, and the page that tells programs |
//! | `futex`, `signal`, [`signalfd`], [`pidfd`], `time`, `limits`, `sched`, `info` | the calls of those names |
//! | `snaprig_card_fs` | files: a crate of its own, which `call` asks |
//! | `device`, `file` | how drivers outside this crate plug in |

mod call;
pub mod checkpoint;
mod clone;
mod cores;
mod credentials;
#[doc(hidden)]
pub mod elf;
mod exec;
mod exit;
mod futex;
mod info;
mod jobs;
pub mod limits;
mod memory_calls;
pub mod mm;
pub mod pidfd;
mod ranges;
mod reap;
mod rseq;
mod run;
mod sched;
mod settings;
pub mod signal;
pub mod signalfd;
pub mod state;
pub mod syscalls;
mod time;
mod timers;

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use snaprig_card_driver::{
    clock,
    device::{CharDevice, WakeTarget, Waker},
    errno::Errno,
    file::File,
    wait::Channel,
};
use snaprig_card_fs::{FileTable, FsContext, Vfs};
use snaprig_card_memory::{CardMemory, PAGE};
use snaprig_card_platform::{Platform, Regs, xstate};

use self::{
    cores::Cores,
    mm::AddressSpace,
    signal::Actions,
    state::{Process, State},
};
pub use state::ExitStatus;

/// What a kernel runs on.
pub struct Config {
    /// The card's memory.
    pub memory: Arc<CardMemory>,
    /// What runs its programs.
    pub platform: Arc<dyn Platform>,
    /// How many threads run at once.
    pub cores: usize,
    /// The card's SCIF node: its process ids start at `node * 0x8000`.
    pub node: u16,
}

/// A program to start from the host.
pub struct Spawn {
    /// Path on the card.
    pub path: String,
    /// Arguments, the program's name first.
    pub argv: Vec<String>,
    /// Environment, `NAME=value`.
    pub env: Vec<String>,
    /// Descriptors 0, 1 and 2.
    pub stdio: [Arc<dyn File>; 3],
}

/// A card kernel. Ended by [`Kernel::shutdown`].
pub struct Kernel {
    pub(crate) memory: Arc<CardMemory>,
    pub(crate) platform: Arc<dyn Platform>,
    pub(crate) cores: Cores,
    pub(crate) node: u16,
    state: Mutex<State>,
    me: Weak<Self>,
    /// Signalled when a process ends, for `wait_exit`.
    ended: std::sync::Condvar,
    /// Signalled when a timer is armed.
    timers: std::sync::Condvar,
}

impl Kernel {
    /// A kernel with an empty file system and no process.
    pub fn new(config: Config) -> Result<Arc<Self>, Errno> {
        let mut vfs = Vfs::new(config.memory.clone())?;
        vfs.write_file(clock::PATH, &[0; PAGE as usize], 0o444)?;
        if config.platform.has_host_counter() {
            let frame = vfs.inode(clock::PATH)?.frame(0)?;
            clock::publish(&config.memory, frame);
        }
        Ok(Arc::new_cyclic(|me| Self {
            memory: config.memory,
            platform: config.platform,
            cores: Cores::new(config.cores),
            node: config.node,
            state: Mutex::new(State::new(vfs, config.node)),
            me: me.clone(),
            ended: std::sync::Condvar::new(),
            timers: std::sync::Condvar::new(),
        }))
    }

    /// For devices.
    pub fn waker(&self) -> Waker {
        Waker::new(self.me.clone() as Weak<dyn WakeTarget>)
    }

    /// Puts a character device at `path`.
    pub fn register_device(&self, path: &str, device: Arc<dyn CharDevice>) {
        self.lock().vfs.register_device(path, device);
    }

    /// Puts a file into the file system, with the directories on its way.
    pub fn write_file(&self, path: &str, bytes: &[u8], mode: u32) -> Result<(), Errno> {
        self.lock().vfs.write_file(path, bytes, mode)
    }

    /// Puts something of the host's into the file system, with the directories on its way.
    pub fn install(&self, path: &str, entry: snaprig_card_fs::Entry) -> std::io::Result<()> {
        self.lock().vfs.install(path, entry)
    }

    /// All bytes of a regular file.
    pub fn read_file(&self, path: &str) -> Result<Vec<u8>, Errno> {
        self.lock().vfs.read_all(path)
    }

    /// Starts a program. The first one adopts orphans, as init does.
    pub fn spawn(self: &Arc<Self>, spawn: Spawn) -> Result<i32, Errno> {
        let mut mm = AddressSpace::new(&self.memory, &*self.platform)?;
        let bytes = |strings: Vec<String>| strings.into_iter().map(String::into_bytes).collect();
        let (argv, env): (Vec<_>, Vec<_>) = (bytes(spawn.argv), bytes(spawn.env));
        let mut state = self.lock();
        let start = exec::load(&mut state.vfs, &mut mm, &spawn.path, &argv, &env)?;
        let pid = state.new_process_id()?;
        let process = Process {
            pid,
            parent: 0,
            group: (pid, pid),
            mm: Arc::new(Mutex::new(mm)),
            files: Arc::new(Mutex::new(FileTable::new(spawn.stdio))),
            fs: Arc::new(Mutex::new(FsContext::new(&state.vfs))),
            actions: Arc::new(Mutex::new(Actions::default())),
            pending: signal::Pending::default(),
            threads: Vec::new(),
            ending: Arc::default(),
            exit: None,
            children: Channel::new(),
            released: Channel::new(),
            is_released: true,
            exit_signal: libc::SIGCHLD,
            job: jobs::Job::default(),
            has_executed: true,
            credentials: credentials::Credentials::default(),
            settings: settings::Settings::default(),
            stopped_by: None,
            marked: None,
            chain: None,
            timers: timers::Timers::default(),
            limits: limits::Limits::default(),
            ran: Duration::ZERO,
            children_ran: Duration::ZERO,
            last_id: pid,
            exe: start.exe,
            argv,
        };
        state.processes.insert(pid, process);
        state.init.get_or_insert(pid);
        let regs = Regs {
            rip: start.entry,
            rsp: start.stack,
            ..Regs::default()
        };
        let mut thread = state::Thread::new(pid, pid, regs, xstate::initial());
        thread.name = start.name;
        self.start(&mut state, thread);
        Ok(pid)
    }

    /// Adds a thread to its process and starts its host thread.
    pub(crate) fn start(self: &Arc<Self>, state: &mut State, thread: state::Thread) {
        let (tid, pid) = (thread.tid, thread.pid);
        state.process(pid).threads.push(tid);
        state.threads.insert(tid, thread);
        let kernel = self.clone();
        let handle = std::thread::Builder::new()
            .name(format!("guest {tid}"))
            .spawn(move || run::thread(&kernel, tid));
        match handle {
            Ok(handle) => {
                state.handles.retain(|handle| !handle.is_finished());
                state.handles.push(handle);
            }
            Err(error) => {
                tracing::error!(%error, tid, "no host thread for a guest thread");
                exit::end_thread(self, state, tid, None);
            }
        }
    }

    /// Waits until a process that the host started ends.
    pub fn wait_exit(&self, pid: i32) -> ExitStatus {
        let mut state = self.lock();
        loop {
            if let Some(status) = state.ended.remove(&pid) {
                return status;
            }
            state = self
                .ended
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Kills a process, as SIGKILL does.
    pub fn kill(&self, pid: i32) {
        let mut state = self.lock();
        if state.processes.contains_key(&pid) {
            exit::end_process(&mut state, pid, ExitStatus::Signaled(libc::SIGKILL));
        }
    }

    /// Kills every process and joins the host threads.
    pub fn shutdown(&self) {
        let handles = {
            let mut state = self.lock();
            let pids: Vec<_> = state.processes.keys().copied().collect();
            for pid in pids {
                exit::end_process(&mut state, pid, ExitStatus::Signaled(libc::SIGKILL));
            }
            state.is_over = true;
            self.timers.notify_all();
            std::mem::take(&mut state.handles)
        };
        for handle in handles {
            // A host thread that panicked has ended, which is all that is wanted here.
            let _ = handle.join();
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WakeTarget for Kernel {
    fn wake(&self, channel: Channel) {
        self.lock().wake(channel);
    }
}
