//! Why the stream of a process failed. Both sides use the same names, and tell each other.

use serde::{Deserialize, Serialize};

/// Why the stream of a process failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, thiserror::Error)]
pub enum Failure {
    /// Who wrote it is gone, or does not do as was agreed.
    #[error("the process's image ended before it was whole")]
    Writer,
    /// Who writes it is there, and writes nothing.
    #[error("the process's image is not written on")]
    WriterStalled,
    /// Who read it is gone, or does not do as was agreed.
    #[error("whoever restarts the process is gone")]
    Reader,
    /// Who reads it is there, and reads nothing.
    #[error("whoever restarts the process reads nothing")]
    ReaderStalled,
    /// What was read is not what was written.
    #[error("the process's image has another checksum at the target")]
    Checksum,
    /// An RDMA operation failed.
    #[error("a chunk could not be transferred")]
    Transfer,
    /// The connection has ended.
    #[error("the connection between source and target was lost")]
    Lost,
    /// The connection is there, and nothing comes.
    #[error("the other side is silent")]
    Silent,
    /// The other side is alive, and nothing moves.
    #[error("the other side is alive, and does nothing")]
    PeerStalled,
    /// Nobody wants it any more.
    #[error("it was cancelled")]
    Cancelled,
    /// The target does not take it.
    #[error("the target refuses: {0}")]
    Refused(#[from] Refusal),
    /// The other side says what makes no sense.
    #[error("the other side makes no sense: {0}")]
    Nonsense(#[from] Nonsense),
}

/// Why a target takes nothing over a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, thiserror::Error)]
pub enum Refusal {
    /// Another version of the protocol.
    #[error("it speaks version {version}")]
    Version {
        /// Its own.
        version: u32,
    },
    /// Its chunks are smaller than the source's, or the source's are nothing.
    #[error("its chunks are of {chunk_bytes} bytes")]
    ChunkBytes {
        /// Its own.
        chunk_bytes: u32,
    },
    /// It has too little memory for all of these streams.
    #[error("it has memory for {streams} more processes")]
    Memory {
        /// For how many it has.
        streams: u32,
    },
    /// No processes, one twice, or a pool that there cannot be.
    #[error("what is to come makes no sense")]
    Invalid,
}

/// What makes no sense of what a peer said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, thiserror::Error)]
pub enum Nonsense {
    /// Bytes that are no message.
    #[error("no message")]
    Message,
    /// It does not make sense now, or not in this mode.
    #[error("a message at the wrong time")]
    Now,
    /// There is no such process.
    #[error("a process that there is not")]
    Rank,
    /// A chunk is not where it should be in its stream, or there is none.
    #[error("a chunk that there is not")]
    Offset,
    /// A chunk of nothing, or of more than was agreed.
    #[error("a chunk of a wrong length")]
    Length,
    /// More chunks than the source said that it has.
    #[error("more chunks than it has")]
    Chunks,
    /// The stream's length is another one.
    #[error("a stream of another length")]
    Total,
}
