//! COI's messages: host process, COI daemon, offload process. All are framed ([`crate::frame`]) on
//! SCIF connections.
//!
//! The paper (section 4.1) finds four uses of SCIF in COI, and so do we:
//!
//! ```text
//! case 1  create, destroy   host <-> daemon          [`ToDaemon`], [`FromDaemon`]
//! case 2  buffer RDMA       host <-> offload process  windows and RMA only
//! case 3  commands          host --> offload process  [`Command`], [`Answer`], in sequence
//! case 4  run functions     host --> offload process  [`RunFunction`], [`RunResult`], one
//!                                                     connection a pipeline
//! ```
//!
//! A host process opens a connection to the daemon's port for case 1 (one a process), registers the
//! program's bytes there as a window and sends [`ToDaemon::Create`]; the daemon reads the window,
//! which stays until it has answered. The new process announces a SCIF port to the daemon, which passes it on.
//! The host connects to that port once for each of the others, and says which with [`Channel`].

use alloc::{string::String, vec::Vec};
use serde::{Deserialize, Serialize};

/// Most bytes of miscellaneous data in a run function (COI_PIPELINE_MAX_IN_MISC_DATA_LEN).
pub const MISC_DATA_MAX: usize = 32_768;
/// Most pipelines of a process (COI_PIPELINE_MAX_PIPELINES).
pub const PIPELINES_MAX: u32 = 512;
/// Most buffers of a run function.
pub const BUFFERS_MAX: usize = 16_384;
/// Most bytes of a program.
pub const BINARY_BYTES_MAX: u64 = 1 << 30;

/// From the host to the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToDaemon {
    /// Make an offload process of the program in a window of this connection.
    Create(Program),
    /// Run a program that knows nothing of COI, its stdio on this connection. It is on the card
    /// already: its name is its path, and there is no window.
    Native(Program),
    /// This connection carries [`crate::snapify::Request`]s from now on.
    Snapify,
    /// Look after a process that was restored, as the connection that created it did.
    Adopt {
        /// The process.
        pid: i32,
    },
    /// End the process.
    Destroy,
    /// Bytes for a native program's standard input; none at its end.
    Stdin(Vec<u8>),
}

/// A program to run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// Name of the file on the card, or its path if it is there.
    pub name: String,
    /// Bytes of the program.
    pub bytes: u64,
    /// Where they are in the host's registered address space.
    pub window: i64,
    /// Arguments, the program's name first.
    pub argv: Vec<String>,
    /// Environment, `NAME=value`.
    pub env: Vec<String>,
}

/// From the daemon to the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromDaemon {
    /// The process runs and waits for the host's channels on this SCIF port.
    Created {
        /// The process.
        pid: i32,
        /// The port.
        port: u16,
        /// Where its program is on the card.
        path: String,
    },
    /// It could not be done.
    Failed {
        /// A Linux error number.
        errno: i32,
        /// What went wrong.
        why: String,
    },
    /// To [`ToDaemon::Adopt`]: the process lives as long as this connection.
    Adopted,
    /// The process ended.
    Exited(Exit),
    /// What a native program wrote: 1 standard output, 2 standard error.
    Output(u8, Vec<u8>),
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Exit {
    /// exit(2).
    Code(i32),
    /// By a signal.
    Signal(i32),
}

/// The first message on a connection to an offload process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Channel {
    /// Case 2.
    Dma,
    /// Case 3.
    Command,
    /// Case 4, of this pipeline.
    Pipeline(u32),
}

/// Case 3, client to server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// The address of a run function.
    Function(String),
    /// Make a buffer: a file of local store, mapped and registered.
    CreateBuffer {
        /// The host's number for it.
        id: u64,
        /// Bytes, whole pages.
        len: u64,
    },
    /// Take a buffer away.
    DestroyBuffer {
        /// Its number.
        id: u64,
    },
    /// After a restore: the windows of all buffers on the new connection.
    Windows,
    /// No more commands until resume (only pause sends it).
    Shutdown,
    /// The program may leave COIProcessWaitForShutdown.
    EndProcess,
}

/// Case 3, server to client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// Done.
    Done,
    /// Where the function is.
    Function(u64),
    /// A buffer's window.
    Window(Window),
    /// The windows of all buffers.
    Windows(Vec<Window>),
    /// It could not be done.
    Failed {
        /// A Linux error number.
        errno: i32,
        /// What went wrong.
        why: String,
    },
}

/// Where a buffer's memory is in the offload process's registered address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    /// The buffer.
    pub id: u64,
    /// Offset of its window.
    pub offset: i64,
    /// Bytes.
    pub len: u64,
}

/// Case 4, Pipe_Thread1 to Pipe_Thread2.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunFunction {
    /// Address of the function, from [`Answer::Function`].
    pub function: u64,
    /// Buffers that it is given.
    pub buffers: Vec<u64>,
    /// Miscellaneous data.
    pub misc: Vec<u8>,
    /// Bytes of its return value.
    pub return_len: u16,
}

/// Case 4, Pipe_Thread2 to Pipe_Thread1.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RunResult {
    /// The function returned, with this value.
    Returned(Vec<u8>),
    /// It was not run: no such buffer or function.
    Refused(String),
}
