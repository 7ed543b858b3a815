//! Messages over a byte stream, one after another: each is postcard, behind its length ([`snaprig_wire::frame`]).

use std::io::{self, Read, Write};

use serde::{Serialize, de::DeserializeOwned};
use snaprig_wire::frame;

/// Sends a message.
pub fn send(to: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    to.write_all(&frame::encode_framed(message))
}

/// Waits for a message of no more bytes than this.
pub fn receive<T: DeserializeOwned>(from: &mut impl Read, bytes_max: usize) -> io::Result<T> {
    let mut prefix = [0; 4];
    from.read_exact(&mut prefix)?;
    let len = u32::from_le_bytes(prefix) as usize;
    check_len(len, bytes_max).map_err(invalid)?;
    let mut body = Vec::new();
    // Memory is taken for what has come, not for what is announced.
    from.take(len as u64).read_to_end(&mut body)?;
    if body.len() != len {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    frame::decode(&body).map_err(invalid)
}

/// Whether a message may be so long; if not, why.
pub(crate) fn check_len(len: usize, bytes_max: usize) -> Result<(), String> {
    match len <= bytes_max {
        true => Ok(()),
        false => Err(format!("a message of {len} bytes: {bytes_max} at most")),
    }
}

fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(bytes: &[u8]) -> Result<String, io::ErrorKind> {
        receive(&mut &*bytes, 8).map_err(|error| error.kind())
    }

    #[test]
    fn a_message_comes_as_it_was_sent() {
        let mut sent = Vec::new();
        send(&mut sent, &"one").unwrap();
        assert_eq!(received(&sent).as_deref(), Ok("one"));
    }

    #[test]
    fn what_is_too_long_cut_or_no_message_is_refused() {
        let mut sent = Vec::new();
        send(&mut sent, &"one").unwrap();
        for len in 0..sent.len() {
            let cut = received(&sent[..len]);
            assert_eq!(cut, Err(io::ErrorKind::UnexpectedEof), "{len} bytes");
        }
        for wrong in [
            &[9, 0, 0, 0][..],
            &[2, 0, 0, 0, 5, b'x'],
            &[2, 0, 0, 0, 0, 0],
        ] {
            assert_eq!(received(wrong), Err(io::ErrorKind::InvalidData));
        }
    }
}
