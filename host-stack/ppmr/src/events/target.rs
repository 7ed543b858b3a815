//! What a target is told, and what it says is to be done.

use crate::{
    Buffers, Failure, Times,
    message::{Remote, ToSource, ToTarget},
};

/// The stream of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId {
    /// The connection that it comes over: a number of the driver's choosing, another one for each.
    pub connection: u64,
    /// The process.
    pub rank: u32,
}

/// What happened.
#[derive(Clone, Debug)]
pub enum Input {
    /// A source has connected.
    Connected {
        /// Its number.
        connection: u64,
    },
    /// A message came.
    Message {
        /// Over which connection.
        connection: u64,
        /// What was said.
        message: ToTarget,
    },
    /// What came is no message.
    Garbled {
        /// Over which connection.
        connection: u64,
    },
    /// A connection is gone, and nothing reaches the pool over it any more.
    Closed {
        /// Which.
        connection: u64,
    },
    /// A chunk was pulled ([`Output::Pull`]), or could not be.
    Pulled {
        /// Into which chunk of the pool.
        slot: u32,
        /// Whether it is there.
        is_done: bool,
    },
    /// A reader waits for bytes, beside those that it has: answered with [`Output::Part`], [`Output::Drained`] or [`Output::NoPart`].
    Want {
        /// Of which stream.
        stream: StreamId,
    },
    /// A reader is done with so many bytes of what it was given, from the first on, and touches nothing of them any more. It
    /// has the others still.
    Took {
        /// Of which stream.
        stream: StreamId,
        /// How many.
        bytes: u32,
    },
    /// All that a reader has read has this checksum.
    Checked {
        /// Of which stream.
        stream: StreamId,
        /// [`Digest`](crate::Digest) of it.
        checksum: u64,
    },
    /// A reader is gone, and touches nothing any more.
    ReaderGone {
        /// Of which stream.
        stream: StreamId,
    },
    /// Time has passed: [`Target::deadline`](crate::Target::deadline).
    Tick,
}

/// What to do, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// A message leaves.
    Send {
        /// Over which connection.
        connection: u64,
        /// What is said.
        message: ToSource,
    },
    /// A process is to come: somebody may begin to restart it, and read.
    Begin {
        /// Its stream.
        stream: StreamId,
    },
    /// A chunk is to be read by RDMA; [`Input::Pulled`] says what came of it.
    Pull {
        /// Over which connection.
        connection: u64,
        /// Into which chunk of the pool: it begins at so many times the length of a chunk.
        slot: u32,
        /// How much.
        bytes: u32,
        /// From where.
        from: Remote,
    },
    /// These are the next bytes of a stream, for its reader, which has waited.
    Part {
        /// Which stream.
        stream: StreamId,
        /// The chunk that they are in.
        slot: u32,
        /// Where in the chunk they begin.
        at: u32,
        /// How many they are.
        bytes: u32,
    },
    /// A reader that waits has read all, and is to say which checksum that has.
    Drained {
        /// Of which stream.
        stream: StreamId,
    },
    /// A reader that waits gets nothing.
    NoPart {
        /// Of which stream.
        stream: StreamId,
        /// Why.
        failure: Failure,
    },
    /// A stream was read to its end and has its checksum, or why not. A reader of a stream that has failed is to end, if it
    /// has not.
    StreamOver {
        /// Which.
        stream: StreamId,
        /// How.
        result: Result<(), Failure>,
    },
    /// A connection is to end; [`Input::Closed`] says when it has.
    Disconnect {
        /// Which.
        connection: u64,
        /// Why.
        failure: Failure,
    },
    /// A connection has ended, and nothing of the pool is its any more.
    Over {
        /// Which.
        connection: u64,
    },
}

/// What a target is told.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Its pool.
    pub buffers: Buffers,
    /// Where a peer can reach it, if chunks are to be put there.
    pub pool: Remote,
    /// Streams that there may be at one time, of all sources: a chunk is set aside for each.
    pub streams_max: u32,
    /// How long anything may take.
    pub times: Times,
}

impl Default for Config {
    /// As many streams as a node of two of the paper's has processes.
    fn default() -> Self {
        Self {
            buffers: Buffers::default(),
            pool: Remote::default(),
            streams_max: 16,
            times: Times::default(),
        }
    }
}
