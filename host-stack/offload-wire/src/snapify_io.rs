//! Snapify-IO between two daemons (paper section 6): one file, one SCIF connection, RDMA.
//!
//! The daemon beside the user process is the *requester*. It registers a window of
//! [`BUFFER_BYTES`], which it uses as [`SLOTS`] slots in turn, so that one is filled while the
//! other is emptied. The daemon beside the file is the *server*. Only the server does RMA.
//!
//! ```text
//!  write mode                                read mode
//!  requester            server               requester            server
//!    Open      ------->  NAME.partial          Open      ------->  opens, reads its sums
//!              <-------  Opened                          <-------  Opened {len}
//!    Filled 0  ------->  vreadfrom, saves                <-------  vwriteto, Filled 0
//!    Filled 1  ------->                                  <-------  vwriteto, Filled 1
//!              <-------  Drained 0             Drained 0 ------->
//!    Filled 0  ------->  ...                             <-------  Filled 0 ...
//!    Finish    ------->  fsync, rename                   <-------  Finish
//!              <-------  Finished              Finished  ------->
//!  either side, at any time: Failed, and the connection is over.
//! ```
//!
//! So the bytes flow from a [`Source`] to a [`Sink`], whoever asked for them:
//!
//! ```text
//! Source: Opening -> Moving -> Finishing -> Done        Sink: Opening -> Moving -> Finishing -> Done
//!            Opened     End       Finished                      Opened     Finish     committed
//! ```
//!
//! What must stay true: slots are used in turn, and a slot belongs to one side at a time; each
//! [`Message::Filled`] carries the hash of its bytes, checked before they go any further; a sink
//! commits only after [`Message::Finish`] with the right count, so that a connection that tears
//! before it leaves nothing; and each machine says [`Output::Done`] exactly once.

use alloc::{collections::VecDeque, string::String};
use serde::{Deserialize, Serialize};

mod sink;
mod source;
#[cfg(test)]
mod tests;

pub use sink::Sink;
pub use source::Source;

/// Version of these messages; daemons that differ do not talk.
pub const VERSION: u32 = 2;
/// Bytes of the registered buffer (the paper's 4 MiB).
pub const BUFFER_BYTES: usize = 4 << 20;
/// Parts of the buffer.
pub const SLOTS: u8 = 2;
/// Bytes of a part.
pub const SLOT_BYTES: usize = BUFFER_BYTES / SLOTS as usize;
/// The Unix socket on a card where `snapify_iod` serves local programs.
pub const SOCKET: &str = "/run/snapify_iod.sock";
/// The same for programs of the host, in the rig's directory.
pub const RIG_SOCKET: &str = "snapify_io.sock";
/// What a user process that reads leaves with its daemon.
pub const UNREAD: u8 = b'!';
/// Longest path, in bytes (`PATH_MAX`).
pub const PATH_BYTES_MAX: usize = 4096;

/// `EPROTO`: the peer broke the protocol.
const EPROTO: i32 = 71;
/// `ECONNRESET`: the connection tore.
const ECONNRESET: i32 = 104;

/// Which way the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mode {
    /// From the file to the requester.
    Read,
    /// From the requester to the file.
    Write,
}

/// What a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// Part of a snapshot: its checksums are beside it, and it is not read without them.
    Snapshot,
    /// A program's own.
    Plain,
}

/// What a user process asks its local daemon for, over [`SOCKET`]; the daemon answers with
/// [`Message::Opened`] or [`Message::Failed`]. The bytes follow as they are.
///
/// In write mode, after the end of the stream, [`Message::Finished`] or [`Message::Failed`] comes back.
/// In read mode the user process sends one more byte ([`UNREAD`]), which the daemon takes after the last one of the
/// file: who closes a socket with bytes in it resets it (unix(7), ECONNRESET), so that a stream that is not whole
/// ends with an error whatever ended it, the daemon's death too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalOpen {
    /// What the file is.
    pub kind: Kind,
    /// SCIF node whose file it is.
    pub node: u16,
    /// Direction.
    pub mode: Mode,
    /// Absolute path on that node.
    pub path: String,
}

/// What two daemons say to each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// The requester's first message.
    Open {
        /// [`VERSION`].
        version: u32,
        /// What the file is.
        kind: Kind,
        /// Direction.
        mode: Mode,
        /// Absolute path on the server's node.
        path: String,
        /// Offset of the requester's window of [`BUFFER_BYTES`].
        window: i64,
    },
    /// The server's answer.
    Opened {
        /// Length of the file in bytes; 0 in write mode.
        len: u64,
    },
    /// From the source: a slot holds bytes.
    Filled {
        /// Which.
        slot: u8,
        /// How many bytes.
        len: u32,
        /// Their XXH3-64.
        hash: u64,
    },
    /// From the sink: a slot may be filled again.
    Drained {
        /// Which.
        slot: u8,
    },
    /// From the source: that was all.
    Finish {
        /// Bytes of all slots together.
        bytes: u64,
    },
    /// From the sink: the bytes are where they belong.
    Finished {
        /// Bytes of all slots together.
        bytes: u64,
    },
    /// The transfer is over and nothing of it remains.
    Failed(Failure),
}

impl Message {
    /// The bytes of [`Message::Finished`], if this is its encoding. Reads it without allocating.
    pub fn finished(encoded: &[u8]) -> Option<u64> {
        // A variant is its number, then its fields.
        let mut room = [0; 2];
        let finished = postcard::to_slice(&Self::Finished { bytes: 0 }, &mut room).ok()?;
        let (tag, rest) = encoded.split_first()?;
        let bytes = postcard::take_from_bytes(rest).ok();
        let bytes = bytes.filter(|_| finished.first() == Some(tag));
        bytes.and_then(|(bytes, left)| left.is_empty().then_some(bytes))
    }
}

/// Why a transfer failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// A Linux error number.
    pub errno: i32,
    /// The file.
    pub path: String,
    /// Byte offset in the file.
    pub offset: u64,
    /// What went wrong, for people.
    pub why: String,
}

impl core::fmt::Display for Failure {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Self {
            path, offset, why, ..
        } = self;
        write!(f, "{path}: {why}, at byte {offset}")
    }
}

impl core::error::Error for Failure {}

/// What happened, for [`Machine::handle`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// The peer sent this.
    Peer(Message),
    /// Answers [`Output::Fill`]: this many bytes (at least 1) are in the slot.
    Filled {
        /// How many bytes.
        len: u32,
        /// Their XXH3-64.
        hash: u64,
    },
    /// Answers [`Output::Fill`]: there are no more bytes.
    End,
    /// Answers [`Output::Take`]: the bytes are saved.
    Taken,
    /// Answers [`Output::Commit`]: everything is safe.
    Committed,
    /// The last output could not be done.
    Failed(Failure),
    /// The connection tore.
    Lost,
}

/// What to do next, from [`Machine::poll_output`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Send this to the peer.
    Send(Message),
    /// The server opened the file, which has this many bytes.
    Opened {
        /// Length of the file; 0 in write mode.
        len: u64,
    },
    /// Put the next bytes in this slot. Answer with `Filled`, `End` or `Failed`.
    Fill {
        /// Which.
        slot: u8,
    },
    /// Take the bytes out of this slot, check their hash, save them. Answer with `Taken` or
    /// `Failed`.
    Take {
        /// Which.
        slot: u8,
        /// How many bytes.
        len: u32,
        /// What their XXH3-64 must be.
        hash: u64,
    },
    /// All bytes were taken: make them permanent. Answer with `Committed` or `Failed`.
    Commit {
        /// How many bytes there are.
        bytes: u64,
    },
    /// The transfer is over: the number of bytes, or why not. Nothing follows.
    Done(Result<u64, Failure>),
}

/// [`Source`] or [`Sink`]: call [`Machine::handle`] for everything that happens and then
/// [`Machine::poll_output`] until it is empty; when it is, only the peer can move things on.
pub trait Machine {
    /// Takes note of what happened. After [`Output::Done`], nothing has an effect.
    fn handle(&mut self, input: Input);

    /// The next thing to do.
    fn poll_output(&mut self) -> Option<Output>;
}

/// Where a machine is (see the module's diagram).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Opening,
    Moving,
    Finishing,
    Done,
}

/// What source and sink have in common: the file's name, the count, the outputs.
#[derive(Debug)]
struct Common {
    state: State,
    path: String,
    bytes: u64,
    outputs: VecDeque<Output>,
}

impl Common {
    fn new(state: State, path: &str, first: Message) -> Self {
        let outputs = VecDeque::from([Output::Send(first)]);
        Self {
            state,
            path: path.into(),
            bytes: 0,
            outputs,
        }
    }

    fn send(&mut self, message: Message) {
        self.outputs.push_back(Output::Send(message));
    }

    /// Ends the transfer; outputs that were not yet done are void.
    fn done(&mut self, result: Result<u64, Failure>) {
        self.state = State::Done;
        self.outputs.push_back(Output::Done(result));
    }

    /// Fails on this side, and tells the peer.
    fn fail(&mut self, failure: Failure) {
        self.outputs.clear();
        self.send(Message::Failed(failure.clone()));
        self.done(Err(failure));
    }

    /// The peer's failure, or the loss of the peer.
    fn end(&mut self, failure: Failure) {
        self.outputs.clear();
        self.done(Err(failure));
    }

    fn lost(&mut self) {
        let failure = self.failure(ECONNRESET, "the connection to the other daemon tore");
        self.end(failure);
    }

    fn protocol_error(&mut self) {
        let failure = self.failure(EPROTO, "message out of turn");
        self.fail(failure);
    }

    fn failure(&self, errno: i32, why: &str) -> Failure {
        Failure {
            errno,
            path: self.path.clone(),
            offset: self.bytes,
            why: why.into(),
        }
    }
}

/// The slot that comes after `slot`.
fn after(slot: u8) -> u8 {
    (slot + 1) % SLOTS
}
