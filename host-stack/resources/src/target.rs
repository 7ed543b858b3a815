//! Where the pages of an image go in a restart.

use std::{
    collections::HashMap,
    fs::File,
    mem::ManuallyDrop,
    ops::Range,
    os::{
        fd::{FromRawFd, RawFd},
        unix::fs::FileExt,
    },
};

use libc::pid_t;
use snaprig_tracee::memory;

use crate::{
    error::{Error, Result},
    huge::pages::Mapped,
    opened::damaged,
    sysv::objects::Attached,
};

/// By the number of a space.
pub type Targets = HashMap<u32, Target>;

/// What a space of the images is of.
pub enum Target {
    /// A process's memory: where it is not zero before it is filled.
    Memory(pid_t, Vec<Range<u64>>),
    /// New shared memory, or a new file.
    New(RawFd),
    /// New System V shared memory.
    Segment(Attached),
    /// New shared memory of huge pages of so many bytes.
    Huge(Mapped, u64),
    /// The same of System V.
    HugeSegment(Attached, u64),
}

/// Writes pages.
pub fn put(target: &Target, address: u64, bytes: &[u8]) -> Result<()> {
    match target {
        Target::Memory(pid, _) => Ok(memory::scatter(*pid, address, bytes)?),
        Target::New(fd) => write_at(*fd, bytes, address),
        Target::Segment(attached) | Target::HugeSegment(attached, _) => {
            let address = attached.address(address, bytes.len() as u64);
            let address = address.ok_or_else(|| damaged("pages behind the end of a segment"))?;
            Ok(memory::scatter(
                std::process::id() as pid_t,
                address,
                bytes,
            )?)
        }
        Target::Huge(mapped, _) => mapped.write(address, bytes),
    }
}

/// Zeros, where there is something else. What is of huge pages is there again, too, if there was nothing else in them.
pub fn clear(target: &Target, run: Range<u64>) -> Result<()> {
    if let Target::Huge(_, page_bytes) | Target::HugeSegment(_, page_bytes) = target {
        let first = run.start / page_bytes * page_bytes;
        let mut pages = (first..run.end).step_by(*page_bytes as usize);
        return pages.try_for_each(|page| put(target, page.max(run.start), &[0]));
    }
    let Target::Memory(_, of_file) = target else {
        return Ok(());
    };
    let zeros = [0; 64 << 10];
    for part in of_file {
        let (mut at, end) = (run.start.max(part.start), run.end.min(part.end));
        while at < end {
            let bytes = (end - at).min(zeros.len() as u64);
            put(target, at, &zeros[..bytes as usize])?;
            at += bytes;
        }
    }
    Ok(())
}

fn write_at(fd: RawFd, bytes: &[u8], at: u64) -> Result<()> {
    // SAFETY: the caller has the number from `Opened`, which keeps what it has open until all are closed, and the file
    // is not dropped, so it is not closed here.
    let file = ManuallyDrop::new(unsafe { File::from_raw_fd(fd) });
    let written = file.write_all_at(bytes, at);
    written.map_err(|source| Error::io("contents of a file", source))
}
