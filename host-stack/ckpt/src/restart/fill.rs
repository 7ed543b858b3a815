//! Fills memory, shared memory and files with what a chain of images has: for each page what the newest says.

use std::{
    collections::HashMap,
    fs::File,
    ops::Range,
    os::fd::FromRawFd,
    os::unix::fs::FileExt,
    sync::atomic::{AtomicUsize, Ordering},
};

use libc::pid_t;
use snaprig_ckpt_image::chain::{Chain, Part, Place};
use snaprig_tracee::{memory, parallel};

use crate::{
    error::{Error, Result},
    resources::{
        huge::pages::Mapped,
        opened::{Opened, damaged},
        sysv::objects::Attached,
    },
    state::{Backing, Tree},
};

/// What a space of the images is of.
enum Target {
    /// A process's memory: where it is not zero before it is filled.
    Memory(pid_t, Vec<Range<u64>>),
    /// New shared memory, or a new file.
    New(i32),
    /// New System V shared memory.
    Segment(Attached),
    /// New shared memory of huge pages of so many bytes.
    Huge(Mapped, u64),
    /// The same of System V.
    HugeSegment(Attached, u64),
}

/// Fills all spaces, on all processors: what takes longest is to make the pages, and to have them from the disk, for which
/// one of two threads waits.
pub fn fill(tree: &Tree, chain: &Chain, opened: &Opened) -> Result<()> {
    let (targets, next) = (targets(tree, opened)?, AtomicUsize::new(0));
    let parts: Vec<_> = chain.parts().collect();
    // Parts of one chunk, which is read once.
    let groups: Vec<_> = parts
        .chunk_by(|one, other| one.place.is_beside(&other.place))
        .collect();
    let fill = || {
        let filled = fill_some(&groups, &next, chain, &targets);
        if filled.is_err() {
            next.store(groups.len(), Ordering::Relaxed);
        }
        filled
    };
    let filled = parallel::each(0..2 * parallel::threads(), |_| fill());
    filled.into_iter().collect()
}

/// Fills group after group that nobody else has begun with.
fn fill_some(
    groups: &[&[Part]],
    next: &AtomicUsize,
    chain: &Chain,
    targets: &HashMap<u32, Target>,
) -> Result<()> {
    let mut loader = chain.loader();
    while let Some(group) = groups.get(next.fetch_add(1, Ordering::Relaxed)) {
        for part in *group {
            let (target, start) = (targets.get(&part.run.space), part.run.address);
            match (part.place, target) {
                (Place::Zeroes, Some(target)) => clear(target, start..start + part.run.bytes)?,
                (Place::Zeroes, None) => {}
                // Of files that have not changed nothing is needed, but it is checked.
                (Place::Stored { .. }, target) => loader.load(part, |at, pages| {
                    target.map_or(Ok(()), |target| put(target, start + at, pages))
                })?,
            }
        }
    }
    Ok(())
}

fn targets(tree: &Tree, opened: &Opened) -> Result<HashMap<u32, Target>> {
    let mut targets = HashMap::new();
    for process in &tree.processes {
        let Some(body) = &process.body else { continue };
        let of_file = body
            .areas
            .iter()
            .filter(|area| !area.is_shared && is_of_file(&area.backing));
        let of_file = of_file.map(|area| area.start..area.end).collect();
        targets.insert(process.space, Target::Memory(process.pid, of_file));
    }
    for (shared, (memory, _)) in tree.shared.iter().zip(&opened.shared) {
        let target = match shared.huge_bytes {
            0 => Target::New(*memory),
            // There is nothing to map.
            _ if shared.size == 0 => Target::New(*memory),
            // write(2) is not for them.
            bytes => {
                let mapped = Mapped::map(memory, shared.size, true);
                let mapped = mapped.map_err(|source| Error::io("shared huge pages", source))?;
                Target::Huge(mapped, bytes)
            }
        };
        targets.insert(shared.space, target);
    }
    for segment in tree.sysv.iter().flat_map(|sysv| &sysv.segments) {
        let id = segment.object.id;
        let attached = Attached::attach(id, segment.mapped_bytes(), true);
        let attached =
            attached.map_err(|source| Error::io(format!("System V shared memory {id}"), source))?;
        let target = match segment.huge_bytes {
            0 => Target::Segment(attached),
            bytes => Target::HugeSegment(attached, bytes),
        };
        targets.insert(segment.space, target);
    }
    for (space, fd) in &opened.contents {
        if let Some(fd) = fd {
            targets.insert(*space, Target::New(*fd));
        }
    }
    Ok(targets)
}

/// A private mapping of it shows what it has, but where it has been written to.
fn is_of_file(backing: &Backing) -> bool {
    matches!(backing, Backing::File { .. } | Backing::Shared(..))
}

fn put(target: &Target, address: u64, bytes: &[u8]) -> Result<()> {
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
fn clear(target: &Target, run: Range<u64>) -> Result<()> {
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

fn write_at(fd: i32, bytes: &[u8], at: u64) -> Result<()> {
    // SAFETY: it is open, and stays so: the file is not dropped.
    let file = std::mem::ManuallyDrop::new(unsafe { File::from_raw_fd(fd) });
    let written = file.write_all_at(bytes, at);
    written.map_err(|source| Error::io("contents of a file", source))
}
