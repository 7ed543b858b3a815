//! What clients ask a supervisor for, at a socket in the directory of its checkpoints.
//!
//! ```text
//! client                      supervisor (socket DIR/control)
//!   | --- Request (a line) --->  |
//!   | <-- Reply (a line) ------- |
//! ```
//!
//! What must stay true: the thread that answers reaps children, too, and waits for no client ([`lines::Server`]).

use std::{fs, path::Path, time::Duration};

use libc::pid_t;
use serde::{Deserialize, Serialize};
use snaprig_peers::{Address, Listener, lines};
use snaprig_resources::error::{Error, Result};

use crate::{
    checkpoint::{Copied, Pause},
    migrate::{Migrated, Target},
};

/// How much clients may have, and how long they may take.
const LIMITS: lines::Limits = lines::Limits {
    clients_max: 64,
    command_bytes_max: 4096,
    time_max: Duration::from_secs(5),
};
/// Most bytes of a reply.
const REPLY_MAX: usize = 16 << 20;
/// How long connecting may take.
const CONNECT_MAX: Duration = Duration::from_secs(5);
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

/// Asks the supervisor of a directory, and waits for its reply, however long what it is asked for takes.
pub fn ask(directory: &Path, request: Request) -> Result<Reply> {
    let path = directory.join(CONTROL);
    let what = format!(
        "no supervisor at {}: none of `snaprig ckpt launch`, `restart` or `receive` runs there",
        path.display()
    );
    let asked = || {
        let mut stream = Address::Unix(path).connect(CONNECT_MAX)?;
        lines::send(&mut stream, &request)?;
        lines::receive(stream, REPLY_MAX)
    };
    asked().map_err(|source| Error::io(what, source))
}

/// Where clients ask from now on. A directory that has a supervisor gets no other one.
pub fn listen(directory: &Path) -> Result<lines::Server> {
    let listening = || {
        fs::create_dir_all(directory)?;
        let listener = Listener::bind(&Address::Unix(directory.join(CONTROL)))?;
        lines::Server::new(listener, LIMITS)
    };
    listening().map_err(|source| Error::io(directory.display().to_string(), source))
}
