//! Where images go. A sink lends the memory that an image is put into, so that memory can be what the sink needs it to be
//! (registered with a device for RDMA, a slot of a ring), and nothing is copied on the way.
//!
//! ```text
//! writer                                        sink
//! Pool::lent_by       --- memory(bytes) --->    lends it: once for each buffer
//! fills a Buffer
//! Buffer::filled      --- write(Filled) --->    sends it, and may keep it meanwhile
//! Pool::take          <--- Filled dropped ---   it is sent: the buffer is free again
//! ```
//!
//! A new transport for images is a type with this trait:
//!
//! ```
//! use std::{any::Any, io, sync::mpsc};
//! use snaprig_image::{Filled, Memory, Pool, Sink};
//!
//! /// Memory that was registered under a key.
//! struct Registered {
//!     key: u32,
//!     bytes: Vec<u8>,
//! }
//!
//! impl Memory for Registered {
//!     fn bytes(&self) -> &[u8] {
//!         &self.bytes
//!     }
//!
//!     fn bytes_mut(&mut self) -> &mut [u8] {
//!         &mut self.bytes
//!     }
//! }
//!
//! /// Sends what it is given by key, offset and length.
//! struct Rdma {
//!     keys: u32,
//!     sent: mpsc::Sender<(u32, usize, Vec<u8>)>,
//! }
//!
//! impl Sink for Rdma {
//!     fn memory(&mut self, bytes: usize) -> io::Result<Box<dyn Memory>> {
//!         self.keys += 1;
//!         Ok(Box::new(Registered { key: self.keys, bytes: vec![0; bytes] }))
//!     }
//!
//!     fn write(&mut self, filled: Filled) -> io::Result<()> {
//!         let memory: &dyn Any = filled.memory();
//!         let registered = memory.downcast_ref::<Registered>().expect("the sink's own memory");
//!         let message = (registered.key, filled.range().start, filled.to_vec());
//!         self.sent.send(message).map_err(io::Error::other)
//!     }
//!
//!     fn finish(&mut self) -> io::Result<()> {
//!         Ok(())
//!     }
//! }
//!
//! let (sent, received) = mpsc::channel();
//! let mut sink = Rdma { keys: 0, sent };
//! let mut pool = Pool::lent_by(&mut sink, 2, 4096)?;
//! for byte in [1, 2, 3] {
//!     let mut buffer = pool.take()?;
//!     buffer.bytes_mut()[100..108].fill(byte);
//!     sink.write(buffer.filled(100..108))?;
//! }
//! sink.finish()?;
//! let received: Vec<_> = received.try_iter().collect();
//! assert_eq!(received[2], (2, 100, vec![3; 8]));
//! # Ok::<(), io::Error>(())
//! ```
//!
//! Anything that is a [`Write`] is a sink that lends anonymous memory. The others are in
//! [`transport`](crate::transport).

use std::{
    fmt,
    io::{self, Write},
    ops::{Deref, Range},
};

use crate::{Memory, memory::Anonymous, pool::Buffer};

/// The next bytes of an image, in memory that the sink has lent. The memory is free again when this is dropped.
pub struct Filled {
    buffer: Buffer,
    range: Range<usize>,
}

impl Filled {
    pub(crate) fn new(buffer: Buffer, range: Range<usize>) -> Self {
        assert!(range.end <= buffer.bytes().len(), "a part of the buffer");
        Self { buffer, range }
    }

    /// The memory that the bytes are in: one that [`Sink::memory`] has returned.
    pub fn memory(&self) -> &dyn Memory {
        self.buffer
            .memory()
            .expect("a buffer has its memory until it is dropped")
    }

    /// Where in the memory the bytes are.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }
}

impl fmt::Debug for Filled {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_tuple("Filled").field(&self.range).finish()
    }
}

impl Deref for Filled {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buffer.bytes()[self.range.clone()]
    }
}

/// Takes the bytes of an image, in order. A writer with threads gives it one of its own.
pub trait Sink: Send + 'static {
    /// Lends so many bytes of memory, to be filled with parts of the image. A writer asks for all that it will use before
    /// it writes anything.
    fn memory(&mut self, bytes: usize) -> io::Result<Box<dyn Memory>> {
        Ok(Box::new(Anonymous::new(bytes)?))
    }

    /// Takes the next bytes. May keep them while it sends them.
    fn write(&mut self, bytes: Filled) -> io::Result<()>;

    /// There is nothing to take at the moment, and somebody may be waiting for buffers: waits until some that it keeps
    /// are sent, and drops them. False: it keeps none.
    fn settle(&mut self) -> io::Result<bool> {
        Ok(false)
    }

    /// All bytes have been given: returns when they are where they belong.
    fn finish(&mut self) -> io::Result<()>;
}

impl Sink for Box<dyn Sink> {
    fn memory(&mut self, bytes: usize) -> io::Result<Box<dyn Memory>> {
        (**self).memory(bytes)
    }

    fn write(&mut self, bytes: Filled) -> io::Result<()> {
        (**self).write(bytes)
    }

    fn settle(&mut self) -> io::Result<bool> {
        (**self).settle()
    }

    fn finish(&mut self) -> io::Result<()> {
        (**self).finish()
    }
}

impl<W: Write + Send + 'static> Sink for W {
    fn write(&mut self, bytes: Filled) -> io::Result<()> {
        self.write_all(&bytes)
    }

    fn finish(&mut self) -> io::Result<()> {
        self.flush()
    }
}
