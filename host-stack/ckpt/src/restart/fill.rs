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

use super::files::{Opened, damaged};
use crate::{
    error::{Error, Result},
    memory, parallel,
    state::{Backing, Tree},
    sysv::Attached,
};

/// What a space of the images is of.
enum Target {
    /// A process's memory: where it is not zero before it is filled.
    Memory(pid_t, Vec<Range<u64>>),
    /// New shared memory, or a new file.
    New(i32),
    /// New System V shared memory.
    Segment(Attached),
}

/// Fills all spaces, on all processors: what takes longest is to make the pages.
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
    let filled = parallel::each(0..parallel::threads(), |_| fill());
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
            .filter(|area| !area.is_shared && matches!(area.backing, Backing::File { .. }));
        let of_file = of_file.map(|area| area.start..area.end).collect();
        targets.insert(process.space, Target::Memory(process.pid, of_file));
    }
    for (shared, (memory, _)) in tree.shared.iter().zip(&opened.shared) {
        targets.insert(shared.space, Target::New(*memory));
    }
    for segment in tree.sysv.iter().flat_map(|sysv| &sysv.segments) {
        let id = segment.object.id;
        let attached = Attached::attach(id, segment.size, true);
        let attached =
            attached.map_err(|source| Error::io(format!("System V shared memory {id}"), source))?;
        targets.insert(segment.space, Target::Segment(attached));
    }
    for (space, fd) in &opened.contents {
        if let Some(fd) = fd {
            targets.insert(*space, Target::New(*fd));
        }
    }
    Ok(targets)
}

fn put(target: &Target, address: u64, bytes: &[u8]) -> Result<()> {
    match target {
        Target::Memory(pid, _) => memory::scatter(*pid, address, bytes),
        Target::New(fd) => write_at(*fd, bytes, address),
        Target::Segment(attached) => {
            let address = attached.address(address, bytes.len() as u64);
            let address = address.ok_or_else(|| damaged("pages behind the end of a segment"))?;
            memory::scatter(std::process::id() as pid_t, address, bytes)
        }
    }
}

/// Zeros, where there is something else.
fn clear(target: &Target, run: Range<u64>) -> Result<()> {
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
