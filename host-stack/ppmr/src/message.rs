//! What the buffer managers of source and target say to each other, and its bytes.
//!
//! A message is postcard's bytes of [`ToTarget`] or [`ToSource`]: as they are where a carrier keeps messages apart (a
//! queue pair), behind their length (u32, little-endian) where it does not (TCP). None is longer than
//! [`MESSAGE_BYTES_MAX`], so receives of that size take any of them.
//!
//! What must stay true: what was encoded is decoded to the same; anything else is refused, never more; memory is taken for
//! what has come, not for what is announced.

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use snaprig_wire::frame;

use crate::{
    Mode,
    failure::{Failure, Nonsense, Refusal},
};

/// Of what is said here; another one is refused.
pub const VERSION: u32 = 1;
/// Most processes of a source.
pub const RANKS_MAX: usize = 1024;
/// The longest message: Open, with all ranks as long as they get.
pub const MESSAGE_BYTES_MAX: usize = 8 << 10;

const LENGTH_BYTES: usize = 4;

/// Where memory is that a peer may reach: for RDMA, a virtual address and the rkey of its region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Remote {
    /// Its first byte.
    pub address: u64,
    /// The key.
    pub rkey: u32,
}

/// What is to come over a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Open {
    /// [`VERSION`].
    pub version: u32,
    /// Which way chunks go.
    pub mode: Mode,
    /// The longest chunk.
    pub chunk_bytes: u32,
    /// Chunks that the source has: no more are announced at one time.
    pub chunks: u32,
    /// The processes, by their ranks.
    pub ranks: Vec<u32>,
}

/// What a source says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToTarget {
    /// First of all.
    Open(Open),
    /// A chunk is full: the request of the paper's section IV, step 3. Those of a process come in the order of their
    /// offsets.
    Full {
        /// Whose it is.
        rank: u32,
        /// Where it begins in the process's stream.
        offset: u64,
        /// How long it is.
        bytes: u32,
        /// Where it is, to be pulled.
        remote: Remote,
    },
    /// A chunk is where the target has placed it.
    Written {
        /// Whose it is.
        rank: u32,
        /// Where it begins.
        offset: u64,
    },
    /// All chunks of a process have been announced.
    End {
        /// Whose.
        rank: u32,
        /// How long its stream is.
        bytes: u64,
        /// [`Digest`](crate::Digest) of it.
        checksum: u64,
    },
    /// A process's stream has failed at the source.
    Fail {
        /// Whose.
        rank: u32,
        /// Why.
        failure: Failure,
    },
    /// The source is there.
    Alive,
}

/// What a target says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToSource {
    /// It takes what is to come.
    Opened,
    /// It does not.
    Refused(Refusal),
    /// It will not reach for this chunk any more: it has pulled it, or does not want it.
    Done {
        /// Whose it is.
        rank: u32,
        /// Where it begins.
        offset: u64,
    },
    /// There is room for this chunk.
    Place {
        /// Whose it is.
        rank: u32,
        /// Where it begins.
        offset: u64,
        /// Where it is to be.
        remote: Remote,
    },
    /// A process's stream has been read to its end, and has its checksum.
    Whole {
        /// Whose.
        rank: u32,
    },
    /// A process's stream has failed at the target.
    Fail {
        /// Whose.
        rank: u32,
        /// Why.
        failure: Failure,
    },
    /// The target is there.
    Alive,
}

/// A message's bytes.
pub fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    frame::encode(message)
}

/// A message's bytes behind their length.
pub fn encode_framed<T: Serialize>(message: &T) -> Vec<u8> {
    frame::encode_framed(message)
}

/// The message of exactly these bytes.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Nonsense> {
    match bytes.len() {
        0..=MESSAGE_BYTES_MAX => frame::decode(bytes).map_err(|_| Nonsense::Message),
        _ => Err(Nonsense::Message),
    }
}

/// What came over a connection that is a stream of bytes, cut into messages.
#[derive(Debug, Default)]
pub struct Messages {
    bytes: Vec<u8>,
    /// Where the next one begins.
    at: usize,
}

impl Messages {
    /// Adds what came. Whoever takes out all messages after each call keeps this as small as one message and what came.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.at);
        self.at = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole message. An error is the end of the connection.
    pub fn next_message<T: DeserializeOwned>(&mut self) -> Result<Option<T>, Nonsense> {
        let Some((length, rest)) = self.bytes[self.at..].split_first_chunk() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*length) as usize;
        if length > MESSAGE_BYTES_MAX {
            return Err(Nonsense::Message);
        }
        let Some(body) = rest.get(..length) else {
            return Ok(None);
        };
        let message = decode(body)?;
        self.at += LENGTH_BYTES + length;
        Ok(Some(message))
    }
}
