//! Messages over a socket that does not block, in both directions.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, TcpStream},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
};

use serde::{Serialize, de::DeserializeOwned};
use snaprig_wire::frame;

use crate::message::{MESSAGE_MAX, STRANGER_MAX};

/// Most bytes that wait for a peer that does not read.
const WAITING_MAX: usize = 16 << 20;
/// Most bytes that are read at once, so that one peer does not keep others waiting.
const READ_MAX: usize = 256 << 10;

/// A socket, of whichever kind.
#[derive(Debug)]
pub enum Stream {
    /// Of this machine.
    Unix(UnixStream),
    /// Of any.
    Tcp(TcpStream),
}

impl Stream {
    pub(super) fn unix(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self::Unix(stream))
    }

    pub(super) fn tcp(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(Self::Tcp(stream))
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.read(into),
            Self::Tcp(stream) => stream.read(into),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.write(from),
            Self::Tcp(stream) => stream.write(from),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(stream) => stream.as_fd(),
            Self::Tcp(stream) => stream.as_fd(),
        }
    }
}

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
    /// The longest message that may come.
    most: usize,
}

impl Connection {
    /// With who has not proved anything.
    pub fn new(stream: Stream) -> Self {
        Self {
            stream,
            input: Vec::new(),
            output: Vec::new(),
            most: STRANGER_MAX,
        }
    }

    /// The peer is who it says.
    pub fn trust(&mut self) {
        self.most = MESSAGE_MAX;
    }

    /// Whether something waits to leave.
    pub fn is_writing(&self) -> bool {
        !self.output.is_empty()
    }

    /// Sends as much as goes now.
    pub fn send<T: Serialize>(&mut self, message: &T) -> io::Result<()> {
        let framed = frame::encode_framed(message);
        if framed.len() > MESSAGE_MAX + 4 || self.output.len() + framed.len() > WAITING_MAX {
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

    /// Nothing more comes or goes: the next read says that it has ended.
    pub fn shut(&self) -> io::Result<()> {
        match &self.stream {
            Stream::Unix(stream) => stream.shutdown(Shutdown::Both),
            Stream::Tcp(stream) => stream.shutdown(Shutdown::Both),
        }
    }

    /// Reads what is there. What came before the end can be had from [`Self::next`] still.
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
    pub fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, End> {
        let Some(prefix) = self.input.first_chunk::<4>() else {
            return Ok(None);
        };
        let len = u32::from_le_bytes(*prefix) as usize;
        if len > self.most {
            let what = format!("a message of {len} bytes: {} at most", self.most);
            return Err(End::Nonsense(what));
        }
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

    fn pair() -> (Connection, UnixStream) {
        let (one, other) = UnixStream::pair().unwrap();
        (Connection::new(Stream::unix(one).unwrap()), other)
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
            let message: Option<String> = connection.next().unwrap();
            assert_eq!(message.as_deref(), Some("some message"));
        }
        assert!(connection.next::<String>().unwrap().is_none());
        drop(peer);
        assert!(matches!(connection.read(), Err(End::Closed(_))));
    }

    #[test]
    fn strangers_say_little_and_nobody_nonsense() {
        let (mut connection, mut peer) = pair();
        let len = (STRANGER_MAX as u32 + 1).to_le_bytes();
        peer.write_all(&len).unwrap();
        connection.read().unwrap();
        assert!(matches!(connection.next::<String>(), Err(End::Nonsense(_))));
        connection.trust();
        assert!(matches!(connection.next::<String>(), Ok(None)));
        let (mut connection, mut peer) = pair();
        peer.write_all(&[1, 0, 0, 0, 9]).unwrap();
        connection.read().unwrap();
        assert!(matches!(connection.next::<String>(), Err(End::Nonsense(_))));
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
