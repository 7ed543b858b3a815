//! The stub in a process of a tree that stands still: mapped by the process itself, used by all of its threads, and gone
//! before anything of it is saved.
//!
//! ```text
//! way home into padding of code that the process has --> mmap, mprotect --> tables of calls, by any thread
//!     --> all threads back --> munmap --> the first thread back --> padding as it was
//! ```
//! The first call and the last are made where there is no stub: by an instruction that is written, with the way home
//! behind it, to where code ends before its page does. The vDSO does, and so do most programs and libraries.
//!
//! What must stay true: at every step each thread is where it was, or gets there without us. If this process dies, a
//! stub may stay mapped, and padding written, which nobody looks at.

use crate::{
    code::{Code, Origin},
    error::{Error, Result},
    faults::{self, reached},
    freeze::HeldProcess,
    memory,
    remote::{self, Call, HOME_BYTES, PAGE, Remote, STUB_BYTES, bit, call},
};
use libc::pid_t;
use procfs::process::Process as Proc;

/// Signals that do nothing to a program that does not catch them.
const QUIET: [i32; 3] = [libc::SIGURG, libc::SIGWINCH, libc::SIGCHLD];
/// What is written to padding begins at a multiple of this.
const ALIGNED: usize = 16;

/// A stub in a process.
#[derive(Debug)]
pub struct Stub {
    /// Its address.
    pub at: u64,
    /// Where single calls are made.
    padding: u64,
    /// What threads send themselves at the end of a table.
    pub end: i32,
}

impl Stub {
    /// Has a process map it.
    pub fn map(process: &mut HeldProcess, areas: &[Code]) -> Result<Self> {
        let end = quiet_signal(process)?;
        let padding = padding(process.handle(), areas)?;
        let mut stub = Self {
            at: 0,
            padding,
            end,
        };
        let mapped = stub.lay(process).and_then(|()| stub.map_at(process));
        match mapped {
            Ok(()) => Ok(stub),
            Err(error) => {
                stub.clear(process)?;
                Err(error)
            }
        }
    }

    /// Has the process unmap it, whatever came of the calls; all threads are where they were.
    pub fn unmap(self, process: &mut HeldProcess) -> Result<()> {
        let others = park(&mut process.threads[1..]);
        let call = call(libc::SYS_munmap, [self.at, STUB_BYTES]);
        let unmapped = self.one(process, "munmap of the checkpointer's calls", call);
        reached(&faults::ASK_UNMAPPED);
        let cleared = self.clear(process);
        others.and(unmapped.map(|_| ())).and(cleared)
    }

    fn lay(&self, process: &HeldProcess) -> Result<()> {
        let mut bytes = remote::one_call().to_vec();
        bytes.resize(home_offset(), 0);
        bytes.extend(process.threads[0].home().bytes());
        memory::write(process.handle(), self.padding, &bytes)?;
        reached(&faults::ASK_WAY_HOME);
        Ok(())
    }

    /// The first thread is back, and padding is padding.
    fn clear(&self, process: &mut HeldProcess) -> Result<()> {
        let parked = park(&mut process.threads[..1]);
        let zeros = vec![0; needed()];
        let cleared = memory::write(process.handle(), self.padding, &zeros);
        parked.and(cleared)
    }

    fn map_at(&mut self, process: &mut HeldProcess) -> Result<()> {
        // In two steps: programs may have sworn off memory that is writable and then code (PR_SET_MDWE).
        let protection = (libc::PROT_READ | libc::PROT_EXEC) as u64;
        let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
        let map = call(
            libc::SYS_mmap,
            [0, STUB_BYTES, protection, flags, u64::MAX, 0],
        );
        self.at = self.one(process, "no room for the checkpointer's calls", map)?;
        reached(&faults::ASK_MAPPED);
        let written = memory::write(process.handle(), self.at, remote::stub());
        let protection = (libc::PROT_READ | libc::PROT_WRITE) as u64;
        let room = [self.at + PAGE, STUB_BYTES - PAGE, protection];
        let protect = call(libc::SYS_mprotect, room);
        let mapped = written.and_then(|()| self.one(process, "the checkpointer's calls", protect));
        if mapped.is_err() {
            let unmap = call(libc::SYS_munmap, [self.at, STUB_BYTES]);
            self.one(process, "the checkpointer's calls", unmap)?;
        }
        mapped.map(|_| ())
    }

    /// A call of the first thread that must succeed.
    fn one(&self, process: &mut HeldProcess, what: &str, call: Call) -> Result<u64> {
        let pid = process.pid;
        let (at, home) = (self.padding, self.padding + home_offset() as u64);
        let one = |remote: &mut Remote| remote.call_at(at, home, call);
        let made = process.threads[0].remote(pid, self.end, one)?;
        made.map_err(|source| Error::Process {
            pid,
            what: what.into(),
            source,
        })
    }
}

/// Threads are where they were.
fn park(threads: &mut [crate::freeze::HeldThread]) -> Result<()> {
    let mut result = Ok(());
    for thread in &mut *threads {
        result = result.and(thread.turn());
    }
    for thread in threads {
        result = result.and(thread.put_back());
    }
    result
}

fn home_offset() -> usize {
    remote::one_call().len().next_multiple_of(ALIGNED)
}

fn needed() -> usize {
    home_offset() + HOME_BYTES as usize
}

/// A signal that none of its threads waits for, and that does nothing to it: or, if it catches all of those, nothing bad.
fn quiet_signal(process: &HeldProcess) -> Result<i32> {
    let status = Proc::new(process.handle())?.status()?;
    let mut pending = status.shdpnd;
    for thread in &process.threads {
        for info in thread.tracee.pending(false)? {
            pending |= bit(i32::from_ne_bytes([info[0], info[1], info[2], info[3]]));
        }
    }
    let free = |seen: u64| QUIET.into_iter().find(|signal| seen & bit(*signal) == 0);
    let quiet = free(pending | status.sigcgt).or_else(|| free(pending));
    Ok(quiet.unwrap_or(libc::SIGURG))
}

/// Where code ends so far before its page that the way home has room.
fn padding(tid: pid_t, areas: &[Code]) -> Result<u64> {
    let code = areas.iter().filter(|area| !area.is_shared);
    let kernels = code.clone().filter(|area| area.origin == Origin::Kernel);
    let others = code.filter(|area| area.origin == Origin::File && area.is_readable);
    for area in kernels.chain(others) {
        let mut page = vec![0; PAGE as usize];
        let start = area.end - PAGE;
        if memory::read(tid, start, &mut page).is_err() {
            continue;
        }
        let used = page
            .iter()
            .rposition(|byte| *byte != 0)
            .map_or(0, |at| at + 1);
        // Some zeros may belong to what is before them.
        let free = (used + ALIGNED).next_multiple_of(ALIGNED);
        if used > 0 && free + needed() <= page.len() {
            return Ok(start + free as u64);
        }
    }
    Err(Error::refused(
        tid,
        "no code with room behind it for the checkpointer's calls",
    ))
}
