//! Images in memory.

use std::{collections::VecDeque, io};

use crate::{Filled, Memory, Sink, Source};

impl Source for &[u8] {
    fn lend(&mut self, bytes: usize) -> io::Result<&[u8]> {
        let (now, later) = self.split_at(bytes.min(self.len()));
        *self = later;
        Ok(now)
    }

    fn skip(&mut self, bytes: u64) -> io::Result<()> {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        self.lend(bytes).map(drop)
    }
}

/// Keeps what is written until somebody takes it away: for a driver that may be interrupted between two writes.
#[derive(Default)]
pub struct Outbox {
    filled: VecDeque<Filled>,
    /// Bytes of the first that have been taken away.
    taken: usize,
}

impl Outbox {
    /// Bytes that are to be taken away next; none if there are none.
    pub fn front(&self) -> Option<&[u8]> {
        self.filled.front().map(|filled| &filled[self.taken..])
    }

    /// So many of those at the front have been taken away.
    pub fn took(&mut self, bytes: usize) {
        self.taken += bytes;
        while let Some(first) = self.filled.front()
            && self.taken >= first.len()
        {
            self.taken -= first.len();
            self.filled.pop_front();
        }
    }
}

impl Sink for Outbox {
    fn memory(&mut self, bytes: usize) -> io::Result<Box<dyn Memory>> {
        Ok(Box::new(Heap {
            bytes: Vec::new(),
            len: bytes,
        }))
    }

    fn write(&mut self, bytes: Filled) -> io::Result<()> {
        if !bytes.is_empty() {
            self.filled.push_back(bytes);
        }
        Ok(())
    }

    fn finish(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Memory of the heap, which is there when it is about to be used.
struct Heap {
    bytes: Vec<u8>,
    len: usize,
}

impl Memory for Heap {
    fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    fn populate(&mut self) {
        self.bytes = vec![0; self.len];
    }
}
