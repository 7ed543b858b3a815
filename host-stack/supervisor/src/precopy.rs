//! Copies memory of a tree that runs, so that little is left to copy when it stands still: pre-copy, to a file or to
//! another machine.
//!
//! ```text
//! arm:   a stop, if there is much memory to which writes are not tracked yet
//! pass:  protect what was written to --> a stop, of nothing else --> copy it      (while the program writes on)
//! again: as long as a pass leaves much less to copy than it has copied; and once more just before the tree stands still
//! ```
//! The stop in the middle of a pass is for system calls that were under way: they may write to pages that they have
//! looked up before those were protected (read(2) with O_DIRECT, process_vm_writev(2)), and no fault tells of that.
//! What they write, they have written before it is copied.
//!
//! What must stay true: a page that was protected, and not copied after that, is missing from what the chain has.

use std::{
    cmp::Reverse,
    ops::Range,
    time::{Duration, Instant},
};

use libc::pid_t;
use procfs::process::{MMPermissions, MMapPath, MemoryMap, Process, VmFlags};
use serde::{Deserialize, Serialize};
use snaprig_ckpt::dump;
use snaprig_ckpt_image::image::{CHUNK_MAX, Sink, Writer};
use snaprig_resources::{
    error::Result,
    spaces::{Key, Spaces},
};
use snaprig_tracee::{code::kernels, freeze::Frozen, pagemap::Pagemap, ranges::Ranges, tree};

use crate::checkpoint::History;

/// Passes at most.
const PASSES_MAX: u32 = 6;
/// What is copied in a few milliseconds is left for when the tree stands still.
const LITTLE: u64 = 8 << 20;

/// Pieces of as many bytes are large.
const LARGE: u64 = 1 << 20;
/// Most large pieces that are told of.
const LARGE_MAX: usize = 1000;

/// What was done.
#[derive(Clone, Copy, Debug, Default)]
pub struct Precopy {
    /// Times that memory was copied.
    pub passes: u32,
    /// Bytes that were copied.
    pub bytes: u64,
    /// How long the tree stood still for it.
    pub stopped: Duration,
}

/// Copies the memory of all of this process's tree into an image, until little is left.
pub fn copy<S: Sink>(
    known: &mut History,
    spaces: &mut Spaces,
    writer: &mut Writer<S>,
) -> Result<Precopy> {
    let mut precopy = Precopy::default();
    arm(known, &mut precopy)?;
    let mut left = u64::MAX;
    while precopy.passes < PASSES_MAX && known.tracking.is_possible() {
        let bytes = pass(known, spaces, writer, &mut precopy)?;
        left = left_to_copy()?;
        if left <= LITTLE || left > bytes / 2 {
            break;
        }
    }
    // Nobody is to wait for a buffer while the tree stands still.
    let buffers = left.div_ceil(CHUNK_MAX as u64).saturating_mul(2);
    writer.settle(usize::try_from(buffers).unwrap_or(usize::MAX))?;
    Ok(precopy)
}

/// Tracks writes to all that can be tracked.
fn arm(known: &mut History, precopy: &mut Precopy) -> Result<()> {
    let pids = tree::processes()?;
    known.tracking.retain(&pids);
    let bytes: u64 = pids.iter().map(|pid| untracked_bytes(*pid)).sum();
    if bytes > LITTLE {
        let begun = Instant::now();
        let mut frozen = Frozen::freeze(&mut known.calls)?;
        for process in &mut frozen.processes {
            let areas = untracked(process.pid);
            known.tracking.start(process, &areas)?;
        }
        frozen.let_go()?;
        known.report_tracking();
        precopy.stopped += begun.elapsed();
    }
    Ok(())
}

/// Bytes of a process that no pass can copy.
fn untracked_bytes(pid: pid_t) -> u64 {
    let Ok(pagemap) = Pagemap::open(pid) else {
        return 0;
    };
    let mut own = Ranges::default();
    for area in untracked(pid) {
        // It may have ended.
        let _ = pagemap.own(area, false, &mut own, &mut Ranges::default());
    }
    own.bytes()
}

/// The areas of a process that no pass can copy.
fn untracked(pid: pid_t) -> Vec<Range<u64>> {
    let Ok(pagemap) = Pagemap::open(pid) else {
        return Vec::new();
    };
    let mut areas = areas(pid);
    areas.retain(|area| !pagemap.is_tracked(area.start));
    areas
}

/// Copies what the chain does not have, as it is now; how much that is.
pub fn pass<S: Sink>(
    known: &mut History,
    spaces: &mut Spaces,
    writer: &mut Writer<S>,
    precopy: &mut Precopy,
) -> Result<u64> {
    let mut missing = Vec::new();
    for pid in tree::processes()? {
        missing.extend(protect(pid, areas(pid), spaces).map(|pages| (pid, pages)));
    }
    if missing.iter().all(|(_, pages)| pages.bytes() == 0) {
        return Ok(0);
    }
    precopy.passes += 1;
    let begun = Instant::now();
    Frozen::freeze(&mut known.calls)?.let_go()?;
    precopy.stopped += begun.elapsed();
    let mut bytes = 0;
    for (pid, pages) in missing {
        let space = spaces.meet(Key::Process(pid));
        let copied = dump::copy_running(space.number(), pid, &pages, writer)?;
        bytes += copied.bytes();
        space.copied(&copied);
    }
    precopy.bytes += bytes;
    Ok(bytes)
}

/// Protects what was written to; what of a process the chain does not have. None: it has ended.
fn protect(pid: pid_t, areas: Vec<Range<u64>>, spaces: &mut Spaces) -> Option<Ranges> {
    let pagemap = Pagemap::open(pid).ok()?;
    let (mut own, mut written) = (Ranges::default(), Ranges::default());
    let mut result = Ok(());
    for area in areas {
        if result.is_ok() && pagemap.is_tracked(area.start) {
            result =
                pagemap.take_written(area.clone(), &mut own, &mut written, &mut Ranges::default());
            if result.is_err() {
                // Of how much it was told is not known.
                written.push(area);
            }
        }
    }
    let space = spaces.meet(Key::Process(pid));
    space.written(&written);
    result.ok().map(|()| space.missing(&own))
}

/// About how much has been written to since.
fn left_to_copy() -> Result<u64> {
    let mut bytes = 0;
    for pid in tree::processes()? {
        let Ok(pagemap) = Pagemap::open(pid) else {
            continue;
        };
        for area in areas(pid) {
            // It may have ended, or the area.
            bytes += pagemap.written_bytes(area).unwrap_or(0);
        }
    }
    Ok(bytes)
}

/// A process's private memory that is in one piece, however it is protected.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Piece {
    pub space: u32,
    pub start: u64,
    pub end: u64,
    /// MAP_NORESERVE.
    pub is_unreserved: bool,
}

/// The largest pieces of all of this process's tree.
pub fn large(spaces: &mut Spaces) -> Vec<Piece> {
    let mut large = Vec::new();
    for pid in tree::processes().unwrap_or_default() {
        let space = spaces.meet(Key::Process(pid)).number();
        // It may have ended.
        let maps = Process::new(pid).and_then(|process| process.smaps());
        let maps = maps.iter().flatten().filter(|map| is_private(map));
        let areas = maps.map(|map| {
            let is_unreserved = map.extension.vm_flags.contains(VmFlags::NR);
            (map.address.0..map.address.1, is_unreserved)
        });
        large.extend(pieces(space, areas));
    }
    largest(large)
}

/// Pages that are there, of a space.
pub type Present = (u32, Range<u64>);

/// Those of pieces, as far as that is told of.
pub fn present(spaces: &mut Spaces, large: &[Piece]) -> Vec<Present> {
    let mut present = Vec::new();
    for pid in tree::processes().unwrap_or_default() {
        let space = spaces.meet(Key::Process(pid)).number();
        let pieces = large.iter().filter(|piece| piece.space == space);
        let pages = pages_of(pid, pieces.map(|piece| piece.start..piece.end).collect());
        present.extend(pages.iter().map(|part| (space, part)));
    }
    present.sort_unstable_by_key(|(_, part)| Reverse(part.end - part.start));
    present.truncate(LARGE_MAX);
    present
}

/// Those of some memory of a process.
fn pages_of(pid: pid_t, memory: Ranges) -> Ranges {
    let mut pages = Ranges::default();
    let Ok(pagemap) = Pagemap::open(pid) else {
        return pages;
    };
    for area in memory.iter() {
        // What has gone meanwhile has none.
        let _ = pagemap.own(area, false, &mut pages, &mut Ranges::default());
    }
    pages
}

/// The largest of all pieces.
pub fn largest(mut pieces: Vec<Piece>) -> Vec<Piece> {
    pieces.retain(|piece| piece.end - piece.start >= LARGE);
    pieces.sort_unstable_by_key(|piece| Reverse(piece.end - piece.start));
    pieces.truncate(LARGE_MAX);
    pieces
}

/// The pieces that private areas of a space are, in order, each with whether it is one with MAP_NORESERVE.
pub fn pieces(space: u32, areas: impl Iterator<Item = (Range<u64>, bool)>) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::new();
    for (Range { start, end }, is_unreserved) in areas {
        match pieces.last_mut() {
            Some(last) if last.end == start && last.is_unreserved == is_unreserved => {
                last.end = end;
            }
            _ => pieces.push(Piece {
                space,
                start,
                end,
                is_unreserved,
            }),
        }
    }
    pieces
}

/// The private anonymous areas of a process that it can read; none of one that has ended.
fn areas(pid: pid_t) -> Vec<Range<u64>> {
    let Ok(maps) = Process::new(pid).and_then(|process| process.maps()) else {
        return Vec::new();
    };
    let can_read = |map: &&MemoryMap| map.perms.contains(MMPermissions::READ);
    let wanted = maps.iter().filter(|map| is_private(map)).filter(can_read);
    wanted.map(|map| map.address.0..map.address.1).collect()
}

/// Whether a mapping is private, and of no file.
fn is_private(map: &MemoryMap) -> bool {
    let is_nowhere = match &map.pathname {
        MMapPath::Path(_) | MMapPath::Vsyscall | MMapPath::Vsys(_) => false,
        _ => kernels(map).is_none(),
    };
    is_nowhere && map.perms.contains(MMPermissions::PRIVATE)
}
