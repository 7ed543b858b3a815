//! Writes an image: what is handed in becomes batches, which go through a [`pipeline`](super::pipeline).
//!
//! The caller never waits but for a free buffer. That the sink has failed is told with the next call.

use std::{io, sync::Arc};

use serde::Serialize;

use snaprig_image::{ImageId, Pool, Sink};

use super::{
    CHUNK_MAX, Header, PAGE, Run, STATE_MAX, Summary, WriteError,
    buffer::{BUFFER_BYTES, Buffer, data_mut},
    pipeline::{Order, Pipeline},
    seal::{Draft, Job, Sealer, Zstd},
    wire::{self, CHUNKS_MAX, Kind, blocks},
    worth::{SinkSpeed, Worth},
};

/// Most runs in one [`Writer::submit`]: a page each.
const RUNS_MAX: usize = CHUNK_MAX / PAGE as usize;
/// Blocks that are not for the caller: one that the writer fills itself, one at each thread.
const OWN_BLOCKS: usize = 3;

/// How an image is written.
#[derive(Clone, Debug)]
pub struct Options {
    /// What it is called in errors: a path, a peer.
    pub name: String,
    /// Level of zstd; none: not compressed.
    pub zstd: Option<i32>,
    /// Compressed only as long as the sink takes less time for what is left than for all of it.
    pub zstd_if_faster: bool,
    /// Buffers that [`Writer::buffer`] hands out at a time.
    pub buffers: usize,
    /// Bytes that the image will take, about, if known: said when there is no room for them.
    pub expected: u64,
    /// The image that it says the same as: the last of a chain that is collapsed into it.
    pub stands_for: Option<ImageId>,
}

impl Options {
    /// Not compressed, four buffers.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            zstd: None,
            zstd_if_faster: false,
            buffers: 4,
            expected: 0,
            stands_for: None,
        }
    }
}

/// The batch that is being put together.
struct Open {
    job: Job,
    /// Bytes of its block that are full.
    used: usize,
    /// Chunks that have no bytes there.
    marks: usize,
}

/// An image that is being written, to a sink: any [`Write`](std::io::Write), a file, or any other
/// [transport](snaprig_image::transport).
///
/// Dropped before [`Writer::finish`], what it has written is cut off, and every reader says so.
pub struct Writer<S: Sink> {
    options: Options,
    pool: Pool,
    /// Counts the buffers that are out.
    out: Arc<()>,
    open: Option<Open>,
    sections: u32,
    /// Bytes handed in.
    handed: u64,
    pipeline: Pipeline<S>,
}

impl<S: Sink> Writer<S> {
    /// Starts an image: its header goes out.
    pub fn new(mut to: S, header: &Header, options: Options) -> Result<Self, WriteError> {
        let (encoder, bytes) = wire::encode_header(header).ok_or(WriteError::Header)?;
        let speed = SinkSpeed::default();
        let zstd = options.zstd.map(zstd::bulk::Compressor::new);
        let zstd = zstd.transpose().map_err(WriteError::Memory)?;
        let zstd = zstd.map(|compressor| Zstd {
            compressor,
            worth: options.zstd_if_faster.then(|| Worth::new(speed.clone())),
        });
        let count = options.buffers.max(1) + OWN_BLOCKS;
        let pool = Pool::lent_by(&mut to, count, BUFFER_BYTES);
        let mut pool = pool.map_err(WriteError::Memory)?;
        let sealer = Sealer::new(encoder, bytes.len(), options.stands_for, zstd);
        let pipeline = Pipeline::start((to, speed), sealer, count).map_err(WriteError::Memory)?;
        let mut block = pool.take().map_err(WriteError::Memory)?;
        block.bytes_mut()[..bytes.len()].copy_from_slice(&bytes);
        let mut writer = Self {
            options,
            pool,
            out: Arc::default(),
            open: None,
            sections: 0,
            handed: 0,
            pipeline,
        };
        let len = bytes.len();
        writer.send(Order::Bytes(block.filled(0..len)), len)?;
        Ok(writer)
    }

    /// The next section of state: at most [`STATE_MAX`] bytes. Sections and pages may come in any order.
    pub fn state(&mut self, state: &impl Serialize) -> Result<(), WriteError> {
        let section = self.sections;
        let bytes = postcard::to_allocvec(state).map_err(|_| WriteError::State { section })?;
        self.state_bytes(&bytes)
    }

    /// The same of a state that is serialized already (postcard).
    pub fn state_bytes(&mut self, bytes: &[u8]) -> Result<(), WriteError> {
        let section = self.sections;
        if bytes.len() > STATE_MAX {
            return Err(WriteError::State { section });
        }
        self.flush()?;
        // A chunk is never empty; decoding disregards what is left over.
        let rest = if bytes.is_empty() { &[0] } else { bytes };
        let parts = rest.chunks(CHUNK_MAX);
        let last = parts.len() - 1;
        for (index, part) in parts.enumerate() {
            let mut job = self.job()?;
            let data = data_mut(&mut job.block);
            let (now, padding) = data[..blocks(part.len())].split_at_mut(part.len());
            now.copy_from_slice(part);
            padding.fill(0);
            let last = index == last;
            let run = Run {
                space: section,
                address: (index * CHUNK_MAX) as u64,
                bytes: part.len() as u64,
            };
            job.drafts.push(Draft {
                kind: Kind::State { zstd: false, last },
                run,
            });
            self.send(Order::Batch(job), blocks(part.len()))?;
        }
        self.sections += 1;
        Ok(())
    }

    /// Whole pages from `address` of `space` on. They are copied; [`Writer::submit`] does without that.
    pub fn pages(&mut self, space: u32, address: u64, pages: &[u8]) -> Result<(), WriteError> {
        check(Run {
            space,
            address,
            bytes: pages.len() as u64,
        })?;
        let (mut address, mut rest) = (address, pages);
        while !rest.is_empty() {
            let free = CHUNK_MAX - self.open.as_ref().map_or(0, |open| open.used);
            let (now, later) = rest.split_at(rest.len().min(free));
            if now.is_empty() || !self.has_room(now.len()) {
                self.flush()?;
                continue;
            }
            let Open { job, used, .. } = self.open()?;
            data_mut(&mut job.block)[*used..*used + now.len()].copy_from_slice(now);
            *used += now.len();
            let run = Run {
                space,
                address,
                bytes: now.len() as u64,
            };
            let kind = Kind::Pages { zstd: false };
            append(&mut job.drafts, Draft { kind, run });
            address += now.len() as u64;
            rest = later;
        }
        Ok(())
    }

    /// Pages that are zero: they cost an entry in a list.
    pub fn zeroes(&mut self, space: u32, address: u64, bytes: u64) -> Result<(), WriteError> {
        let run = Run {
            space,
            address,
            bytes,
        };
        self.mark(Kind::Zeroes, run)
    }

    /// Pages that the parent has, or that were handed in before, and that are no more: unmapped, or mapped
    /// anew and untouched since.
    pub fn gone(&mut self, space: u32, address: u64, bytes: u64) -> Result<(), WriteError> {
        let run = Run {
            space,
            address,
            bytes,
        };
        self.mark(Kind::Gone, run)
    }

    /// A buffer to fill; waits for a free one. So many as [`Options::buffers`] can be out at a time.
    pub fn buffer(&mut self) -> Result<Buffer, WriteError> {
        self.check_sink()?;
        if Arc::strong_count(&self.out) > self.options.buffers.max(1) {
            return Err(WriteError::Buffers(self.options.buffers.max(1)));
        }
        Ok(Buffer {
            block: self.pool.take().map_err(WriteError::Memory)?,
            _out: Arc::clone(&self.out),
        })
    }

    /// The pages at the front of `buffer`: those of the first run, then those of the next.
    pub fn submit(&mut self, buffer: Buffer, runs: &[Run]) -> Result<(), WriteError> {
        let mut total = 0;
        let mut drafts = Vec::with_capacity(runs.len());
        for &run in runs {
            check(run)?;
            total = run.bytes.saturating_add(total);
            if total > CHUNK_MAX as u64 {
                let Run {
                    space,
                    address,
                    bytes,
                } = run;
                return Err(WriteError::Run {
                    space,
                    address,
                    bytes,
                });
            }
            let kind = Kind::Pages { zstd: false };
            append(&mut drafts, Draft { kind, run });
        }
        debug_assert!(drafts.len() <= RUNS_MAX);
        if drafts.is_empty() {
            return Ok(());
        }
        self.flush()?;
        let block = buffer.block;
        self.send(Order::Batch(Job { block, drafts }), total as usize)
    }

    /// Waits until the sink has all that was handed in, and sees to it that so many buffers (of those that
    /// [`Options::buffers`] allows) are there, in memory: nobody waits for them then. No buffer is out.
    pub fn settle(&mut self, buffers: usize) -> Result<(), WriteError> {
        self.flush()?;
        let settled = self.pool.settle(buffers.saturating_add(OWN_BLOCKS));
        settled.map_err(WriteError::Memory)?;
        self.check_sink()
    }

    /// Bytes of the image that the sink has taken.
    pub fn written(&self) -> u64 {
        self.pipeline.written()
    }

    /// Ends the image and waits until the sink has all of it: the sink, and what was written.
    pub fn finish(mut self) -> Result<(S, Summary), WriteError> {
        self.flush()?;
        let block = self.pool.take().map_err(WriteError::Memory)?;
        self.send(Order::Finish(block), PAGE as usize)?;
        let (summary, sink) = self.pipeline.join();
        self.check_sink()?;
        match (summary, sink) {
            (Some(summary), Some(sink)) => Ok((sink, summary)),
            _ => Err(self.panicked()),
        }
    }

    fn mark(&mut self, kind: Kind, run: Run) -> Result<(), WriteError> {
        check(run)?;
        if !self.has_room(0) {
            self.flush()?;
        }
        let open = self.open()?;
        open.marks += usize::from(append(&mut open.job.drafts, Draft { kind, run }));
        Ok(())
    }

    /// Whether the open batch can take a chunk of so many bytes: every page may become a chunk.
    fn has_room(&self, bytes: usize) -> bool {
        self.open.as_ref().is_none_or(|open| {
            let pages = (open.used + bytes) / PAGE as usize;
            pages + open.marks < CHUNKS_MAX
        })
    }

    fn open(&mut self) -> Result<&mut Open, WriteError> {
        let open = match self.open.take() {
            Some(open) => open,
            None => Open {
                job: self.job()?,
                used: 0,
                marks: 0,
            },
        };
        Ok(self.open.insert(open))
    }

    fn job(&mut self) -> Result<Job, WriteError> {
        Ok(Job {
            block: self.pool.take().map_err(WriteError::Memory)?,
            drafts: Vec::new(),
        })
    }

    /// Sends off the open batch.
    fn flush(&mut self) -> Result<(), WriteError> {
        match self.open.take() {
            Some(open) => self.send(Order::Batch(open.job), open.used),
            None => self.check_sink(),
        }
    }

    fn send(&mut self, order: Order, bytes: usize) -> Result<(), WriteError> {
        self.handed += bytes as u64;
        let sent = self.pipeline.send(order);
        self.check_sink()?;
        match sent {
            true => Ok(()),
            false => Err(self.panicked()),
        }
    }

    fn check_sink(&self) -> Result<(), WriteError> {
        let Some(source) = self.pipeline.failure() else {
            return Ok(());
        };
        let (name, written) = (self.options.name.clone(), self.written());
        let known = self.handed.max(self.options.expected);
        Err(match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => WriteError::Full {
                name,
                written,
                needed: known.saturating_sub(written).max(PAGE),
            },
            _ => WriteError::Io {
                name,
                written,
                source,
            },
        })
    }

    fn panicked(&self) -> WriteError {
        WriteError::Panicked {
            name: self.options.name.clone(),
        }
    }
}

/// Adds a chunk, or makes the last one longer by it; whether there is one more.
fn append(drafts: &mut Vec<Draft>, next: Draft) -> bool {
    if let Some(last) = drafts.last_mut()
        && last.kind == next.kind
        && last.run.space == next.run.space
        && last.run.address + last.run.bytes == next.run.address
    {
        last.run.bytes += next.run.bytes;
        return false;
    }
    drafts.push(next);
    true
}

fn check(run: Run) -> Result<(), WriteError> {
    let Run {
        space,
        address,
        bytes,
    } = run;
    let whole = bytes > 0 && (address | bytes).is_multiple_of(PAGE);
    match whole && address.checked_add(bytes).is_some() {
        true => Ok(()),
        false => Err(WriteError::Run {
            space,
            address,
            bytes,
        }),
    }
}
