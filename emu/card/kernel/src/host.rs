//! What the host does with a kernel: starts it, puts files and devices there, runs programs, ends it.

use std::{
    io,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use snaprig_card_driver::{
    clock,
    device::CharDevice,
    errno::Errno,
    file::File,
    network::{Interface, Network},
    wait::Channel,
};
use snaprig_card_fs::{Entry, FileTable, FsContext, Vfs, relay::carrier::Carrier};
use snaprig_card_memory::PAGE;
use snaprig_card_platform::{Regs, xstate};

use crate::{
    credentials::Credentials,
    exec,
    jobs::Job,
    kernel::{Config, Kernel},
    limits::Limits,
    mm::AddressSpace,
    run,
    settings::Settings,
    signal::{Actions, Pending},
    start::start,
    state::{ExitStatus, Process, State, Thread},
    timers::Timers,
};

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

impl Kernel {
    /// A kernel with an empty file system and no process.
    pub fn new(config: Config) -> Result<Arc<Self>, Errno> {
        let mut vfs = Vfs::new(config.memory.clone())?;
        vfs.put_processors(&config.topology)?;
        vfs.write_file(clock::PATH, &[0; PAGE as usize], 0o444)?;
        if config.platform.has_host_counter() {
            let frame = vfs.inode(clock::PATH)?.frame(0)?;
            clock::publish(&config.memory, frame);
        }
        let state = State::new(vfs, config.node);
        Ok(Self::with(config, state, run::thread))
    }

    /// Puts a character device at `path`.
    pub fn register_device(&self, path: &str, device: Arc<dyn CharDevice>) {
        self.lock().vfs.register_device(path, device);
    }

    /// Gives the card a network, before its first program runs: an interface, and sockets that `network` makes. A thread is
    /// to run what this returns, for as long as the card does.
    pub fn join_network(
        &self,
        interface: Interface,
        network: Box<dyn Network>,
    ) -> io::Result<Carrier> {
        let carrier = Carrier::new(interface, network, self.waker())?;
        let mut state = self.lock();
        let put = state.vfs.put_network(carrier.relay().interface());
        put.map_err(|errno| io::Error::from_raw_os_error(errno.0))?;
        state.sockets.relay = Some(carrier.relay().clone());
        Ok(carrier)
    }

    /// Puts a file into the file system, with the directories on its way.
    pub fn write_file(&self, path: &str, bytes: &[u8], mode: u32) -> Result<(), Errno> {
        self.lock().vfs.write_file(path, bytes, mode)
    }

    /// Puts something of the host's into the file system, with the directories on its way.
    pub fn install(&self, path: &str, entry: Entry) -> io::Result<()> {
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
        let program = exec::load(&mut state.vfs, &mut mm, &spawn.path, &argv, &env)?;
        let pid = state.new_process_id()?;
        let process = Process {
            pid,
            parent: 0,
            group: (pid, pid),
            mm: Arc::new(Mutex::new(mm)),
            files: Arc::new(Mutex::new(FileTable::new(spawn.stdio))),
            fs: Arc::new(Mutex::new(FsContext::new(&state.vfs))),
            actions: Arc::new(Mutex::new(Actions::default())),
            pending: Pending::default(),
            threads: Vec::new(),
            ending: Arc::default(),
            exit: None,
            children: Channel::new(),
            released: Channel::new(),
            is_released: true,
            exit_signal: libc::SIGCHLD,
            job: Job::default(),
            has_executed: true,
            credentials: Credentials::default(),
            settings: Settings::default(),
            stopped_by: None,
            marked: None,
            chain: None,
            timers: Timers::default(),
            limits: Limits::default(),
            ran: Duration::ZERO,
            children_ran: Duration::ZERO,
            last_id: pid,
            exe: program.exe,
            argv,
        };
        state.processes.insert(pid, process);
        state.init.get_or_insert(pid);
        let regs = Regs {
            rip: program.entry,
            rsp: program.stack,
            ..Regs::default()
        };
        let mut thread = Thread::new(pid, pid, regs, xstate::initial());
        thread.name = program.name;
        start(self, &mut state, thread);
        Ok(pid)
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
            state.end_process(pid, ExitStatus::Signaled(libc::SIGKILL));
        }
    }

    /// Kills every process and joins the host threads.
    pub fn shutdown(&self) {
        let handles = {
            let mut state = self.lock();
            let pids: Vec<_> = state.processes.keys().copied().collect();
            for pid in pids {
                state.end_process(pid, ExitStatus::Signaled(libc::SIGKILL));
            }
            state.is_over = true;
            if let Some(relay) = &state.sockets.relay {
                relay.close();
            }
            self.timers.notify_all();
            std::mem::take(&mut state.handles)
        };
        for handle in handles {
            // A host thread that panicked has ended, which is all that is wanted here.
            let _ = handle.join();
        }
    }
}
