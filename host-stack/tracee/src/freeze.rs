//! Stops a tree of processes, and lets it go.

use std::{
    collections::{BTreeSet, HashMap},
    fs,
    time::{Duration, Instant},
};

use crate::{
    error::{Error, Result},
    faults::{self, reached},
    memory,
    remote::{self, Home, Remote, SYSCALL_BYTES, bit},
    trace::{Regs, Stop, Tracee, has_ended},
    tree,
};
use libc::pid_t;
use procfs::process::Process;

/// How often a tree may have grown while it was being stopped.
const ROUNDS: usize = 1000;
/// How long a thread may take to stop.
const PATIENCE: Duration = Duration::from_secs(5);

/// A tree of processes that stands still.
#[derive(Debug)]
pub struct Frozen {
    /// Processes, a parent before its children.
    pub processes: Vec<HeldProcess>,
    /// Those that have ended and wait for their parents: (number, parent).
    pub zombies: Vec<pid_t>,
}

/// A process whose threads are all held.
#[derive(Debug)]
pub struct HeldProcess {
    /// Its number.
    pub pid: pid_t,
    /// Its threads that live, the first one with its number, if that is among them.
    pub threads: Vec<HeldThread>,
    /// The signal that has stopped it (job control).
    pub stopped: Option<i32>,
}

impl HeldProcess {
    /// The number of a thread that lives, by which /proc and others know the process.
    pub fn handle(&self) -> pid_t {
        self.threads[0].tracee.tid()
    }
}

/// Calls that threads have been in since they were stopped the last time. The kernel goes on with some of them by
/// restart_syscall(2), and does not say any more which they were.
#[derive(Debug, Default)]
pub struct Calls(HashMap<pid_t, InCall>);

/// A call, and where a thread made it.
#[derive(Clone, Copy, Debug)]
struct InCall {
    number: u64,
    rip: u64,
    rsp: u64,
}

impl Calls {
    /// Gives calls of threads their numbers again, and keeps those that the next stop needs.
    fn name(&mut self, frozen: &mut Frozen) {
        let mut named = HashMap::new();
        for thread in frozen.processes.iter_mut().flat_map(|p| &mut p.threads) {
            let (tid, regs) = (thread.tracee.tid(), &thread.regs);
            let (is_within, is_before) = (is_in_block(regs), is_at_block(regs));
            if !is_within && !is_before {
                continue;
            }
            let mut call = InCall {
                number: regs.orig_rax,
                rip: regs.rip + if is_before { SYSCALL_BYTES } else { 0 },
                rsp: regs.rsp,
            };
            if is_before || call.number == RESTART_SYSCALL {
                let known = self.0.get(&tid);
                let known = known.filter(|known| (known.rip, known.rsp) == (call.rip, call.rsp));
                let Some(known) = known else { continue };
                call = *known;
            }
            thread.call = Some(call.number);
            named.insert(tid, call);
        }
        self.0 = named;
    }
}

const RESTART_SYSCALL: u64 = libc::SYS_restart_syscall as u64;
/// Whether a thread is in a call that the kernel goes on with by a way of its own.
fn is_in_block(regs: &Regs) -> bool {
    regs.rax == RESTART_BLOCK && regs.orig_rax as i64 >= 0
}

/// Whether a thread is just about to go on with such a call.
fn is_at_block(regs: &Regs) -> bool {
    regs.rax == RESTART_SYSCALL
}

/// A held thread as it was when it was stopped.
#[derive(Debug)]
pub struct HeldThread {
    /// The thread.
    pub tracee: Tracee,
    /// Its registers.
    pub regs: Regs,
    /// Number of the call that it is in, if the kernel would go on with it by a way of its own.
    call: Option<u64>,
    /// Its signal mask.
    pub mask: u64,
    /// It is elsewhere: it makes calls for us.
    is_away: bool,
    /// Signals that came meanwhile, a bit each from 1 on.
    stray: u64,
}

impl HeldThread {
    /// Of a thread that has been seized: waits until it stands still. And the signal that has stopped it before.
    fn hold(tracee: Tracee, others: &[pid_t]) -> Result<(Self, Option<i32>)> {
        let signal = settle(&tracee, Some(Instant::now() + PATIENCE), others)?;
        let (mut regs, mask) = (tracee.regs()?, tracee.mask()?);
        if abort_sequence(&tracee, &mut regs)? | continue_call(&mut regs) {
            tracee.set_regs(&regs)?;
        }
        reached(&faults::HELD);
        let stopped = (signal != libc::SIGTRAP).then_some(signal);
        let thread = Self {
            tracee,
            call: None,
            regs,
            mask,
            is_away: false,
            stray: 0,
        };
        Ok((thread, stopped))
    }

    /// Its registers as the program would have them without the kernel's memory: it makes its call, and does not go on
    /// with it.
    pub fn own_regs(&self) -> Regs {
        match self.call {
            Some(call) if is_in_block(&self.regs) => Regs {
                orig_rax: call,
                ..self.regs
            },
            Some(call) => Regs {
                rax: call,
                ..self.regs
            },
            None => self.regs,
        }
    }

    /// Where it goes when its tracer dies.
    pub fn home(&self) -> Home {
        Home::new(&self.regs, self.mask)
    }

    /// Has it make calls: `work` says which. `end`: a signal that does nothing to it.
    pub fn remote<T>(
        &mut self,
        pid: pid_t,
        end: i32,
        work: impl FnOnce(&mut Remote) -> Result<T>,
    ) -> Result<T> {
        let mut remote = Remote::with_home(&self.tracee, pid, Some(self.home()), end)?;
        self.is_away = true;
        let result = work(&mut remote);
        self.stray |= remote.stray;
        result
    }

    /// Waits until the calls that it was started on are done; what they returned.
    pub fn finish(&mut self, home: u64, calls: usize, end: i32) -> Result<Vec<i64>> {
        remote::finish(&self.tracee, home, calls, end, &mut self.stray)
    }

    /// On its way to a stop in the delivery of signals, where the kernel looks whether a call is to be made again.
    pub fn turn(&mut self) -> Result<()> {
        match self.is_away {
            true => self.tracee.interrupt().and_then(|()| self.tracee.go_on(0)),
            false => Ok(()),
        }
    }

    /// It is where it was; the kernel does the rest of the call that it was in.
    pub fn put_back(&mut self) -> Result<()> {
        if self.is_away {
            loop {
                match self.tracee.wait()? {
                    Stop::Event(_) => break,
                    Stop::Signal(signal) => self.stray |= bit(signal),
                    Stop::Syscall | Stop::Born => {}
                }
                self.tracee.go_on(0)?;
            }
            self.tracee.set_mask(self.mask)?;
            reached(&faults::ASK_MASK);
            self.tracee.set_regs(&self.regs)?;
            self.is_away = false;
            reached(&faults::ASK_BACK);
        }
        Ok(())
    }

    fn let_go(&mut self) -> Result<()> {
        self.tracee.detach(0)?;
        let tid = self.tracee.tid();
        for signal in (1..=64).filter(|signal| self.stray & bit(*signal) != 0) {
            // SAFETY: tkill(2) takes two numbers, and touches no memory of this process. The thread
            // may have ended; the kernel says ESRCH then, and nothing was to be told.
            unsafe { libc::syscall(libc::SYS_tkill, tid, signal) };
        }
        reached(&faults::LET_GO);
        Ok(())
    }
}

/// Hears of the end of threads that were killed while they were held. Until then exec(2) of another thread waits, and so
/// does the process's parent. The first thread's end is that of the process: whoever waits for that hears of it.
fn bury(process: &HeldProcess) {
    let others = process.threads.iter().map(|thread| &thread.tracee);
    for tracee in others.filter(|tracee| tracee.tid() != process.pid) {
        while tracee.wait().is_ok() {}
    }
}

/// Waits for the stop of PTRACE_INTERRUPT; signals that come before it are delivered. Returns the signal that has
/// stopped the process, or SIGTRAP. `others`: see [`Tracee::wait_until`].
fn settle(tracee: &Tracee, deadline: Option<Instant>, others: &[pid_t]) -> Result<i32> {
    loop {
        match tracee.wait_until(deadline, others)? {
            Stop::Event(signal) => return Ok(signal),
            Stop::Signal(signal) => tracee.go_on(signal)?,
            Stop::Syscall | Stop::Born => tracee.go_on(0)?,
        }
    }
}

/// Calls that fail with EINTR when a thread is stopped, though no handler runs (signal(7)): those with a deadline that
/// cannot be seen, and those that were never made to go on.
const NOT_RESTARTED: [i64; 22] = [
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_io_getevents,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_connect,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    // Of a socket with a time limit.
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_sendfile,
    // Of a file in memory.
    libc::SYS_fallocate,
];
/// What a call says that the kernel goes on with by a way of its own (ERESTART_RESTARTBLOCK).
const RESTART_BLOCK: u64 = -516i64 as u64;
/// As if a call had said that it is made again unless a handler runs (ERESTARTNOHAND).
const RESTART_NO_HANDLER: u64 = -514i64 as u64;

/// A call that has been interrupted by nothing but the stop goes on; if a handler is about to run, it fails.
fn continue_call(regs: &mut Regs) -> bool {
    let is_interrupted = regs.rax as i64 == -i64::from(libc::EINTR);
    let continues = is_interrupted && NOT_RESTARTED.contains(&(regs.orig_rax as i64));
    if continues {
        regs.rax = RESTART_NO_HANDLER;
    }
    continues
}

/// A thread in a restartable sequence has to leave it by its abort handler, as after any interruption (rseq(2)). The
/// kernel forgets the sequence when it sees the thread elsewhere.
fn abort_sequence(tracee: &Tracee, regs: &mut Regs) -> Result<bool> {
    /// Of `rseq_cs` in `struct rseq` (linux/rseq.h).
    const SEQUENCE: u64 = 8;
    let Some((address, ..)) = tracee.rseq().unwrap_or(None) else {
        return Ok(false);
    };
    let mut word = [0; 8];
    memory::read(tracee.tid(), address + SEQUENCE, &mut word)?;
    let at = u64::from_ne_bytes(word);
    if at == 0 {
        return Ok(false);
    }
    // struct rseq_cs: version and flags, start, length, abort handler.
    let mut bytes = [0; 32];
    memory::read(tracee.tid(), at, &mut bytes)?;
    let [_, start, length, handler] = std::array::from_fn(|index| {
        u64::from_ne_bytes(bytes[index * 8..][..8].try_into().expect("eight bytes"))
    });
    let is_within = regs.rip.wrapping_sub(start) < length;
    if is_within {
        regs.rip = handler;
        // It is in no call: nothing is to be made again.
        regs.orig_rax = u64::MAX;
    }
    Ok(is_within)
}

impl Frozen {
    /// Stops all of this process's tree.
    pub fn freeze(calls: &mut Calls) -> Result<Self> {
        let mut frozen = Self {
            processes: Vec::new(),
            zombies: Vec::new(),
        };
        for _ in 0..ROUNDS {
            let mut grown = false;
            frozen.zombies.clear();
            for pid in tree::processes()? {
                grown |= frozen.hold(pid)?;
            }
            if !grown {
                let mut frozen = frozen.in_order()?;
                calls.name(&mut frozen);
                reached(&faults::FROZEN);
                return Ok(frozen);
            }
        }
        Err(Error::io(
            "processes are made faster than they can be stopped",
            std::io::ErrorKind::TimedOut,
        ))
    }

    /// Holds all threads of a process that are not yet; whether there were any.
    fn hold(&mut self, pid: pid_t) -> Result<bool> {
        let index = self.processes.iter().position(|process| process.pid == pid);
        let tids = match threads(pid) {
            Ok(tids) => tids,
            Err(_) => return Ok(true),
        };
        if is_zombie(pid) {
            self.processes.retain(|process| process.pid != pid);
            self.zombies.push(pid);
            return Ok(false);
        }
        let index = index.unwrap_or_else(|| {
            self.processes.push(HeldProcess {
                pid,
                threads: Vec::new(),
                stopped: None,
            });
            self.processes.len() - 1
        });
        let process = &mut self.processes[index];
        // Those that another one's exec(2) has ended.
        process
            .threads
            .retain(|held| tids.contains(&held.tracee.tid()));
        let is_held = |tid| process.threads.iter().any(|held| held.tracee.tid() == tid);
        let new = tids
            .into_iter()
            .filter(|tid| !is_held(*tid) && !has_ended(*tid));
        // All at once: the more of them run, the longer each needs to get to its stop.
        let seized: Vec<_> = new.map(|tid| (tid, Tracee::seize(tid))).collect();
        reached(&faults::SEIZED);
        let held = process.threads.iter().map(|held| held.tracee.tid());
        let others = held.chain(seized.iter().map(|(tid, _)| *tid));
        let others: Vec<_> = others.filter(|tid| *tid != pid).collect();
        // Without a thread that lives it has ended since it was looked at: it is looked at again, for its parent waits for
        // its status.
        let has_none = process.threads.is_empty();
        let (grown, mut result) = (!seized.is_empty() || has_none, Ok(()));
        for (tid, tracee) in seized {
            match tracee.and_then(|tracee| HeldThread::hold(tracee, &others)) {
                Ok((thread, stopped)) => {
                    process.stopped = process.stopped.or(stopped);
                    process.threads.push(thread);
                }
                // The next round sees what is left.
                Err(Error::Gone { .. }) => {}
                // Who has ended cannot be traced.
                Err(_) if has_ended(tid) => {}
                Err(error) => result = Err(error),
            }
        }
        result.map(|()| grown)
    }

    /// Parents before children.
    fn in_order(mut self) -> Result<Self> {
        let order = tree::processes()?;
        let at = |pid| {
            order
                .iter()
                .position(|other| *other == pid)
                .unwrap_or(usize::MAX)
        };
        // Some have ended, and have been waited for, before they could be held.
        let is_there = |process: &HeldProcess| order.contains(&process.pid);
        self.processes
            .retain(|process| is_there(process) && !process.threads.is_empty());
        self.processes.sort_by_key(|process| at(process.pid));
        for process in &mut self.processes {
            let pid = process.pid;
            process
                .threads
                .sort_by_key(|thread| (thread.tracee.tid() != pid, thread.tracee.tid()));
        }
        Ok(self)
    }

    /// A process that has been killed since it was stopped.
    pub fn lost(&self) -> Option<pid_t> {
        let mut processes = self.processes.iter();
        let lost = processes.find(|process| has_ended(process.handle()));
        lost.map(|process| process.pid)
    }

    /// From now on, all of them end if this process does, until they are let go.
    pub fn bind(&self) -> Result<()> {
        let threads = self.processes.iter().flat_map(|it| &it.threads);
        for thread in threads {
            match thread.tracee.bind() {
                // Somebody has killed it.
                Err(Error::Gone { .. }) | Ok(()) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// All of them go on.
    pub fn let_go(mut self) -> Result<()> {
        self.release()
    }

    /// Step by step with all of them: one that runs takes time from those that do not yet.
    fn release(&mut self) -> Result<()> {
        let mut result = Ok(());
        for step in [HeldThread::turn, HeldThread::put_back, HeldThread::let_go] {
            for thread in self.processes.iter_mut().flat_map(|it| &mut it.threads) {
                match step(thread) {
                    // It has been killed: by somebody, or by a thread of its process that runs already, and execs.
                    Err(Error::Gone { .. }) | Ok(()) => {}
                    Err(error) => result = Err(error),
                }
            }
        }
        self.processes.iter().for_each(bury);
        self.processes.clear();
        result
    }

    /// All of them end, at once: nobody sees another die.
    pub fn kill(mut self) {
        for process in self.processes.iter().rev() {
            // SAFETY: kill(2) takes two numbers, and touches no memory of this process. The process
            // that is killed is held, so that it cannot have ended and left its number to another.
            unsafe { libc::kill(process.pid, libc::SIGKILL) };
        }
        // A thread that is traced stays until its tracer has heard of its end; the first is the last to go.
        for process in self.processes.drain(..) {
            for thread in process.threads.iter().rev() {
                while thread.tracee.wait().is_ok() {}
            }
        }
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        if let Err(error) = self.release() {
            tracing::warn!(%error, "a thread cannot be let go");
        }
    }
}

/// All descendants of a process, a parent before its children.
pub fn descendants(ancestor: pid_t) -> Result<Vec<pid_t>> {
    let mut found = children(ancestor)?;
    let mut seen: BTreeSet<pid_t> = found.iter().copied().collect();
    let mut at = 0;
    while let Some(&pid) = found.get(at) {
        // It may have ended.
        let children = children(pid).unwrap_or_default();
        found.extend(children.into_iter().filter(|child| seen.insert(*child)));
        at += 1;
    }
    Ok(found)
}

/// The children of a process. Each is some thread's, and another thread's once that one has ended: then all are looked at anew.
fn children(pid: pid_t) -> Result<Vec<pid_t>> {
    loop {
        let lists = threads(pid)?.into_iter().map(|tid| {
            let path = format!("/proc/{pid}/task/{tid}/children");
            fs::read_to_string(&path).map_err(|source| (path, source))
        });
        match lists.collect::<std::result::Result<String, _>>() {
            Ok(lists) => return Ok(pids(&lists)),
            // The thread has ended.
            Err((_, source))
                if matches!(source.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => {}
            Err((path, source)) => return Err(Error::io(path, source)),
        }
    }
}

fn pids(list: &str) -> Vec<pid_t> {
    list.split_whitespace()
        .filter_map(|pid| pid.parse().ok())
        .collect()
}

/// Whether a process is another, or a descendant of it.
pub fn is_descendant(pid: pid_t, ancestor: pid_t) -> bool {
    let parent = |pid: &pid_t| {
        let stat = Process::new(*pid).and_then(|process| process.stat());
        stat.ok().map(|stat| stat.ppid).filter(|parent| *parent > 0)
    };
    std::iter::successors(Some(pid), parent).any(|one| one == ancestor)
}

/// The threads of a process.
fn threads(pid: pid_t) -> Result<Vec<pid_t>> {
    let path = format!("/proc/{pid}/task");
    let entries = fs::read_dir(&path).map_err(|source| Error::io(path, source))?;
    let names = entries.flatten().map(|entry| entry.file_name());
    Ok(names
        .filter_map(|name| name.to_str()?.parse().ok())
        .collect())
}

/// Whether a process has ended, and waits for its parent.
pub fn is_zombie(pid: pid_t) -> bool {
    let stat = Process::new(pid).and_then(|process| process.stat());
    stat.is_ok_and(|stat| stat.state == 'Z' && stat.num_threads <= 1)
}
