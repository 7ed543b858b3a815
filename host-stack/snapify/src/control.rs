//! Snapify from outside (paper section 5, command-line tools): a socket in the host process, on
//! which commands come and reports go, as lines of JSON. The application knows nothing of it.
//!
//! ```text
//!   Client --- a request, as a line ---> Service --> Controlled: an offload process and its Snapify
//!          <-- a report, as a line ----
//! ```

mod controlled;
mod service;

use std::{
    io,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use snaprig_peers::{Exchange, lines};

pub(crate) use self::service::serve_again;
pub use self::{
    controlled::Controlled,
    service::{Service, serve},
};
use crate::{Phase, StepReport};

/// Most bytes of a command, and of a report.
const COMMAND_MAX: usize = 64 << 10;
const REPORT_MAX: usize = 16 << 20;

/// What a host process is told to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// Which offload processes there are, and what each is doing.
    List,
    /// Wait until this many run functions have been sent, and hold further ones.
    BreakAtRunFunction(u64),
    /// The next snapshot is compressed.
    CompressNext,
    /// Copy it while it works, for a snapshot in this directory, and to the card with this node, if it is to come back there.
    Copy(PathBuf, Option<u16>),
    /// snapify_pause, for a snapshot in this directory.
    Pause(PathBuf),
    /// snapify_capture; true ends the process.
    Capture(bool),
    /// snapify_wait.
    Wait,
    /// snapify_resume.
    Resume,
    /// snapify_restore on the card with this node.
    Restore(u16),
    /// Swap out to this directory.
    SwapOut(PathBuf),
    /// Swap in on the card with this node.
    SwapIn(u16),
    /// Migrate to the card with this node, by way of this directory.
    Migrate(PathBuf, u16),
    /// Somebody listens there who is about to take a checkpoint of the whole program (`snaprig_ckpt_plugin::adopted_by`).
    Adopted(PathBuf),
    /// Whenever a step begins from now on, say which on this Unix socket, as a line of JSON, and
    /// wait for a byte before it is done: whoever listens there may do harm meanwhile.
    TellSteps(PathBuf),
}

/// A command, and for which offload process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Request {
    /// Its number; none: the oldest.
    process: Option<u64>,
    command: Command,
}

/// An offload process, as it is now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Described {
    /// Its number in its host process.
    pub process: u64,
    /// Its card.
    pub card: u16,
    /// Its id there.
    pub card_pid: i32,
    /// Its program.
    pub name: String,
    /// What it is doing.
    pub state: Phase,
    /// Memory of its COI buffers.
    pub buffer_bytes: u64,
    /// Something of the program waits for it.
    #[serde(default)]
    pub is_wanted: bool,
    /// The steps of its last snapshot that have ended, whoever asked for it: from pause to resume.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<StepReport>,
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Bytes that were saved or brought back.
    pub bytes: u64,
    /// The steps that ended.
    pub steps: Vec<StepReport>,
    /// What went wrong.
    pub error: Option<String>,
    /// To [`Command::Adopted`]: how many plugins have a part in the checkpoint.
    #[serde(default)]
    pub plugins: u32,
    /// To [`Command::List`]: in the order in which they were made.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub processes: Vec<Described>,
}

impl Report {
    /// The time of all steps together.
    pub fn elapsed(&self) -> Duration {
        self.steps.iter().filter_map(|step| step.elapsed).sum()
    }
}

fn socket(rig: &Path, pid: u32) -> PathBuf {
    rig.join(format!("host-{pid}.sock"))
}

/// The host processes that have a service in this rig, by their own numbers; one that has ended may have left its socket.
pub fn programs(rig: &Path) -> io::Result<Vec<u32>> {
    let mut pids = Vec::new();
    for entry in std::fs::read_dir(rig)? {
        let name = entry?.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix("host-"));
        let pid = pid.and_then(|pid| pid.strip_suffix(".sock"));
        pids.extend(pid.and_then(|pid| pid.parse::<u32>().ok()));
    }
    pids.sort_unstable();
    Ok(pids)
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A command failed, or the host process is gone.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The connection.
    #[error("the host process cannot be reached: {0}")]
    Connection(#[from] io::Error),
    /// The command.
    #[error("{0}")]
    Failed(String),
    /// It did not end in time.
    #[error("the host process did not answer in time")]
    TimedOut,
}

/// A connection to a host process.
pub struct Client {
    stream: UnixStream,
}

impl Client {
    /// To the host process `pid` of the rig in this directory.
    pub fn connect(rig: &Path, pid: u32) -> Result<Self, ControlError> {
        let stream = UnixStream::connect(socket(rig, pid))?;
        Ok(Self { stream })
    }

    /// Runs one command for the oldest offload process, which takes no longer than this. After a timeout the connection
    /// is of no more use.
    pub fn run(&mut self, command: &Command, timeout: Duration) -> Result<Report, ControlError> {
        self.run_for(None, command, timeout)
    }

    /// The same, for the offload process of this number.
    pub fn run_for(
        &mut self,
        process: Option<u64>,
        command: &Command,
        timeout: Duration,
    ) -> Result<Report, ControlError> {
        let mut exchange = Exchange::new(&self.stream, timeout);
        let command = command.clone();
        let answered = lines::send(&mut exchange, &Request { process, command })
            .and_then(|()| lines::receive::<Report>(exchange, REPORT_MAX));
        let report = answered.map_err(|error| match error.kind() {
            io::ErrorKind::TimedOut => ControlError::TimedOut,
            _ => error.into(),
        })?;
        match report.error {
            Some(error) => Err(ControlError::Failed(error)),
            None => Ok(report),
        }
    }
}
