//! The threads of a writer.
//!
//! ```text
//! caller's thread              sealer's thread                 sink's thread
//! buffer(), fill, submit() --> zeroes, zstd, XXH3, list   -->  write(2), io_uring
//!     ^                                                            |
//!     '------------------------- buffers ---------------------------'
//! ```
//! What must stay true: once the sink has failed it is dropped, with the buffers that it has, and so
//! is what still comes: nobody waits for a buffer that nobody will give back.

use std::{
    io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{Receiver, SyncSender, TryRecvError, sync_channel},
    },
    thread::{self, JoinHandle},
    time::Instant,
};

use snaprig_image::{Buffer, Filled, Sink};

use super::{
    Summary,
    seal::{Job, Sealer},
    worth::SinkSpeed,
};

/// What is to be done next.
pub enum Order {
    /// Bytes as they are: the header.
    Bytes(Filled),
    /// A batch.
    Batch(Job),
    /// The end, in this block.
    Finish(Buffer),
}

/// What the sink's thread tells.
#[derive(Default)]
struct Progress {
    written: AtomicU64,
    /// The end has been sealed.
    complete: AtomicBool,
    failed: AtomicBool,
    error: Mutex<Option<io::Error>>,
}

impl Progress {
    fn fail(&self, error: io::Error) {
        *self.error.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        self.failed.store(true, Ordering::Release);
    }
}

/// The threads, and the way to them.
pub struct Pipeline<S> {
    orders: Option<SyncSender<Order>>,
    progress: Arc<Progress>,
    sealer: Option<JoinHandle<Option<Summary>>>,
    sinker: Option<JoinHandle<Option<S>>>,
}

impl<S: Sink> Pipeline<S> {
    /// Starts the threads. So many blocks may be on their way.
    pub fn start((sink, speed): (S, SinkSpeed), sealer: Sealer, blocks: usize) -> io::Result<Self> {
        let (orders, ordered) = sync_channel(blocks);
        let (sealed, to_write) = sync_channel(blocks);
        let progress = Arc::new(Progress::default());
        let told = Arc::clone(&progress);
        let sealer = spawn("ckpt-seal", move || {
            let summary = seal_all(sealer, &ordered, &sealed);
            // Said before the sink's thread hears, by `sealed` being dropped, that nothing follows.
            told.complete.store(summary.is_some(), Ordering::Release);
            summary
        })?;
        let told = Arc::clone(&progress);
        let sinker = spawn("ckpt-write", move || {
            write_all((sink, &speed), &to_write, &told)
        })?;
        Ok(Self {
            orders: Some(orders),
            progress,
            sealer: Some(sealer),
            sinker: Some(sinker),
        })
    }

    /// Passes it on; false: there is nobody any more.
    pub fn send(&self, order: Order) -> bool {
        let orders = self.orders.as_ref();
        orders.is_some_and(|orders| orders.send(order).is_ok())
    }

    /// Bytes that the sink has taken.
    pub fn written(&self) -> u64 {
        self.progress.written.load(Ordering::Relaxed)
    }

    /// With what the sink has failed, if it has.
    pub fn failure(&self) -> Option<io::Error> {
        let progress = &self.progress;
        if !progress.failed.load(Ordering::Acquire) {
            return None;
        }
        let error = progress
            .error
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let error = error.as_ref()?;
        Some(match error.raw_os_error() {
            Some(errno) => io::Error::from_raw_os_error(errno),
            None => io::Error::new(error.kind(), error.to_string()),
        })
    }

    /// Waits until all that was sent is done.
    pub fn join(&mut self) -> (Option<Summary>, Option<S>) {
        self.orders = None;
        let summary = self.sealer.take().and_then(|thread| thread.join().ok());
        let sink = self.sinker.take().and_then(|thread| thread.join().ok());
        (summary.flatten(), sink.flatten())
    }
}

impl<S> Drop for Pipeline<S> {
    fn drop(&mut self) {
        self.orders = None;
        // Whoever drops a writer does not ask how it went.
        let _ = self.sealer.take().map(JoinHandle::join);
        let _ = self.sinker.take().map(JoinHandle::join);
    }
}

fn spawn<T: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    thread::Builder::new().name(name.to_owned()).spawn(body)
}

fn seal_all(
    mut sealer: Sealer,
    orders: &Receiver<Order>,
    to: &SyncSender<Filled>,
) -> Option<Summary> {
    for order in orders {
        let sealed = match order {
            Order::Bytes(bytes) => bytes,
            Order::Batch(job) => sealer.seal(job),
            Order::Finish(block) => {
                let (sealed, summary) = sealer.finish(block);
                return to.send(sealed).ok().map(|()| summary);
            }
        };
        to.send(sealed).ok()?;
    }
    None
}

/// Gives the sink what comes; gives the sink back, unless it has failed.
fn write_all<S: Sink>(
    (mut sink, speed): (S, &SinkSpeed),
    from: &Receiver<Filled>,
    progress: &Progress,
) -> Option<S> {
    let written = write_some((&mut sink, speed), from, progress);
    let done = written.and_then(|()| match progress.complete.load(Ordering::Acquire) {
        true => sink.finish(),
        false => Ok(()),
    });
    if let Err(error) = done {
        progress.fail(error);
        drop(sink);
        from.iter().for_each(drop);
        return None;
    }
    Some(sink)
}

fn write_some<S: Sink>(
    (sink, speed): (&mut S, &SinkSpeed),
    from: &Receiver<Filled>,
    progress: &Progress,
) -> io::Result<()> {
    while let Some(sealed) = next(sink, from)? {
        let (bytes, begun) = (sealed.len(), Instant::now());
        sink.write(sealed)?;
        speed.took(bytes, begun.elapsed());
        progress.written.fetch_add(bytes as u64, Ordering::Relaxed);
    }
    Ok(())
}

/// What is to be written next. While there is nothing, the sink gives back what it can.
fn next<S: Sink>(sink: &mut S, from: &Receiver<Filled>) -> io::Result<Option<Filled>> {
    loop {
        match from.try_recv() {
            Ok(sealed) => return Ok(Some(sealed)),
            Err(TryRecvError::Disconnected) => return Ok(None),
            Err(TryRecvError::Empty) if sink.settle()? => {}
            Err(TryRecvError::Empty) => return Ok(from.recv().ok()),
        }
    }
}
