//! Commands and their answers as lines of JSON.
//!
//! ```text
//! client                          server
//!   | --- a command, as a line --->  |
//!   | <-- an answer, as a line ----  |
//! ```
//!
//! What must stay true: a line that comes is no longer than a maximum that the caller chooses. Who may wait reads through
//! a [`Receiver`], over an [`crate::Exchange`] where it may not take for ever; who has something else to do is a
//! [`Server`], which waits for no client.

mod server;

use std::io::{self, Read, Write};

use serde::{Serialize, de::DeserializeOwned};

pub use self::server::{ClientId, Limits, Server};

/// What is read at once, in bytes.
const CHUNK: usize = 4096;

/// Sends a line.
pub fn send(to: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    to.write_all(&to_line(message)?)
}

/// Receives a line of no more bytes than this; what comes behind it is lost.
pub fn receive<T: DeserializeOwned>(from: impl Read, bytes_max: usize) -> io::Result<T> {
    match Receiver::new(from, bytes_max).next_line()? {
        Some(line) => parse(&line),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// What a line says.
pub fn parse<T: DeserializeOwned>(line: &[u8]) -> io::Result<T> {
    serde_json::from_slice(line).map_err(io::Error::from)
}

/// Lines that come one after another.
#[derive(Debug)]
pub struct Receiver<R> {
    from: R,
    came: Incoming,
}

impl<R: Read> Receiver<R> {
    /// Receives lines of no more bytes than this.
    pub fn new(from: R, bytes_max: usize) -> Self {
        let came = Incoming::new(bytes_max);
        Self { from, came }
    }

    /// Waits for the next line, which has its end no more; none: there is none before the end of what comes.
    pub fn next_line(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            if let Some(line) = self.came.next_line()? {
                return Ok(Some(line));
            }
            match self.came.read_from(&mut self.from) {
                Ok(0) => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => drop(other?),
            }
        }
    }
}

/// What has come of lines, and is none yet.
#[derive(Debug)]
struct Incoming {
    bytes: Vec<u8>,
    bytes_max: usize,
}

impl Incoming {
    fn new(bytes_max: usize) -> Self {
        Self {
            bytes: Vec::new(),
            bytes_max,
        }
    }

    /// Reads once; how many bytes came.
    fn read_from(&mut self, from: &mut impl Read) -> io::Result<usize> {
        let mut chunk = [0; CHUNK];
        let count = from.read(&mut chunk)?;
        self.bytes.extend_from_slice(&chunk[..count]);
        Ok(count)
    }

    /// The first line, if it is whole.
    fn next_line(&mut self) -> io::Result<Option<Vec<u8>>> {
        let end = self.bytes.iter().position(|byte| *byte == b'\n');
        if end.unwrap_or(self.bytes.len()) > self.bytes_max {
            let what = format!("a line of more than {} bytes", self.bytes_max);
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        Ok(end.map(|end| {
            let rest = self.bytes.split_off(end + 1);
            let mut line = std::mem::replace(&mut self.bytes, rest);
            line.pop();
            line
        }))
    }
}

fn to_line(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_one_after_another_and_none_is_too_long() {
        let mut sent = Vec::new();
        send(&mut sent, &"one").unwrap();
        send(&mut sent, &"two").unwrap();
        assert_eq!(receive::<String>(&sent[..], 5).unwrap(), "one");
        let mut lines = Receiver::new(&sent[..], 5);
        assert_eq!(lines.next_line().unwrap().unwrap(), b"\"one\"");
        assert_eq!(lines.next_line().unwrap().unwrap(), b"\"two\"");
        assert!(lines.next_line().unwrap().is_none());
        let error = receive::<String>(&sent[..], 4).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        let cut = receive::<String>(&sent[..5], 5).unwrap_err();
        assert_eq!(cut.kind(), io::ErrorKind::UnexpectedEof);
    }
}
