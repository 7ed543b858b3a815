//! What moves a chunk: reads the source's file into the destination's mapping.
//!
//! io_uring hands every chunk to a kernel worker (`IOSQE_ASYNC`), so the engine's thread stays free
//! for other queues. Where io_uring is missing or forbidden, a few threads call pread(2).
//!
//! What must stay true: a chunk that was started is kept, with its regions, until its result is
//! returned; a mover is dropped only when none is in flight.

use std::{
    io,
    os::fd::{AsRawFd, OwnedFd},
    sync::{Arc, Mutex, mpsc},
    thread,
};

use io_uring::{IoUring, opcode, squeue, types};
use rustix::event::{EventfdFlags, eventfd};

use crate::{restrict, schedule::Chunk};

/// Entries of the ring. All chunks of all queues fit (see `schedule::IN_FLIGHT_MAX`).
const RING_ENTRIES: u32 = 256;
/// The wake-up's token; chunks use their slot.
const WAKE_TOKEN: u64 = u64::MAX;
const FALLBACK_THREADS: usize = 2;

/// Interrupts [`Mover::wait`] from any thread.
pub(crate) type Wake = Box<dyn Fn() + Send + Sync>;

/// Moves chunks.
pub(crate) trait Mover: Send {
    /// Starts moving; `token` comes back with the result.
    fn start(&mut self, token: u64, chunk: &Chunk) -> io::Result<()>;
    /// What has come back: tokens, and bytes moved or negative error numbers. Nothing, unless the caller `waits` until
    /// there is something or a wake-up.
    fn results(&mut self, waits: bool) -> io::Result<Vec<(u64, i32)>>;
}

/// The io_uring mover.
pub(crate) struct Ring {
    ring: IoUring,
    wake: Arc<OwnedFd>,
    wake_armed: bool,
}

impl Ring {
    pub(crate) fn new() -> io::Result<(Self, Wake)> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let wake = Arc::new(eventfd(0, flags)?);
        let waker = wake.clone();
        let mover = Self {
            ring: restrict::ring(
                RING_ENTRIES,
                &[opcode::Read::CODE, opcode::PollAdd::CODE],
                &[],
            )?,
            wake,
            wake_armed: false,
        };
        let wake: Wake = Box::new(move || {
            // Fails only when 2^64 - 2 wake-ups wait already.
            let _ = rustix::io::write(&waker, &1u64.to_ne_bytes());
        });
        Ok((mover, wake))
    }

    fn push(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        // SAFETY: the callers vouch that the memory of `entry` stays valid until its completion.
        while unsafe { self.ring.submission().push(entry) }.is_err() {
            self.ring.submit()?;
        }
        Ok(())
    }

    fn arm_wake(&mut self) -> io::Result<()> {
        // A poll, not a read: it may stay pending when the ring goes, and must own no memory then.
        let entry = opcode::PollAdd::new(types::Fd(self.wake.as_raw_fd()), libc::POLLIN as u32)
            .build()
            .user_data(WAKE_TOKEN);
        self.push(&entry)?;
        self.wake_armed = true;
        Ok(())
    }
}

impl Mover for Ring {
    fn start(&mut self, token: u64, chunk: &Chunk) -> io::Result<()> {
        let (fd, position) = chunk.0.src.file(chunk.0.src_at);
        let to = chunk.to();
        let entry = opcode::Read::new(types::Fd(fd.as_raw_fd()), to, chunk.0.len as u32)
            .offset(position)
            .build()
            .flags(squeue::Flags::ASYNC)
            .user_data(token);
        self.push(&entry)
    }

    fn results(&mut self, waits: bool) -> io::Result<Vec<(u64, i32)>> {
        if waits && !self.wake_armed {
            self.arm_wake()?;
        }
        match self.ring.submit_and_wait(usize::from(waits)) {
            // io_uring_enter(2): try again once completions are taken.
            Err(e)
                if !matches!(
                    e.raw_os_error(),
                    Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)
                ) =>
            {
                return Err(e);
            }
            _ => {}
        }
        let mut results = Vec::new();
        for entry in self.ring.completion() {
            match entry.user_data() {
                WAKE_TOKEN => {
                    self.wake_armed = false;
                    // Empty if two wake-ups were read as one: nothing is lost.
                    let _ = rustix::io::read(&self.wake, &mut [0; 8]);
                }
                token => results.push((token, entry.result())),
            }
        }
        Ok(results)
    }
}

/// The mover for hosts without io_uring.
pub(crate) struct Threads {
    work: mpsc::Sender<Work>,
    results: mpsc::Receiver<(u64, i32)>,
}

struct Work {
    token: u64,
    fd: i32,
    position: u64,
    to: *mut libc::c_void,
    len: usize,
}

// SAFETY: `to` points into a region that the engine keeps mapped until the result is back.
unsafe impl Send for Work {}

impl Threads {
    pub(crate) fn new() -> io::Result<(Self, Wake)> {
        let (work, queue) = mpsc::channel::<Work>();
        let (done, results) = mpsc::channel();
        let queue = Arc::new(Mutex::new(queue));
        for _ in 0..FALLBACK_THREADS {
            let (queue, done) = (queue.clone(), done.clone());
            thread::Builder::new()
                .name("dma-copy".into())
                .spawn(move || {
                    loop {
                        let next = queue.lock().expect("recv does not panic").recv();
                        let Ok(work) = next else { return };
                        let _ = done.send((work.token, work.run()));
                    }
                })?;
        }
        let wake: Wake = Box::new(move || {
            let _ = done.send((WAKE_TOKEN, 0));
        });
        Ok((Self { work, results }, wake))
    }
}

impl Work {
    fn run(&self) -> i32 {
        // SAFETY: the destination is inside a region that stays mapped until the result is back.
        let n = unsafe { libc::pread(self.fd, self.to, self.len, self.position as i64) };
        match n {
            0.. => n as i32,
            _ => -io::Error::last_os_error()
                .raw_os_error()
                .unwrap_or(libc::EIO),
        }
    }
}

impl Mover for Threads {
    fn start(&mut self, token: u64, chunk: &Chunk) -> io::Result<()> {
        let (fd, position) = chunk.0.src.file(chunk.0.src_at);
        let work = Work {
            token,
            fd: fd.as_raw_fd(),
            position,
            to: chunk.to().cast(),
            len: chunk.0.len as usize,
        };
        self.work
            .send(work)
            .map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    fn results(&mut self, waits: bool) -> io::Result<Vec<(u64, i32)>> {
        let first = waits.then(|| self.results.recv()).transpose();
        let all = first
            .map_err(io::Error::other)?
            .into_iter()
            .chain(self.results.try_iter());
        Ok(all.filter(|(token, _)| *token != WAKE_TOKEN).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        region::Region,
        schedule::{CHUNK_BYTES, Checked},
    };
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
    use std::time::{Duration, Instant};

    const BYTES: u64 = 64 << 20;

    fn region() -> Arc<Region> {
        let fd = memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&fd, BYTES).unwrap();
        fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
        Arc::new(Region::new(fd, 0, BYTES).unwrap())
    }

    /// The median time of moving `len` bytes, at ever new places of regions that are in memory.
    fn median(len: u64, regions: &[Arc<Region>; 2], mut run: impl FnMut(Vec<Chunk>)) -> Duration {
        let places = BYTES / len;
        let mut times: Vec<_> = (0..400u64)
            .map(|i| {
                let at = i * 7 % places * len;
                let chunks = (0..len.div_ceil(CHUNK_BYTES)).map(|part| {
                    let (src, dst) = (regions[0].clone(), regions[1].clone());
                    let at = at + part * CHUNK_BYTES;
                    let len = len.min(CHUNK_BYTES);
                    Chunk(Checked {
                        src,
                        src_at: at,
                        dst,
                        dst_at: at,
                        len,
                    })
                });
                let (chunks, start) = (chunks.collect(), Instant::now());
                run(chunks);
                start.elapsed()
            })
            .collect();
        times.sort();
        times[times.len() / 2]
    }

    /// cargo test --release -p snaprig-dma -- --ignored --nocapture crossover
    #[test]
    #[ignore = "a measurement: where `schedule::CHUNK_BYTES` comes from"]
    fn crossover() {
        let regions = [region(), region()];
        for region in &regions {
            // SAFETY: the whole mapping, which nobody refers to.
            unsafe { region.pointer(0).unwrap().write_bytes(1, BYTES as usize) };
        }
        let mut ring = Ring::new().unwrap().0;
        println!("{:>9} {:>10} {:>10}", "bytes", "store us", "ring us");
        for shift in 10..24 {
            let len = 1 << shift;
            let store = median(len, &regions, |chunks| {
                chunks.iter().for_each(|chunk| chunk.0.store().unwrap());
            });
            let moved = median(len, &regions, |chunks| {
                for (token, chunk) in chunks.iter().enumerate() {
                    ring.start(token as u64, chunk).unwrap();
                }
                let mut left = chunks.len();
                while left > 0 {
                    let results = ring.results(true).unwrap();
                    assert!(results.iter().all(|(_, n)| *n > 0));
                    left -= results.len();
                }
            });
            let us = |time: Duration| time.as_nanos() as f64 / 1e3;
            println!("{len:>9} {:>10.1} {:>10.1}", us(store), us(moved));
        }
    }
}
