//! Copies pages into an image: from the memory of processes, and from files.

use std::{fs::File, io, ops::Range, os::fd::AsRawFd, os::unix::fs::FileExt};

use crate::{
    error::{Error, Result},
    faults,
};
use libc::pid_t;
use snaprig_ckpt_image::image::{Buffer, Run, Sink, WriteError, Writer};
use snaprig_tracee::faults::reached;
use snaprig_tracee::{memory, parallel, ranges::Ranges, remote::PAGE};

/// An image that pages are written to, wherever it goes.
pub trait PageWriter {
    /// A buffer to fill; waits for a free one.
    fn buffer(&mut self) -> Result<Buffer, WriteError>;
    /// The pages at the front of a buffer are those of runs, one behind the other.
    fn submit(&mut self, buffer: Buffer, runs: &[Run]) -> Result<(), WriteError>;
    /// Pages of a space.
    fn pages(&mut self, space: u32, address: u64, pages: &[u8]) -> Result<(), WriteError>;
    /// Pages of a space that are no more.
    fn gone(&mut self, space: u32, address: u64, bytes: u64) -> Result<(), WriteError>;
}

impl<S: Sink> PageWriter for Writer<S> {
    fn buffer(&mut self) -> Result<Buffer, WriteError> {
        Self::buffer(self)
    }

    fn submit(&mut self, buffer: Buffer, runs: &[Run]) -> Result<(), WriteError> {
        Self::submit(self, buffer, runs)
    }

    fn pages(&mut self, space: u32, address: u64, pages: &[u8]) -> Result<(), WriteError> {
        Self::pages(self, space, address, pages)
    }

    fn gone(&mut self, space: u32, address: u64, bytes: u64) -> Result<(), WriteError> {
        Self::gone(self, space, address, bytes)
    }
}

/// Parts of one process_vm_readv(2): as many as it takes (IOV_MAX).
const PARTS: usize = 1024;

/// Pages that are copied at once: they fill the front of a buffer.
#[derive(Default)]
struct Load {
    runs: Vec<Run>,
    bytes: usize,
}

impl Load {
    /// Takes from the front of `parts` what fits.
    fn take(space: u32, parts: &mut Vec<Range<u64>>, room: usize) -> Self {
        let mut load = Self::default();
        while let Some(part) = parts.last_mut() {
            let bytes = (part.end - part.start).min((room - load.bytes) as u64);
            if bytes == 0 || load.runs.len() == PARTS {
                break;
            }
            load.runs.push(Run {
                space,
                address: part.start,
                bytes,
            });
            load.bytes += bytes as usize;
            part.start += bytes;
            if part.is_empty() {
                parts.pop();
            }
        }
        load
    }

    /// Where they are.
    fn remote(&self) -> Vec<libc::iovec> {
        let runs = self.runs.iter().map(|run| libc::iovec {
            iov_base: run.address as *mut libc::c_void,
            iov_len: run.bytes as usize,
        });
        runs.collect()
    }

    /// Leaves out what is behind so many bytes; the first page of that is left out for good.
    fn cut(&mut self, copied: usize, parts: &mut Vec<Range<u64>>) {
        let mut left = (copied as u64) / PAGE * PAGE;
        let mut behind = Vec::new();
        for run in &mut self.runs {
            let (address, bytes) = (run.address, run.bytes);
            run.bytes = bytes.min(left);
            left -= run.bytes;
            if run.bytes < bytes {
                behind.push(address + run.bytes..address + bytes);
            }
        }
        self.runs.retain(|run| run.bytes > 0);
        if let Some(first) = behind.first_mut() {
            first.start += PAGE;
        }
        parts.extend(behind.into_iter().rev().filter(|part| !part.is_empty()));
    }
}

/// The last first.
fn reversed(parts: &Ranges) -> Vec<Range<u64>> {
    let mut parts: Vec<_> = parts.iter().collect();
    parts.reverse();
    parts
}

/// Has pages of a process that stands still written: on all processors, as many at once as a buffer takes. `back` is
/// what is taken off their addresses.
pub fn copy_held(
    space: u32,
    (pid, back): (pid_t, u64),
    parts: &Ranges,
    gather: impl Fn(pid_t, &[libc::iovec], &mut [u8]) -> snaprig_tracee::error::Result<()> + Sync,
    writer: &mut dyn PageWriter,
) -> Result<()> {
    let mut parts = reversed(parts);
    while !parts.is_empty() {
        let mut loads = Vec::new();
        while !parts.is_empty() && loads.len() < parallel::threads() {
            let buffer = writer.buffer()?;
            let load = Load::take(space, &mut parts, buffer.len());
            loads.push((buffer, load));
        }
        let copied = parallel::each(loads, |(mut buffer, load)| {
            gather(pid, &load.remote(), &mut buffer[..load.bytes])?;
            Ok::<_, Error>((buffer, load))
        });
        for copied in copied {
            let (buffer, mut load) = copied?;
            for run in &mut load.runs {
                run.address = run.address.wrapping_sub(back);
            }
            reached(&faults::PAGES);
            writer.submit(buffer, &load.runs)?;
        }
    }
    Ok(())
}

/// The same of one that runs: what it takes away meanwhile is left out. What was copied.
pub fn copy_running(
    space: u32,
    pid: pid_t,
    parts: &Ranges,
    writer: &mut dyn PageWriter,
) -> Result<Ranges> {
    let (mut parts, mut copied) = (reversed(parts), Vec::new());
    while !parts.is_empty() {
        let mut buffer = writer.buffer()?;
        let mut load = Load::take(space, &mut parts, buffer.len());
        let count = memory::gather_some(pid, &load.remote(), &mut buffer[..load.bytes])?;
        if count < load.bytes {
            load.cut(count, &mut parts);
        }
        let runs = load.runs.iter();
        copied.extend(runs.map(|run| run.address..run.address + run.bytes));
        writer.submit(buffer, &load.runs)?;
    }
    Ok(copied.into_iter().collect())
}

/// Has part of a process's memory written.
pub fn write_part(
    space: u32,
    file: &File,
    part: Range<u64>,
    writer: &mut dyn PageWriter,
) -> Result<()> {
    let mut at = part.start;
    while at < part.end {
        let mut buffer = writer.buffer()?;
        let bytes = (part.end - at).min(buffer.len() as u64);
        let read = file.read_exact_at(&mut buffer[..bytes as usize], at);
        read.map_err(|source| Error::io(format!("memory at {at:#x}"), source))?;
        let run = Run {
            space,
            address: at,
            bytes,
        };
        writer.submit(buffer, &[run])?;
        at += bytes;
    }
    Ok(())
}

/// As [`write_part`], as far as there is something; `back` is what is taken off addresses.
pub fn write_mapped(
    space: u32,
    file: &File,
    part: Range<u64>,
    back: u64,
    writer: &mut dyn PageWriter,
) -> Result<()> {
    let mut at = part.start;
    let mut bytes = vec![0; 1 << 20];
    while at < part.end {
        let count = (part.end - at).min(bytes.len() as u64) as usize;
        match file.read_exact_at(&mut bytes[..count], at) {
            Ok(()) => writer.pages(space, at.wrapping_sub(back), &bytes[..count])?,
            // Behind the end of the memory there is nothing.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) if error.raw_os_error() == Some(libc::EIO) => return Ok(()),
            Err(source) => return Err(Error::io(format!("memory at {at:#x}"), source)),
        }
        at += count as u64;
    }
    Ok(())
}

/// Writes the data of a file, but not its holes; the last page is filled with zeros. What was written.
pub fn write_file(space: u32, file: &File, writer: &mut dyn PageWriter) -> Result<Ranges> {
    let failed = |source| Error::io("contents of a file", source);
    let size = file.metadata().map_err(failed)?.len();
    let (mut at, mut written) = (0, Ranges::default());
    let mut bytes = vec![0; 1 << 20];
    while at < size {
        // SAFETY: lseek(2) takes numbers alone and no address, so the kernel reads and writes no memory of this
        // process.
        let data = unsafe { libc::lseek(file.as_raw_fd(), at as i64, libc::SEEK_DATA) };
        at = match u64::try_from(data) {
            Ok(data) => (data / PAGE * PAGE).max(at),
            // A hole to the end; or a file system that does not say.
            Err(_) if io::Error::last_os_error().raw_os_error() == Some(libc::ENXIO) => break,
            Err(_) => at,
        };
        let count = (size - at).min(bytes.len() as u64) as usize;
        file.read_exact_at(&mut bytes[..count], at)
            .map_err(failed)?;
        let whole = count.next_multiple_of(PAGE as usize);
        bytes[count..whole].fill(0);
        writer.pages(space, at, &bytes[..whole])?;
        written.push(at..at + whole as u64);
        at += whole as u64;
    }
    Ok(written)
}

/// Says of pages that they are no more.
pub fn write_gone(space: u32, gone: &Ranges, writer: &mut dyn PageWriter) -> Result<()> {
    for part in gone.iter() {
        writer.gone(space, part.start, part.end - part.start)?;
    }
    Ok(())
}
