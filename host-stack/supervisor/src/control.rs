//! What clients ask a supervisor for, at a socket in the directory of its checkpoints.
//!
//! ```text
//! client                      supervisor (socket DIR/control)
//!   | --- Request (a line) --->  |
//!   | <-- Reply (a line) ------- |
//! ```

use std::{
    fs,
    io::{self, BufRead, BufReader, Write},
    os::unix::net::{UnixListener, UnixStream},
    path::Path,
    time::Duration,
};

use libc::pid_t;
use serde::{Deserialize, Serialize};
use snaprig_resources::error::{Error, Result};

use crate::{
    checkpoint::{Copied, Pause},
    migrate::{Migrated, Target},
};

/// Longest command line that a client sends, and how long it may take to.
const REQUEST_MAX: u64 = 4096;
const ASKING: Duration = Duration::from_secs(5);
/// The socket's name in the directory.
pub const CONTROL: &str = "control";

/// What a supervisor is asked for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Request {
    /// A checkpoint; and then the tree runs on, or ends.
    Dump {
        /// It ends.
        kill: bool,
        /// It is a full one, whatever the mode.
        full: bool,
    },
    /// The tree goes on at another supervisor.
    Migrate {
        /// Where that listens.
        to: Target,
    },
    /// Who is there.
    Status,
}

/// What it answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Reply {
    /// A checkpoint is complete.
    Dumped(Dumped),
    /// It goes on elsewhere.
    Migrated(Migrated),
    /// Who is there.
    Status(Status),
    /// It failed, and the tree runs on.
    Failed(String),
}

/// A tree.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Status {
    /// Its processes.
    pub processes: Vec<Running>,
    /// Its last checkpoint, if there was any.
    pub last: Option<u64>,
}

/// A process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Running {
    /// Its number.
    pub pid: pid_t,
    /// How many threads it has.
    pub threads: usize,
    /// Its name.
    pub name: String,
}

/// A checkpoint.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Dumped {
    /// Its number.
    pub round: u64,
    /// Bytes of it.
    pub bytes: u64,
    /// The earlier one that it builds on; none: it is a full one.
    pub parent: Option<u64>,
    /// How memory was copied.
    pub copied: Copied,
    /// How long the tree stood still.
    pub pause: Pause,
    /// How long it took in all.
    pub took: Duration,
}

/// Asks the supervisor of a directory.
pub fn ask(directory: &Path, request: Request) -> Result<Reply> {
    let path = directory.join(CONTROL);
    let failed = |source| Error::io(format!("no supervisor at {}", path.display()), source);
    let mut stream = UnixStream::connect(&path).map_err(failed)?;
    let mut line = serde_json::to_vec(&request).map_err(|e| failed(e.into()))?;
    line.push(b'\n');
    stream.write_all(&line).map_err(failed)?;
    let mut reply = String::new();
    BufReader::new(stream)
        .read_line(&mut reply)
        .map_err(failed)?;
    serde_json::from_str(&reply).map_err(|e| failed(e.into()))
}

/// Where clients ask from now on.
pub fn listen(directory: &Path) -> Result<UnixListener> {
    let failed = |source| Error::io(directory.display().to_string(), source);
    fs::create_dir_all(directory).map_err(failed)?;
    let path = directory.join(CONTROL);
    // A dead supervisor's name.
    if UnixStream::connect(&path).is_err() {
        let _ = fs::remove_file(&path);
    }
    UnixListener::bind(&path).map_err(failed)
}

/// Reads what a client asks for, and tells it what `reply` says.
pub fn answer(stream: &UnixStream, reply: impl FnOnce(Request) -> Reply) {
    let mut line = String::new();
    let mut from = BufReader::new(io::Read::take(stream, REQUEST_MAX));
    let _ = stream.set_read_timeout(Some(ASKING));
    if from.read_line(&mut line).is_err() {
        return;
    }
    let reply = match serde_json::from_str(&line) {
        Ok(request) => reply(request),
        Err(error) => Reply::Failed(format!("not a request: {error}")),
    };
    if let Ok(mut reply) = serde_json::to_vec(&reply) {
        reply.push(b'\n');
        // Who asked may be gone.
        let _ = { stream }.write_all(&reply);
    }
}
