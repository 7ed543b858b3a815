//! How a message becomes bytes: postcard, behind a length where the carrier is a byte stream.

use alloc::vec::Vec;
use serde::{Serialize, de::DeserializeOwned};

/// The longest message that any protocol here sends, in bytes: a run function with
/// [`crate::coi::BUFFERS_MAX`] buffers, all its numbers as long as they get.
pub const MESSAGE_MAX: usize = 1 << 20;

/// The bytes are not a message of the expected type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

impl core::fmt::Display for Malformed {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("malformed message")
    }
}

impl core::error::Error for Malformed {}

/// The message's bytes, without a length.
pub fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    postcard::to_allocvec(message).expect("messages hold only types that postcard can write")
}

/// Reads a message from exactly these bytes; left-over bytes are an error.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Malformed> {
    match postcard::take_from_bytes(bytes) {
        Ok((message, [])) => Ok(message),
        _ => Err(Malformed),
    }
}

/// The message's bytes behind their length (u32, little-endian), for byte streams.
pub fn encode_framed<T: Serialize>(message: &T) -> Vec<u8> {
    let body = encode(message);
    let mut framed = Vec::with_capacity(4 + body.len());
    framed.extend_from_slice(&(body.len() as u32).to_le_bytes());
    framed.extend_from_slice(&body);
    framed
}

/// The same, in `room`, for those who may not allocate; `None` if it is too small.
pub fn encode_framed_in<'a, T: Serialize>(message: &T, room: &'a mut [u8]) -> Option<&'a [u8]> {
    let (prefix, body) = room.split_first_chunk_mut()?;
    let len = postcard::to_slice(message, body).ok()?.len();
    *prefix = (len as u32).to_le_bytes();
    room.get(..4 + len)
}

/// The length in a frame's first four bytes, if it is one that a peer may send.
pub fn frame_len(prefix: [u8; 4]) -> Result<usize, Malformed> {
    match u32::from_le_bytes(prefix) as usize {
        len if len <= MESSAGE_MAX => Ok(len),
        _ => Err(Malformed),
    }
}
