//! Pipes, and the byte queue that sockets are made of too.

use std::{
    any::Any,
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::kernel::{
    errno::Errno,
    file::{Cx, Description, File, PollMask},
    wait::{Channel, Stop, SysResult},
};

/// Bytes that a queue holds (pipe(7)).
pub const CAPACITY: usize = 64 << 10;
/// Writes up to this many bytes are atomic (pipe(7), PIPE_BUF).
const ATOMIC_BYTES: usize = 4096;

/// One direction of a stream.
pub struct Queue {
    inner: Mutex<Inner>,
    /// Woken whenever anything changes.
    pub channel: Channel,
}

struct Inner {
    bytes: VecDeque<u8>,
    reader: bool,
    writer: bool,
    /// What blocking writes have put in so far, by thread.
    progress: BTreeMap<i32, usize>,
}

impl Queue {
    /// An empty queue with both ends open.
    pub fn new() -> Arc<Self> {
        let inner = Inner {
            bytes: VecDeque::new(),
            reader: true,
            writer: true,
            progress: BTreeMap::new(),
        };
        Arc::new(Self {
            inner: Mutex::new(inner),
            channel: Channel::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes up to `max` bytes; empty at the end of the stream.
    pub fn read(&self, cx: &mut Cx, max: usize) -> SysResult<Vec<u8>> {
        let mut inner = self.lock();
        if inner.bytes.is_empty() && inner.writer && max > 0 {
            return Err(wait(cx, self.channel));
        }
        let count = max.min(inner.bytes.len());
        let bytes = inner.bytes.drain(..count).collect();
        (cx.wake)(self.channel);
        Ok(bytes)
    }

    /// Puts `data` in, waiting for room; returns the bytes taken, all of them unless the caller
    /// does not wait.
    pub fn write(&self, cx: &mut Cx, data: &[u8]) -> SysResult<usize> {
        let mut inner = self.lock();
        let mut done = inner.progress.remove(&cx.tid).unwrap_or(0).min(data.len());
        if !inner.reader {
            return if done > 0 {
                Ok(done)
            } else {
                Err(Errno::EPIPE.into())
            };
        }
        let room = CAPACITY - inner.bytes.len();
        let rest = data.len() - done;
        if rest <= room || data.len() > ATOMIC_BYTES {
            let part = rest.min(room);
            inner.bytes.extend(&data[done..done + part]);
            done += part;
            if part > 0 {
                (cx.wake)(self.channel);
            }
        }
        if done == data.len() || cx.nonblock && done > 0 {
            return Ok(done);
        }
        if !cx.nonblock {
            inner.progress.insert(cx.tid, done);
        }
        Err(wait(cx, self.channel))
    }

    /// The thread's write is given up.
    pub fn abandon(&self, tid: i32) {
        self.lock().progress.remove(&tid);
    }

    /// Whether a read would not wait, and whether the writer is gone.
    pub fn readable(&self) -> (bool, bool) {
        let inner = self.lock();
        (!inner.bytes.is_empty() || !inner.writer, !inner.writer)
    }

    /// Whether a write would not wait, and whether the reader is gone.
    pub fn writable(&self) -> (bool, bool) {
        let inner = self.lock();
        (
            CAPACITY - inner.bytes.len() >= ATOMIC_BYTES || !inner.reader,
            !inner.reader,
        )
    }

    /// Bytes in it.
    pub fn contents(&self) -> Vec<u8> {
        self.lock().bytes.iter().copied().collect()
    }

    /// Puts the bytes of a snapshot back.
    pub fn restore(&self, bytes: &[u8]) {
        let mut inner = self.lock();
        // A snapshot may say anything; a queue never holds more than its capacity.
        let part = bytes.len().min(CAPACITY - inner.bytes.len());
        inner.bytes.extend(&bytes[..part]);
    }

    /// The reading end closes.
    pub fn close_reader(&self, wake: &mut dyn FnMut(Channel)) {
        self.lock().reader = false;
        wake(self.channel);
    }

    /// The writing end closes.
    pub fn close_writer(&self, wake: &mut dyn FnMut(Channel)) {
        self.lock().writer = false;
        wake(self.channel);
    }
}

fn wait(cx: &Cx, channel: Channel) -> Stop {
    if cx.nonblock {
        Errno::EAGAIN.into()
    } else {
        Stop::wait(channel)
    }
}

/// One end of a pipe.
pub struct PipeEnd {
    queue: Arc<Queue>,
    writes: bool,
}

/// A pipe: reading end, writing end.
pub fn pipe() -> (Arc<PipeEnd>, Arc<PipeEnd>) {
    let queue = Queue::new();
    let end = |writes| {
        Arc::new(PipeEnd {
            queue: queue.clone(),
            writes,
        })
    };
    (end(false), end(true))
}

impl PipeEnd {
    /// One end over an existing queue (a restored pipe).
    pub fn over(queue: Arc<Queue>, writes: bool) -> Arc<Self> {
        Arc::new(Self { queue, writes })
    }
}

impl File for PipeEnd {
    fn read(&self, cx: &mut Cx, max: usize) -> SysResult<Vec<u8>> {
        if self.writes {
            return Err(Errno::EBADF.into());
        }
        self.queue.read(cx, max)
    }

    fn write(&self, cx: &mut Cx, data: &[u8]) -> SysResult<usize> {
        if !self.writes {
            return Err(Errno::EBADF.into());
        }
        self.queue.write(cx, data)
    }

    fn poll(&self) -> PollMask {
        if self.writes {
            let (ready, broken) = self.queue.writable();
            mask(ready, libc::POLLOUT) | mask(broken, libc::POLLERR)
        } else {
            let (ready, over) = self.queue.readable();
            mask(
                ready && !(over && self.queue.contents().is_empty()),
                libc::POLLIN,
            ) | mask(over, libc::POLLHUP)
        }
    }

    fn channels(&self) -> Vec<Channel> {
        vec![self.queue.channel]
    }

    fn abandon(&self, tid: i32) {
        self.queue.abandon(tid);
    }

    fn release(&self, wake: &mut dyn FnMut(Channel)) {
        if self.writes {
            self.queue.close_writer(wake);
        } else {
            self.queue.close_reader(wake);
        }
    }

    fn describe(&self) -> Description {
        Description::Pipe {
            id: Arc::as_ptr(&self.queue) as u64,
            write_end: self.writes,
            bytes: if self.writes {
                Vec::new()
            } else {
                self.queue.contents()
            },
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// `bit` if `on`.
pub fn mask(on: bool, bit: PollMask) -> PollMask {
    if on { bit } else { 0 }
}
