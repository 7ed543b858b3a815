//! A source of anything that can be read: a pipe, a socket, a file.

use std::io::{self, Read};

use crate::Source;

/// Reads as many bytes as are asked for, and none ahead.
pub struct Reading<R> {
    from: R,
    buffer: Vec<u8>,
}

impl<R: Read> Reading<R> {
    /// Reads from here.
    pub fn new(from: R) -> Self {
        Self {
            from,
            buffer: Vec::new(),
        }
    }

    /// What it reads from.
    pub fn get_ref(&self) -> &R {
        &self.from
    }
}

impl<R: Read> Source for Reading<R> {
    fn lend(&mut self, bytes: usize) -> io::Result<&[u8]> {
        // It only ever grows: what is in it need not be zeroed again.
        if self.buffer.len() < bytes {
            self.buffer.resize(bytes, 0);
        }
        let (room, mut done) = (&mut self.buffer[..bytes], 0);
        while done < bytes {
            match self.from.read(&mut room[done..]) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(&room[..done])
    }
}
