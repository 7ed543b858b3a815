//! What a source is told, and what it says is to be done.

use crate::{
    Buffers, Failure, Mode, Times,
    message::{Remote, ToSource, ToTarget},
};

/// What a source is told of a migration.
#[derive(Clone, Debug)]
pub struct Config {
    /// Its pool.
    pub buffers: Buffers,
    /// Where a peer can reach it.
    pub pool: Remote,
    /// Which way chunks go.
    pub mode: Mode,
    /// How long anything may take.
    pub times: Times,
    /// The processes.
    pub ranks: Vec<u32>,
}

/// What happened.
#[derive(Clone, Debug)]
pub enum Input {
    /// A writer waits for room: answered with [`Output::Room`] or [`Output::NoRoom`].
    Want {
        /// Of which process.
        rank: u32,
    },
    /// A writer has put so many bytes into its room, in front of what is left of it.
    Wrote {
        /// Of which process.
        rank: u32,
        /// How many; 0 gives the room back.
        bytes: u32,
    },
    /// A writer has so many bytes in memory of its own, and leaves its room, which was all of a chunk, empty for them.
    Lent {
        /// Of which process.
        rank: u32,
        /// Where they are.
        at: Remote,
        /// How many: no more than there was room for.
        bytes: u32,
    },
    /// What a writer has put into its chunk is to go on its way, though that is not full. It has no room now.
    Flush {
        /// Of which process.
        rank: u32,
    },
    /// A writer has written all.
    End {
        /// Of which process.
        rank: u32,
        /// [`Digest`](crate::Digest) of it.
        checksum: u64,
    },
    /// A writer is gone, and touches no room any more.
    WriterGone {
        /// Of which process.
        rank: u32,
    },
    /// A message came.
    Message(ToSource),
    /// What came is no message.
    Garbled,
    /// A chunk was put ([`Output::Put`]), or could not be.
    Put {
        /// Which.
        slot: u32,
        /// Whether it is there.
        is_done: bool,
    },
    /// The connection is gone, and nobody reaches the pool over it any more.
    Closed,
    /// Nobody wants the migration any more.
    Cancel,
    /// Time has passed: [`Source::deadline`](crate::Source::deadline).
    Tick,
}

/// What to do, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// A message leaves.
    Send(ToTarget),
    /// A writer may fill this.
    Room {
        /// Of which process.
        rank: u32,
        /// The chunk's number: it begins at so many times the length of a chunk in the pool.
        slot: u32,
        /// Where in the chunk the room begins.
        at: u32,
        /// How much there is.
        bytes: u32,
    },
    /// A writer that waits gets no room.
    NoRoom {
        /// Of which process.
        rank: u32,
        /// Why.
        failure: Failure,
    },
    /// The chunk whose memory a writer has lent is where it belongs, or will never be: the memory is the writer's again.
    GiveBack {
        /// Of which process.
        rank: u32,
        /// The number of the room that was left empty.
        slot: u32,
    },
    /// A chunk is to be written by RDMA; [`Input::Put`] says what came of it.
    Put {
        /// Its number.
        slot: u32,
        /// Where it is, if it is not in the pool.
        lent: Option<Remote>,
        /// How long it is.
        bytes: u32,
        /// Where it is to be.
        to: Remote,
    },
    /// A process's stream is at the target and was read there, or why not.
    StreamOver {
        /// Which process.
        rank: u32,
        /// How.
        result: Result<(), Failure>,
    },
    /// The connection is to end; [`Input::Closed`] says when it has.
    Disconnect,
    /// That was it: all streams are over, and nobody reaches the pool.
    Over,
}
