//! Buffers of one process, as simple as can be: what is written is on the card when the call returns,
//! what is read comes from there, and nothing waits for anything. For the rest there is
//! [`crate::ops`].

use crate::{
    CoiError, Process,
    ops::{self, BufferOptions, Foreign, Order, State, StatePlace},
};

/// A buffer of a process.
pub struct Buffer {
    shared: ops::Buffer,
    process: Process,
}

impl Buffer {
    pub(crate) fn create(process: &Process, bytes: usize) -> Result<Self, CoiError> {
        let options = BufferOptions {
            bytes: bytes.max(1).next_multiple_of(4096) as u64,
            open_cl: true,
            ..BufferOptions::default()
        };
        let shared = ops::Buffer::create(std::slice::from_ref(process), options)?;
        // It is the process's alone, whoever uses it later.
        let here = StatePlace::Process(process);
        shared.set_state(here, State::Valid, false, Order::now())?;
        shared.set_state(StatePlace::Source, State::Invalid, false, Order::now())?;
        let process = process.clone();
        Ok(Self { shared, process })
    }

    /// The same buffer for operations that wait for one another.
    pub fn shared(&self) -> &ops::Buffer {
        &self.shared
    }

    /// Bytes of it: whole pages.
    pub fn len(&self) -> usize {
        self.shared.len() as usize
    }

    /// Whether it has no bytes: never.
    pub fn is_empty(&self) -> bool {
        self.shared.is_empty()
    }

    /// Writes to the card (COIBufferWrite).
    pub fn write(&self, at: usize, from: &[u8]) -> Result<(), CoiError> {
        self.check(at, from.len())?;
        // SAFETY: the bytes are only read, and before this call returns.
        let memory = unsafe { Foreign::new(from.as_ptr().cast_mut(), from.len()) };
        let (body, at, process) = (self.shared.body(), at as u64, self.process.id());
        if body.copy_directly(process, at, memory, true)? {
            return Ok(());
        }
        body.put(at, memory, true);
        body.send(process, &(at..at + memory.len()), true)
    }

    /// Reads from the card (COIBufferRead).
    pub fn read(&self, at: usize, to: &mut [u8]) -> Result<(), CoiError> {
        self.check(at, to.len())?;
        // SAFETY: the bytes are written before this call returns.
        let memory = unsafe { Foreign::new(to.as_mut_ptr(), to.len()) };
        let (body, at, process) = (self.shared.body(), at as u64, self.process.id());
        if body.copy_directly(process, at, memory, false)? {
            return Ok(());
        }
        body.fetch(process, &(at..at + memory.len()), true)?;
        body.take(at, memory, true);
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
}
