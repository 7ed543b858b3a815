//! Pipes, and the byte queue that sockets are made of too.

use std::{
    any::Any,
    collections::VecDeque,
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
    /// How often something came in, or the writer went.
    arrivals: u64,
    /// How often room was made where there was too little, or the reader went.
    departures: u64,
}

impl Queue {
    /// An empty queue with both ends open.
    pub fn new() -> Arc<Self> {
        let inner = Inner {
            bytes: VecDeque::new(),
            reader: true,
            writer: true,
            arrivals: 0,
            departures: 0,
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
        if !inner.is_writable() {
            inner.departures += 1;
        }
        let count = max.min(inner.bytes.len());
        let bytes = inner.bytes.drain(..count).collect();
        (cx.wake)(self.channel);
        Ok(bytes)
    }

    /// Copies up to `max` bytes and leaves them there (recv(2), MSG_PEEK).
    pub fn peek(&self, cx: &Cx, max: usize) -> SysResult<Vec<u8>> {
        let inner = self.lock();
        if inner.bytes.is_empty() && inner.writer && max > 0 {
            return Err(wait(cx, self.channel));
        }
        Ok(inner.bytes.iter().take(max).copied().collect())
    }

    /// Puts in as much of `data` as there is room for, waiting if there is none; a write that is
    /// atomic waits for room for all of it.
    pub fn write(&self, cx: &mut Cx, data: &[u8]) -> SysResult<usize> {
        let mut inner = self.lock();
        if !inner.reader {
            return Err(Errno::EPIPE.into());
        }
        let room = CAPACITY - inner.bytes.len();
        let part = match data.len() {
            len if len <= room => len,
            len if len <= ATOMIC_BYTES => 0,
            _ => room,
        };
        if part == 0 && !data.is_empty() {
            return Err(wait(cx, self.channel));
        }
        inner.bytes.extend(&data[..part]);
        inner.arrivals += u64::from(part > 0);
        (cx.wake)(self.channel);
        Ok(part)
    }

    /// Whether a read would not wait, and whether the writer is gone.
    pub fn readable(&self) -> (bool, bool) {
        let inner = self.lock();
        (!inner.bytes.is_empty() || !inner.writer, !inner.writer)
    }

    /// Whether a write would not wait, and whether the reader is gone.
    pub fn writable(&self) -> (bool, bool) {
        let inner = self.lock();
        (inner.is_writable() || !inner.reader, !inner.reader)
    }

    /// How often it became readable (`File::edges`).
    pub fn arrivals(&self) -> u64 {
        self.lock().arrivals
    }

    /// How often it became writable (`File::edges`).
    pub fn departures(&self) -> u64 {
        self.lock().departures
    }

    /// How many bytes are in it.
    pub fn len(&self) -> usize {
        self.lock().bytes.len()
    }

    /// FIONREAD (ioctl_pipe(2)): writes how many bytes are in it.
    pub fn tell_len(&self, cx: &mut Cx, argument: u64) -> SysResult<i64> {
        let len = self.len() as u32;
        cx.memory.write(argument, &len.to_le_bytes())?;
        Ok(0)
    }

    /// What is in it.
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
        let mut inner = self.lock();
        inner.reader = false;
        inner.departures += 1;
        drop(inner);
        wake(self.channel);
    }

    /// The writing end closes.
    pub fn close_writer(&self, wake: &mut dyn FnMut(Channel)) {
        let mut inner = self.lock();
        inner.writer = false;
        inner.arrivals += 1;
        drop(inner);
        wake(self.channel);
    }
}

impl Inner {
    fn is_writable(&self) -> bool {
        CAPACITY - self.bytes.len() >= ATOMIC_BYTES
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

    fn takes(&self) -> usize {
        self.queue.len()
    }

    fn write(&self, cx: &mut Cx, data: &[u8]) -> SysResult<usize> {
        if !self.writes {
            return Err(Errno::EBADF.into());
        }
        self.queue.write(cx, data)
    }

    fn ioctl(&self, cx: &mut Cx, request: u32, argument: u64) -> SysResult<i64> {
        match u64::from(request) {
            libc::FIONREAD => self.queue.tell_len(cx, argument),
            _ => Err(Errno::ENOTTY.into()),
        }
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

    fn edges(&self, _events: PollMask) -> u64 {
        if self.writes {
            self.queue.departures()
        } else {
            self.queue.arrivals()
        }
    }

    fn channels(&self) -> Vec<Channel> {
        vec![self.queue.channel]
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
