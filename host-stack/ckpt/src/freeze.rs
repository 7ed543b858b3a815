//! Stops a tree of processes, and lets it go.

use std::{collections::BTreeSet, fs};

use libc::pid_t;
use procfs::process::Process;

use crate::{
    error::{Error, Result},
    remote::{self, Remote},
    trace::{Regs, Stop, Tracee},
};

/// How often a tree may have grown while it was being stopped.
const ROUNDS: usize = 1000;

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
    /// Its threads, the first one with its number.
    pub threads: Vec<HeldThread>,
    /// The signal that has stopped it (job control).
    pub stopped: Option<i32>,
}

/// A held thread as it was when it was stopped.
#[derive(Debug)]
pub struct HeldThread {
    pub tracee: Tracee,
    pub regs: Regs,
    pub mask: u64,
    /// It has made calls for us.
    touched: bool,
    /// SIGSTOP came meanwhile.
    stray_stop: bool,
}

impl HeldThread {
    fn hold(tid: pid_t) -> Result<(Self, Option<i32>)> {
        let tracee = Tracee::seize(tid)?;
        let signal = settle(&tracee)?;
        let (regs, mask) = (tracee.regs()?, tracee.mask()?);
        let stopped = (signal != libc::SIGTRAP).then_some(signal);
        let thread = Self {
            tracee,
            regs,
            mask,
            touched: false,
            stray_stop: false,
        };
        Ok((thread, stopped))
    }

    /// Has it make calls: `work` says which.
    pub fn remote<T>(
        &mut self,
        pid: pid_t,
        work: impl FnOnce(&mut Remote) -> Result<T>,
    ) -> Result<T> {
        self.touched = true;
        let mut remote = Remote::new(&self.tracee, pid)?;
        let result = work(&mut remote);
        self.stray_stop |= remote.stopped;
        result
    }

    /// Waits until the calls that it was started on are done; what they returned.
    pub fn finish(&mut self, pid: pid_t, table: u64, calls: usize) -> Result<Vec<i64>> {
        remote::finish(&self.tracee, pid, table, calls, &mut self.stray_stop)
    }

    /// It is where it was; the kernel does the rest of the call that it was in.
    fn let_go(&mut self) -> Result<()> {
        if self.touched {
            // At a stop in the delivery of signals the kernel looks whether a call is to be made again.
            self.tracee.interrupt()?;
            self.tracee.go_on(0)?;
            settle(&self.tracee)?;
            self.tracee.set_regs(&self.regs)?;
            self.tracee.set_mask(self.mask)?;
        }
        self.tracee.detach(0)?;
        if self.stray_stop {
            // SAFETY: a system call without pointers.
            unsafe { libc::kill(self.tracee.tid(), libc::SIGSTOP) };
        }
        Ok(())
    }
}

/// Waits for the stop of PTRACE_INTERRUPT; signals that come before it are delivered. Returns the signal that has
/// stopped the process, or SIGTRAP.
fn settle(tracee: &Tracee) -> Result<i32> {
    loop {
        match tracee.wait()? {
            Stop::Event(signal) => return Ok(signal),
            Stop::Signal(signal) => tracee.go_on(signal)?,
            Stop::Syscall | Stop::Born => tracee.go_on(0)?,
        }
    }
}

impl Frozen {
    /// Stops all descendants of a process but those that are excepted.
    pub fn freeze(ancestor: pid_t) -> Result<Self> {
        let mut frozen = Self {
            processes: Vec::new(),
            zombies: Vec::new(),
        };
        for _ in 0..ROUNDS {
            let mut grown = false;
            frozen.zombies.clear();
            for pid in descendants(ancestor)? {
                grown |= frozen.hold(pid)?;
            }
            if !grown {
                return frozen.in_order(ancestor);
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
        let mut grown = false;
        for tid in tids {
            if process.threads.iter().any(|held| held.tracee.tid() == tid) {
                continue;
            }
            grown = true;
            match HeldThread::hold(tid) {
                Ok((thread, stopped)) => {
                    process.stopped = process.stopped.or(stopped);
                    process.threads.push(thread);
                }
                // The next round sees what is left.
                Err(Error::Gone { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(grown)
    }

    /// Parents before children.
    fn in_order(mut self, ancestor: pid_t) -> Result<Self> {
        let order = descendants(ancestor)?;
        let at = |pid| {
            order
                .iter()
                .position(|other| *other == pid)
                .unwrap_or(usize::MAX)
        };
        self.processes.sort_by_key(|process| at(process.pid));
        for process in &mut self.processes {
            let pid = process.pid;
            process
                .threads
                .sort_by_key(|thread| (thread.tracee.tid() != pid, thread.tracee.tid()));
            if process
                .threads
                .first()
                .is_none_or(|first| first.tracee.tid() != pid)
            {
                return Err(Error::refused(
                    pid,
                    "its first thread has ended, others have not",
                ));
            }
        }
        Ok(self)
    }

    /// All of them go on.
    pub fn let_go(mut self) -> Result<()> {
        let mut result = Ok(());
        for process in &mut self.processes {
            for thread in &mut process.threads {
                match thread.let_go() {
                    // Somebody has killed it.
                    Err(Error::Gone { .. }) | Ok(()) => {}
                    Err(error) => result = Err(error),
                }
            }
        }
        self.processes.clear();
        result
    }

    /// All of them end, at once: nobody sees another die.
    pub fn kill(mut self) {
        for process in self.processes.iter().rev() {
            // SAFETY: a system call without pointers; the process is held, so the number is its own.
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
        for thread in self
            .processes
            .iter_mut()
            .flat_map(|process| &mut process.threads)
        {
            if let Err(error) = thread.let_go() {
                tracing::warn!(%error, "a thread cannot be let go");
            }
        }
    }
}

/// All descendants of a process, a parent before its children.
pub fn descendants(ancestor: pid_t) -> Result<Vec<pid_t>> {
    let mut found = vec![ancestor];
    let mut seen = BTreeSet::from([ancestor]);
    let mut at = 0;
    while let Some(&pid) = found.get(at) {
        for tid in threads(pid).unwrap_or_default() {
            let path = format!("/proc/{pid}/task/{tid}/children");
            let children = match fs::read_to_string(&path) {
                Ok(children) => children,
                Err(_) if pid != ancestor => continue,
                Err(source) => return Err(Error::io(path, source)),
            };
            let children = children
                .split_whitespace()
                .filter_map(|pid| pid.parse().ok());
            found.extend(children.filter(|child| seen.insert(*child)));
        }
        at += 1;
    }
    found.remove(0);
    Ok(found)
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
