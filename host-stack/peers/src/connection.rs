//! Messages over a connection that does not block, in both directions.
//!
//! What must stay true: a peer that does not read, or announces long messages, gets no more memory than a maximum.

use std::{
    io::{self, Read, Write},
    os::fd::{AsFd, BorrowedFd},
};

use serde::{Serialize, de::DeserializeOwned};
use snaprig_wire::frame;

use crate::{frame::check_len, stream::Stream};

/// Most bytes that wait for a peer that does not read.
const WAITING_MAX: usize = 16 << 20;
/// Most bytes that are read at once, so that one peer does not keep others waiting.
const READ_MAX: usize = 256 << 10;

/// Why nothing more comes.
#[derive(Debug)]
pub enum End {
    /// The connection has ended: why.
    Closed(String),
    /// What came is no message.
    Nonsense(String),
}

/// A connection.
#[derive(Debug)]
pub struct Connection {
    stream: Stream,
    /// Came, and is no whole message yet.
    input: Vec<u8>,
    /// Has not left yet.
    output: Vec<u8>,
    /// Most bytes of a message that may come.
    incoming_max: usize,
    /// Most bytes of a message that leaves.
    outgoing_max: usize,
}

impl Connection {
    /// A connection on which a message that comes has at most so many bytes, and so has one that leaves.
    pub fn new(stream: Stream, incoming_max: usize, outgoing_max: usize) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            input: Vec::new(),
            output: Vec::new(),
            incoming_max,
            outgoing_max,
        })
    }

    /// From now on, messages that come may have so many bytes: the peer has proved who it is.
    pub fn set_incoming_max(&mut self, incoming_max: usize) {
        self.incoming_max = incoming_max;
    }

    /// Whether something waits to leave.
    pub fn is_writing(&self) -> bool {
        !self.output.is_empty()
    }

    /// Sends as much as goes now.
    pub fn send<T: Serialize>(&mut self, message: &T) -> io::Result<()> {
        let framed = frame::encode_framed(message);
        if framed.len() > self.outgoing_max + 4 || self.output.len() + framed.len() > WAITING_MAX {
            let what = "the peer does not read what it is sent, or it is too much";
            return Err(io::Error::other(what));
        }
        self.output.extend_from_slice(&framed);
        self.flush()
    }

    /// The same, of what waits.
    pub fn flush(&mut self) -> io::Result<()> {
        let mut at = 0;
        let result = loop {
            if at == self.output.len() {
                break Ok(());
            }
            match self.stream.write(&self.output[at..]) {
                Ok(0) => break Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => at += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break Err(error),
            }
        };
        self.output.drain(..at);
        result
    }

    /// The connection, which blocks from now on, and what has come over it and was no message yet; so that something else
    /// than messages can follow. What waits to leave must have left.
    pub fn into_parts(self) -> io::Result<(Stream, Vec<u8>)> {
        self.stream.set_nonblocking(false)?;
        Ok((self.stream, self.input))
    }

    /// Nothing more comes or goes: the next read says that it has ended.
    pub fn shut(&self) -> io::Result<()> {
        self.stream.shutdown()
    }

    /// Reads what is there. What came before the end can be had from [`Self::next_message`] still.
    pub fn read(&mut self) -> Result<(), End> {
        let mut chunk = [0; 16 << 10];
        let mut count = 0;
        while count < READ_MAX {
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(End::Closed("the connection has ended".into())),
                Ok(len) => {
                    self.input.extend_from_slice(&chunk[..len]);
                    count += len;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(End::Closed(error.to_string())),
            }
        }
        Ok(())
    }

    /// The next whole message of what was read.
    pub fn next_message<T: DeserializeOwned>(&mut self) -> Result<Option<T>, End> {
        let Some(prefix) = self.input.first_chunk::<4>() else {
            return Ok(None);
        };
        let len = u32::from_le_bytes(*prefix) as usize;
        check_len(len, self.incoming_max).map_err(End::Nonsense)?;
        let Some(body) = self.input.get(4..4 + len) else {
            return Ok(None);
        };
        let message = frame::decode(body);
        self.input.drain(..4 + len);
        let malformed = |_| End::Nonsense("what is no message".into());
        message.map(Some).map_err(malformed)
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    const FIRST_MAX: usize = 1024;
    const MESSAGE_MAX: usize = 1 << 20;

    fn pair() -> (Connection, UnixStream) {
        let (one, other) = UnixStream::pair().unwrap();
        let connection = Connection::new(Stream::Unix(one), FIRST_MAX, MESSAGE_MAX);
        (connection.unwrap(), other)
    }

    #[test]
    fn messages_come_whole_however_they_are_cut() {
        let (mut connection, mut peer) = pair();
        let framed = frame::encode_framed(&"some message".to_owned());
        for byte in framed.iter().chain(&framed) {
            peer.write_all(&[*byte]).unwrap();
            connection.read().unwrap();
        }
        for _ in 0..2 {
            let message: Option<String> = connection.next_message().unwrap();
            assert_eq!(message.as_deref(), Some("some message"));
        }
        assert!(connection.next_message::<String>().unwrap().is_none());
        drop(peer);
        assert!(matches!(connection.read(), Err(End::Closed(_))));
    }

    #[test]
    fn long_messages_are_refused_until_they_may_come_and_nonsense_always_is() {
        let (mut connection, mut peer) = pair();
        let len = (FIRST_MAX as u32 + 1).to_le_bytes();
        peer.write_all(&len).unwrap();
        connection.read().unwrap();
        assert!(matches!(
            connection.next_message::<String>(),
            Err(End::Nonsense(_))
        ));
        connection.set_incoming_max(MESSAGE_MAX);
        assert!(matches!(connection.next_message::<String>(), Ok(None)));
        let (mut connection, mut peer) = pair();
        peer.write_all(&[1, 0, 0, 0, 9]).unwrap();
        connection.read().unwrap();
        assert!(matches!(
            connection.next_message::<String>(),
            Err(End::Nonsense(_))
        ));
    }

    #[test]
    fn a_peer_that_does_not_read_is_not_kept_memory_for_without_end() {
        let (mut connection, _peer) = pair();
        let message = vec![7u8; MESSAGE_MAX / 2];
        let failed = (0..64).find_map(|_| connection.send(&message).err());
        assert!(failed.is_some());
        assert!(connection.output.len() <= WAITING_MAX);
    }
}
