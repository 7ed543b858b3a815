//! Processes.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};
use snaprig_card_driver::wait::Channel;
use snaprig_card_fs::{FileTable, FsContext, files::pidfd::Ending};

use super::Shared;
use crate::{
    checkpoint::pages::Chain,
    credentials::Credentials,
    jobs::Job,
    limits::Limits,
    mm::AddressSpace,
    sched::ticks,
    settings::Settings,
    signal::{Actions, Info, Pending},
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

impl Process {
    /// What SIGCHLD, or whatever a child sends instead, says of this process.
    pub fn child_info(&self, signal: i32, (code, status): (i32, i32)) -> Info {
        Info {
            signal,
            code,
            pid: self.pid,
            uid: self.credentials.uid.real,
            value: status.into(),
            // `si_utime`.
            address: ticks(self.ran),
        }
    }
}
