//! The buffers of a writer: a few, lent by its sink, used over and over.

use std::{
    io,
    ops::Range,
    sync::mpsc::{Receiver, SyncSender, sync_channel},
};

use crate::{Filled, Memory, Sink};

/// Memory of a pool's. Goes back when it is dropped. What was in it before is anything.
pub struct Buffer {
    /// There until it is dropped.
    memory: Option<Box<dyn Memory>>,
    home: SyncSender<Box<dyn Memory>>,
}

impl Buffer {
    /// All of it.
    pub fn bytes(&self) -> &[u8] {
        self.memory.as_ref().map_or(&[], |memory| memory.bytes())
    }

    /// All of it, to write.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        match &mut self.memory {
            Some(memory) => memory.bytes_mut(),
            None => &mut [],
        }
    }

    /// This part of it is the next of the image.
    pub fn filled(self, range: Range<usize>) -> Filled {
        Filled::new(self, range)
    }

    pub(crate) fn memory(&self) -> Option<&dyn Memory> {
        self.memory.as_deref()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            // The channel has room for all there are; without a pool it is the end of the memory.
            let _ = self.home.try_send(memory);
        }
    }
}

/// All buffers of a writer. They are populated as they are needed: memory is not free.
pub struct Pool {
    free: Receiver<Box<dyn Memory>>,
    home: SyncSender<Box<dyn Memory>>,
    /// Those that have not been used.
    unused: Vec<Box<dyn Memory>>,
    /// How many have been.
    used: usize,
}

impl Pool {
    /// A pool of so many buffers of so many bytes, lent by a sink.
    pub fn lent_by(sink: &mut impl Sink, buffers: usize, bytes: usize) -> io::Result<Self> {
        let (home, free) = sync_channel(buffers);
        let unused = (0..buffers).map(|_| sink.memory(bytes));
        Ok(Self {
            free,
            home,
            unused: unused.collect::<io::Result<_>>()?,
            used: 0,
        })
    }

    /// The next that is free; waits for it once all have been used. Somebody else has the sink, and settles it.
    pub fn take(&mut self) -> io::Result<Buffer> {
        match self.try_take() {
            Some(buffer) => Ok(buffer),
            // We hold a sender: it does not fail.
            None => Ok(self.buffer(self.free.recv().map_err(io::Error::other)?)),
        }
    }

    /// The next that is free, of a sink that is settled if there is none. Fails if that does not free one.
    pub fn take_of(&mut self, sink: &mut impl Sink) -> io::Result<Buffer> {
        loop {
            if let Some(buffer) = self.try_take() {
                return Ok(buffer);
            }
            if !sink.settle()? {
                let what = "all buffers of an image are filled and not taken away";
                return Err(io::Error::new(io::ErrorKind::WouldBlock, what));
            }
        }
    }

    fn try_take(&mut self) -> Option<Buffer> {
        let memory = self.free.try_recv().ok().or_else(|| self.populated())?;
        Some(self.buffer(memory))
    }

    fn buffer(&self, memory: Box<dyn Memory>) -> Buffer {
        Buffer {
            memory: Some(memory),
            home: self.home.clone(),
        }
    }

    /// Waits until all that have been used are back, and populates more until there are so many, or as many as there may
    /// be.
    pub fn settle(&mut self, buffers: usize) -> io::Result<()> {
        let mut all = Vec::new();
        for _ in 0..self.used {
            // We hold a sender: it does not fail.
            all.push(self.free.recv().map_err(io::Error::other)?);
        }
        while all.len() < buffers
            && let Some(memory) = self.populated()
        {
            all.push(memory);
        }
        for memory in all {
            // The channel has room for all there are.
            let _ = self.home.try_send(memory);
        }
        Ok(())
    }

    fn populated(&mut self) -> Option<Box<dyn Memory>> {
        let mut memory = self.unused.pop()?;
        memory.populate();
        self.used += 1;
        Some(memory)
    }
}
