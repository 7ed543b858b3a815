//! New threads and processes: clone(2), clone3(2), fork(2), vfork(2).

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use snaprig_card_driver::{
    device::UserMemory,
    errno::Errno,
    wait::{Channel, Stop, SysResult},
};
use snaprig_card_fs::files::pidfd::PidFd;
use snaprig_card_memory::PAGE;

use crate::{
    call::Call,
    jobs::Job,
    signal::Pending,
    start::start,
    state::{Process, THREADS_MAX, Thread, lock},
};

/// Size of the first version of `struct clone_args`.
const CLONE_ARGS_BYTES: u64 = 64;

/// What follows in the last version that is known: set_tid and its size, a cgroup.
const CLONE_ARGS_KNOWN: usize = 24;
/// Flags that clone3(2) takes: the others are clone(2)'s exit signal and CLONE_DETACHED, or unknown.
const CLONE_FLAGS: u64 = 0xffff_ff00 & !0x0040_0000;

const UNSUPPORTED: u64 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET) as u64;

/// What to make, from the arguments of any of the calls.
pub struct Request {
    /// `CLONE_*`.
    flags: u64,
    exit_signal: i32,
    /// Where a descriptor of the new process is told (CLONE_PIDFD).
    pidfd: u64,
    /// Stack pointer of the new thread; 0: the caller's.
    stack: u64,
    parent_tid: u64,
    child_tid: u64,
    tls: u64,
}

impl Request {
    fn has(&self, flag: i32) -> bool {
        self.flags & flag as u64 != 0
    }
}

impl Call<'_> {
    /// fork(2) and vfork(2) as clone(2) says them.
    pub fn fork(&mut self, vfork: bool) -> SysResult {
        let flags = if vfork {
            (libc::CLONE_VM | libc::CLONE_VFORK) as u64
        } else {
            0
        };
        self.clone([flags | libc::SIGCHLD as u64, 0, 0, 0, 0, 0])
    }

    /// clone(2).
    pub fn clone(&mut self, a: [u64; 6]) -> SysResult {
        let [flags, stack, parent_tid, child_tid, tls, _] = a;
        self.create(&Request {
            flags: flags & !0xff,
            exit_signal: (flags & 0xff) as i32,
            pidfd: parent_tid,
            stack,
            parent_tid,
            child_tid,
            tls,
        })
    }

    /// clone3(2).
    pub fn clone3(&mut self, args: u64, bytes: u64) -> SysResult {
        if bytes > PAGE {
            return Err(Errno::E2BIG.into());
        }
        if bytes < CLONE_ARGS_BYTES {
            return Err(Errno::EINVAL.into());
        }
        let [
            flags,
            pidfd,
            child_tid,
            parent_tid,
            exit_signal,
            stack,
            stack_bytes,
            tls,
        ] = self.read_words(args)?;
        // What of set_tid and later fields is not zero asks for what a card does not have.
        let mut rest = vec![0; (bytes - CLONE_ARGS_BYTES) as usize];
        self.read(args.wrapping_add(CLONE_ARGS_BYTES), &mut rest)?;
        if rest.iter().skip(CLONE_ARGS_KNOWN).any(|byte| *byte != 0) {
            return Err(Errno::E2BIG.into());
        }
        let has_parent = flags & (libc::CLONE_THREAD | libc::CLONE_PARENT) as u64 != 0;
        if rest.iter().any(|byte| *byte != 0)
            || flags & !CLONE_FLAGS != 0
            || exit_signal > 64
            || has_parent && exit_signal != 0
            || (stack == 0) != (stack_bytes == 0)
        {
            return Err(Errno::EINVAL.into());
        }
        self.create(&Request {
            flags,
            exit_signal: exit_signal as i32,
            pidfd,
            stack: if stack == 0 {
                0
            } else {
                stack.wrapping_add(stack_bytes)
            },
            parent_tid,
            child_tid,
            tls,
        })
    }

    fn create(&mut self, request: &Request) -> SysResult {
        // Run again after the wait for a vfork child: it has been made already.
        if let Some(child) = self.thread().vfork_child {
            return self.wait_for_vfork(child);
        }
        let thread_like = request.has(libc::CLONE_THREAD);
        let coherent = (!thread_like || request.has(libc::CLONE_SIGHAND))
            && (!request.has(libc::CLONE_SIGHAND) || request.has(libc::CLONE_VM));
        let told_twice =
            request.has(libc::CLONE_PARENT_SETTID) && request.pidfd == request.parent_tid;
        let no_process = request.has(libc::CLONE_PIDFD) && (thread_like || told_twice);
        if !coherent || no_process || request.flags & UNSUPPORTED != 0 || request.exit_signal > 64 {
            return Err(Errno::EINVAL.into());
        }
        let most = THREADS_MAX.min(self.kernel.platform.cpus_max());
        if self.state.threads.len() >= most {
            return Err(Errno::EAGAIN.into());
        }
        let id = match thread_like {
            true => self.state.new_thread_id(self.pid)?,
            false => self.state.new_process_id()?,
        };
        let mut thread = self.child_thread(id, request)?;
        if thread_like {
            thread.pid = self.pid;
        } else {
            let process = self.child_process(id, request)?;
            if request.has(libc::CLONE_PIDFD) {
                let fd = self.insert_pidfd(PidFd::new(id, &process.ending), 0)?;
                self.write(request.pidfd, &(fd as i32).to_le_bytes())?;
            }
            self.state.processes.insert(id, process);
        }
        // There is no way back from here: an address that is none goes untold, as on Linux.
        if request.has(libc::CLONE_PARENT_SETTID) {
            let _ = self.write(request.parent_tid, &id.to_le_bytes());
        }
        if request.has(libc::CLONE_CHILD_SETTID) {
            let pid = thread.pid;
            let mm = self.state.process(pid).mm.clone();
            let _ = UserMemory::write(&mut *lock(&mm), request.child_tid, &id.to_le_bytes());
        }
        start(self.kernel, self.state, thread);
        if request.has(libc::CLONE_VFORK) {
            self.thread().vfork_child = Some(id);
            return self.wait_for_vfork(id);
        }
        Ok(id as u64)
    }

    fn wait_for_vfork(&mut self, child: i32) -> SysResult {
        match self.state.processes.get(&child) {
            Some(process) if !process.is_released => Err(Stop::wait(process.released)),
            _ => {
                self.thread().vfork_child = None;
                Ok(child as u64)
            }
        }
    }

    /// This process's vfork(2) parent may go on.
    pub fn release_vfork_parent(&mut self) {
        let process = self.process();
        process.is_released = true;
        let channel = process.released;
        self.state.wake(channel);
    }

    fn child_thread(&mut self, tid: i32, request: &Request) -> Result<Thread, Errno> {
        let xstate = match &self.thread().xstate {
            Some(saved) => saved.clone(),
            None => self.cpu.xstate().map_err(|_| Errno::ENOMEM)?,
        };
        let parent = self.thread();
        let mut regs = parent.regs;
        regs.rax = 0;
        if request.stack != 0 {
            regs.rsp = request.stack;
        }
        if request.has(libc::CLONE_SETTLS) {
            regs.fs_base = request.tls;
        }
        let mut thread = Thread::new(tid, tid, regs, xstate);
        thread.name = parent.name.clone();
        thread.mask = parent.mask;
        thread.affinity = parent.affinity;
        thread.policy = parent.policy.of_child();
        // Memory of its own has the same registration (rseq); shared memory is its parent's.
        if !request.has(libc::CLONE_VM) {
            thread.rseq = parent.rseq.moved();
        }
        if !request.has(libc::CLONE_VM) || request.has(libc::CLONE_VFORK) {
            thread.alt_stack = parent.alt_stack;
        }
        if request.has(libc::CLONE_CHILD_CLEARTID) {
            thread.clear_child_tid = request.child_tid;
        }
        Ok(thread)
    }

    fn child_process(&mut self, pid: i32, request: &Request) -> Result<Process, Errno> {
        let kernel = self.kernel.clone();
        let parent = self.process().mm.clone();
        let mm = match request.has(libc::CLONE_VM) {
            true => parent,
            false => {
                let futexes = &self.state.futexes;
                let is_awaited = |address, len| futexes.has_waiters(address, len);
                let child = lock(&parent).fork(&*kernel.platform, &is_awaited)?;
                Arc::new(Mutex::new(child))
            }
        };
        let parent = self.process();
        let share = |flag| request.has(flag);
        Ok(Process {
            pid,
            parent: if share(libc::CLONE_PARENT) {
                parent.parent
            } else {
                parent.pid
            },
            group: parent.group,
            mm,
            files: copy_or_share(&parent.files, share(libc::CLONE_FILES)),
            fs: copy_or_share(&parent.fs, share(libc::CLONE_FS)),
            actions: copy_or_share(&parent.actions, share(libc::CLONE_SIGHAND)),
            pending: Pending::default(),
            threads: Vec::new(),
            ending: Arc::default(),
            exit: None,
            children: Channel::new(),
            released: Channel::new(),
            is_released: !share(libc::CLONE_VFORK),
            exit_signal: request.exit_signal,
            job: Job::default(),
            has_executed: false,
            credentials: parent.credentials.clone(),
            settings: parent.settings.of_child(),
            stopped_by: None,
            marked: None,
            chain: None,
            // A child has none (fork(2)).
            timers: super::timers::Timers::default(),
            limits: parent.limits.clone(),
            ran: Duration::ZERO,
            children_ran: Duration::ZERO,
            last_id: pid,
            exe: parent.exe.clone(),
            argv: parent.argv.clone(),
        })
    }
}

fn copy_or_share<T: Clone>(of: &Arc<Mutex<T>>, share: bool) -> Arc<Mutex<T>> {
    if share {
        of.clone()
    } else {
        Arc::new(Mutex::new(lock(of).clone()))
    }
}
