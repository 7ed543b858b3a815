//! How a message becomes bytes: postcard, behind a length where the carrier is a byte stream.

use alloc::vec::Vec;
use serde::{Serialize, de::DeserializeOwned};

/// What is received at once where more than one message may be there already, in bytes.
const AHEAD: usize = 4096;

/// The longest message that any protocol here sends, in bytes: a run function with
/// 16,384 buffers, all its numbers as long as they get.
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

/// Messages of a byte stream. Each call to receive is dear, so what has come behind a message is kept for the next.
#[derive(Debug, Default)]
pub struct Incoming(Vec<u8>);

impl Incoming {
    /// Whether there are bytes that nobody will have to wait for.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next message. `receive` waits for bytes, at least one, and says how many they are.
    pub fn next<T: DeserializeOwned, E>(
        &mut self,
        mut receive: impl FnMut(&mut [u8]) -> Result<usize, E>,
    ) -> Result<Result<T, Malformed>, E> {
        loop {
            let wanted = match self.0.split_first_chunk() {
                None => 4,
                Some((prefix, rest)) => match frame_len(*prefix) {
                    Err(malformed) => return Ok(Err(malformed)),
                    Ok(len) if len <= rest.len() => {
                        let message = decode(&rest[..len]);
                        self.0.drain(..4 + len);
                        return Ok(message);
                    }
                    Ok(len) => 4 + len,
                },
            };
            let came = self.0.len();
            self.0.resize(wanted.max(came + AHEAD), 0);
            let received = receive(&mut self.0[came..]);
            let count = received.as_ref().map_or(0, |count| *count);
            self.0.truncate(came + count);
            received?;
        }
    }

    /// The next message, if it is there. `receive` does not wait, and says that 0 bytes came when there are none.
    pub fn next_there<T: DeserializeOwned, E>(
        &mut self,
        mut receive: impl FnMut(&mut [u8]) -> Result<usize, E>,
    ) -> Result<Option<Result<T, Malformed>>, E> {
        let next = self.next(|to| match receive(to) {
            Ok(0) => Err(None),
            received => received.map_err(Some),
        });
        match next {
            Ok(message) => Ok(Some(message)),
            Err(None) => Ok(None),
            Err(Some(error)) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::{string::String, vec};

    /// Receives so many messages from a stream that comes in parts of this many bytes.
    fn receive(stream: &[u8], part: usize, count: usize) -> Vec<Result<String, Malformed>> {
        let (mut incoming, mut rest) = (Incoming::default(), stream);
        let mut next = || {
            incoming.next(|to| {
                let now;
                (now, rest) = rest
                    .split_at_checked(part.min(to.len()))
                    .unwrap_or((rest, &[]));
                to[..now.len()].copy_from_slice(now);
                if now.is_empty() {
                    Err(())
                } else {
                    Ok(now.len())
                }
            })
        };
        (0..count).map_while(|_| next().ok()).collect()
    }

    #[test]
    fn messages_are_the_same_however_they_come() {
        let texts = [String::from("one"), String::new(), "x".repeat(3 * AHEAD)];
        let all: Vec<_> = texts.iter().flat_map(encode_framed).collect();
        for part in [1, 3, 7, AHEAD, all.len()] {
            let received = receive(&all, part, 4);
            assert_eq!(received, texts.clone().map(Ok), "in parts of {part}");
        }
    }

    #[test]
    fn what_is_not_all_there_is_kept_until_it_is() {
        let stream = encode_framed(&String::from("whole"));
        let mut incoming = Incoming::default();
        for (part, expected) in [
            (&stream[..7], None),
            (&stream[7..], Some(Ok("whole".into()))),
        ] {
            let mut rest = part;
            let next = incoming.next_there(|to| {
                let count = rest.len().min(to.len());
                to[..count].copy_from_slice(&rest[..count]);
                rest = &rest[count..];
                Ok::<_, ()>(count)
            });
            assert_eq!(next, Ok::<Option<Result<String, _>>, _>(expected));
        }
    }

    #[test]
    fn what_is_no_message_is_told() {
        let malformed = vec![Err(Malformed)];
        let long = (MESSAGE_MAX as u32 + 1).to_le_bytes();
        assert_eq!(receive(&long, 4, 1), malformed);
        let wrong = [2, 0, 0, 0, 5, b'x'];
        assert_eq!(receive(&wrong, 6, 1), malformed);
        assert_eq!(receive(&[1, 0, 0], 3, 1), []);
    }
}
