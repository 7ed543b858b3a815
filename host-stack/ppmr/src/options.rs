//! How large pools and chunks are, which way chunks go, and how long anything may take.

use serde::{Deserialize, Serialize};

use crate::{Ns, message::RANKS_MAX};

/// Most chunks of a pool.
pub const CHUNKS_MAX: u32 = 1 << 16;

const SECOND: Ns = 1_000_000_000;

/// Which way chunks go. The paper's section IV has both, and measures the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// The target reads them by RDMA.
    #[default]
    Pull,
    /// The source writes them by RDMA.
    Push,
}

/// A pool of chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffers {
    /// All of it.
    pub pool_bytes: u64,
    /// A chunk of it.
    pub chunk_bytes: u32,
}

impl Default for Buffers {
    /// The paper's: 8 MiB in chunks of 128 KiB, which is what FUSE writes at once (section V-B).
    fn default() -> Self {
        Self {
            pool_bytes: 8 << 20,
            chunk_bytes: 128 << 10,
        }
    }
}

impl Buffers {
    /// How many chunks there are, if there is one for each of so many streams.
    pub fn chunks_for(&self, streams: usize) -> Result<u32, OptionsError> {
        let Self {
            pool_bytes,
            chunk_bytes,
        } = *self;
        if chunk_bytes == 0 {
            return Err(OptionsError::Chunk);
        }
        if !(1..=RANKS_MAX).contains(&streams) {
            return Err(OptionsError::Streams { streams });
        }
        let chunks = pool_bytes / u64::from(chunk_bytes);
        match u32::try_from(chunks) {
            Ok(chunks) if chunks <= CHUNKS_MAX && chunks as usize >= streams => Ok(chunks),
            _ => Err(OptionsError::Chunks {
                pool_bytes,
                chunk_bytes,
                streams,
            }),
        }
    }
}

/// How long anything may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// Until a connection is opened.
    pub open_ns: Ns,
    /// Who has said nothing for so long says that it is alive.
    pub alive_ns: Ns,
    /// Who has not been heard for so long is gone. Several times [`Self::alive_ns`].
    pub silence_ns: Ns,
    /// How long all of a connection's streams may stand still before those whose writers or readers are waited for fail.
    /// The others, [`Self::silence_ns`] later: the other side was to notice first.
    pub stall_ns: Ns,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            open_ns: 5 * SECOND,
            alive_ns: 5 * SECOND,
            silence_ns: 30 * SECOND,
            stall_ns: 120 * SECOND,
        }
    }
}

/// Why options make no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionsError {
    /// Chunks of nothing.
    #[error("chunks of 0 bytes")]
    Chunk,
    /// Too few chunks, or too many.
    #[error(
        "a pool of {pool_bytes} bytes in chunks of {chunk_bytes}, for {streams} processes: each needs a chunk of its own, and there are at most {CHUNKS_MAX}"
    )]
    Chunks {
        /// The pool.
        pool_bytes: u64,
        /// A chunk.
        chunk_bytes: u32,
        /// Streams that there may be.
        streams: usize,
    },
    /// Too few processes, or too many.
    #[error("{streams} processes: 1 to {RANKS_MAX}")]
    Streams {
        /// How many.
        streams: usize,
    },
    /// One of them twice.
    #[error("two processes of rank {rank}")]
    Rank {
        /// Which.
        rank: u32,
    },
    /// Memory past the end of all addresses.
    #[error("a pool that does not end below 2^64")]
    Address,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stream_has_a_chunk_or_the_options_are_refused() {
        assert_eq!(Buffers::default().chunks_for(8), Ok(64));
        assert_eq!(Buffers::default().chunks_for(64), Ok(64));
        assert!(Buffers::default().chunks_for(65).is_err());
        assert!(Buffers::default().chunks_for(0).is_err());
        let with = |pool_bytes, chunk_bytes| Buffers {
            pool_bytes,
            chunk_bytes,
        };
        assert_eq!(with(8, 0).chunks_for(1), Err(OptionsError::Chunk));
        assert!(with(u64::MAX, 1).chunks_for(1).is_err());
        assert!(with(3, 4).chunks_for(1).is_err());
    }
}
