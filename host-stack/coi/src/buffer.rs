//! Buffers: memory of the host that is a window, and a file of local store on the card that is
//! one too; RMA between them (paper section 2).

use std::sync::{Arc, Mutex, atomic::Ordering};

use snaprig_scif::client::{Endpoint, ScifError, SharedMemory};
use snaprig_wire::coi::{Answer, Command};

use crate::{CoiError, Process, machine::Region, process::lock};

const READ_WRITE: u8 = 3;

/// A buffer of a process.
pub struct Buffer {
    inner: Arc<BufferInner>,
    process: Process,
}

pub(crate) struct BufferInner {
    pub id: u64,
    memory: SharedMemory,
    /// Offsets of the windows: the host's, the card's. They change on restore (section 4.3).
    pub windows: Mutex<(i64, i64)>,
}

impl BufferInner {
    /// Registers the host's memory on a new connection.
    pub fn register(&self, dma: &Endpoint) -> Result<i64, ScifError> {
        dma.register(&self.memory, 0, self.memory.len(), None, READ_WRITE)
    }
}

impl Buffer {
    pub(crate) fn create(process: &Process, bytes: usize) -> Result<Self, CoiError> {
        let _pass = process.0.enter(Region::Lifecycle)?;
        let memory = SharedMemory::new(bytes).map_err(|_| CoiError::NoMemory("a buffer"))?;
        let id = process.0.next_buffer.fetch_add(1, Ordering::Relaxed);
        let len = memory.len() as u64;
        let card = match process.0.command(Command::CreateBuffer { id, len })? {
            Answer::Window(window) if window.id == id && window.len == len => window.offset,
            _ => return Err(process.0.protocol("create buffer")),
        };
        let inner = BufferInner {
            id,
            memory,
            windows: Mutex::new((0, card)),
        };
        let own = inner.register(&process.0.dma())?;
        *lock(&inner.windows) = (own, card);
        let inner = Arc::new(inner);
        lock(&process.0.buffers).insert(id, inner.clone());
        Ok(Self {
            inner,
            process: process.clone(),
        })
    }

    pub(crate) fn id(&self) -> u64 {
        self.inner.id
    }

    /// Bytes of it: whole pages.
    pub fn len(&self) -> usize {
        self.inner.memory.len()
    }

    /// Whether it has no bytes: never.
    pub fn is_empty(&self) -> bool {
        self.inner.memory.is_empty()
    }

    /// Writes to the card (COIBufferWrite).
    pub fn write(&self, at: usize, from: &[u8]) -> Result<(), CoiError> {
        self.check(at, from.len())?;
        self.inner.memory.write(at, from);
        self.transfer(at, from.len(), true)
    }

    /// Reads from the card (COIBufferRead).
    pub fn read(&self, at: usize, to: &mut [u8]) -> Result<(), CoiError> {
        self.check(at, to.len())?;
        self.transfer(at, to.len(), false)?;
        self.inner.memory.read(at, to);
        Ok(())
    }

    fn check(&self, at: usize, len: usize) -> Result<(), CoiError> {
        match at.checked_add(len) {
            Some(end) if end <= self.len() => Ok(()),
            _ => Err(CoiError::OutOfRange(format!(
                "{len} bytes at {at} of a buffer of {} bytes",
                self.len()
            ))),
        }
    }

    fn transfer(&self, at: usize, len: usize, write: bool) -> Result<(), CoiError> {
        // Case 2: a snapshot waits for a transfer, a transfer waits for a snapshot.
        let _pass = self.process.0.enter(Region::Rdma)?;
        let (own, card) = *lock(&self.inner.windows);
        let (own, card) = (own + at as i64, card + at as i64);
        let dma = self.process.0.dma();
        let done = match write {
            true => dma.writeto(own, len as u64, card),
            false => dma.readfrom(own, len as u64, card),
        };
        done.map_err(|error| match error.errno {
            libc::ECONNRESET | libc::ENODEV | libc::EIO => self.process.0.broken(),
            _ => error.into(),
        })
    }
}
