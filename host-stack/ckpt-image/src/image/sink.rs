//! Where an image goes: any [`Write`], or a sink that keeps buffers while it writes.

use std::{
    io::{self, Write},
    ops::{Deref, Range},
};

use super::pool::Block;

/// The next bytes of an image: whole blocks, in memory aligned to a block. Its buffer is used again
/// when it is dropped.
pub struct Sealed {
    block: Block,
    range: Range<usize>,
}

impl Sealed {
    pub(super) fn new(block: Block, range: Range<usize>) -> Self {
        Self { block, range }
    }
}

impl Deref for Sealed {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.block.bytes()[self.range.clone()]
    }
}

/// Takes the bytes of an image, in order, on a thread of its own.
pub trait Sink: Send + 'static {
    /// Takes the next bytes. May keep them while it writes.
    fn write(&mut self, bytes: Sealed) -> io::Result<()>;

    /// There is nothing to take at the moment, and somebody may be waiting for buffers: waits until
    /// some that it keeps are written, and drops them. False: it keeps none.
    fn settle(&mut self) -> io::Result<bool> {
        Ok(false)
    }

    /// All bytes have been given: returns when they are where they belong.
    fn finish(&mut self) -> io::Result<()>;
}

impl<W: Write + Send + 'static> Sink for W {
    fn write(&mut self, bytes: Sealed) -> io::Result<()> {
        self.write_all(&bytes)
    }

    fn finish(&mut self) -> io::Result<()> {
        self.flush()
    }
}
