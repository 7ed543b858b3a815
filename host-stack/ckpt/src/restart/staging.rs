//! Memory of processes that are yet to be made, in that of their supervisor: filled while the tree that it comes from still
//! runs. Processes have it by fork(2), and nothing of it is copied while they stand still.
//!
//! ```text
//! image --pages--> slot of the supervisor --fork--> the same in the process --mremap--> area
//! ```
//! What must stay true: a slot has what the image says, as far as that was read, and zeroes elsewhere. What no slot
//! has room for is filled as any other memory.
//!
//! Linux makes no one mapping of memory that came by fork(2) and of what is mapped beside it later, in any process
//! (`is_mergeable_anon_vma`): mremap(2) does not take both at once before the next move.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    ops::Range,
    ptr, slice,
};

use snaprig_ckpt_image::image::{PAGE, Piece, Run};
use snaprig_resources::{
    error::{Error, Result},
    growing::moved,
    state::{Area, Backing, Body, Process, Tree},
};
use snaprig_tracee::{ranges::Ranges, remote::Call};

/// Where slots are: programs, and what instruments them (the shadow memory of sanitizers), rarely have anything there.
const SLOTS: Range<u64> = 0x2000_0000_0000..0x3000_0000_0000;
/// What is free around a slot: its area may grow by as much.
const ROOM: u64 = 1 << 30;
/// Bytes of a huge page. Areas are as they were to those: that many are moved at once.
const HUGE_BYTES: u64 = 2 << 20;
/// madvise(2), since Linux 6.1: huge pages now, without the mapping being one for which they are wanted.
const MADV_COLLAPSE: i32 = 25;

/// Memory of a process, as far as it went when it was told of.
struct Slot {
    /// The first address behind it.
    end: u64,
    /// MAP_NORESERVE.
    is_unreserved: bool,
    /// What is mapped for it here: all of it, and as much as it has grown.
    mapped: Range<u64>,
    /// Where here its first address is.
    at: u64,
}

/// Memory that processes are given when they are made.
#[derive(Default)]
pub struct Staging {
    /// By space and first address.
    slots: BTreeMap<(u32, u64), Slot>,
    /// Where here is what processes are given, by space and first address.
    given: BTreeMap<(u32, u64), Range<u64>>,
    /// The parts of those that have their pages, by space.
    filled: BTreeMap<u32, Ranges>,
}

impl Staging {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Room for private memory of a space (`is_unreserved`: with MAP_NORESERVE). If there is none here, its pages are left
    /// to the image.
    pub fn reserve(&mut self, space: u32, memory: Range<u64>, is_unreserved: bool) {
        let next = self.slots.values().map(|slot| slot.mapped.end).max();
        let at = next.unwrap_or(SLOTS.start) + 2 * ROOM;
        let at = at.next_multiple_of(HUGE_BYTES) + memory.start % HUGE_BYTES;
        let bytes = memory.end.checked_sub(memory.start);
        let end = bytes.and_then(|bytes| at.checked_add(bytes));
        let Some(end) = end.filter(|end| *end < SLOTS.end - ROOM) else {
            return;
        };
        if self.of(space, &memory).next().is_none() && map(at..end, is_unreserved).is_ok() {
            let slot = Slot {
                end: memory.end,
                is_unreserved,
                mapped: at..end,
                at,
            };
            self.slots.insert((space, memory.start), slot);
        }
    }

    /// What an image says next.
    pub fn take(&mut self, piece: &Piece<'_>) -> Result<()> {
        match *piece {
            Piece::State(_) => Ok(()),
            Piece::Pages {
                space,
                address,
                bytes,
            } => {
                for (part, at) in self.of(space, &(address..address + bytes.len() as u64)) {
                    let from = (part.start - address) as usize;
                    let pages = &bytes[from..][..(part.end - part.start) as usize];
                    // SAFETY: the addresses are of a slot, which this mapped and nobody else knows of.
                    let to = unsafe { slice::from_raw_parts_mut(at as *mut u8, pages.len()) };
                    to.copy_from_slice(pages);
                }
                Ok(())
            }
            Piece::Zeroes {
                space,
                address,
                bytes,
            }
            | Piece::Gone {
                space,
                address,
                bytes,
            } => {
                let gone = address..address.saturating_add(bytes);
                self.of(space, &gone)
                    .try_for_each(|(part, at)| clear(at..at + part.end - part.start))
            }
        }
    }

    /// Has what is whole in huge pages (transparent ones): their page tables are copied by each fork(2) from here to the
    /// process, while nothing of the tree runs. Where there are none, it only takes longer.
    pub fn compact(&self) {
        for slot in self.slots.values() {
            let first = slot.mapped.start.next_multiple_of(HUGE_BYTES);
            let mut whole = Ranges::default();
            for block in (first..slot.mapped.end).step_by(HUGE_BYTES as usize) {
                let block = block..block + HUGE_BYTES;
                if block.end <= slot.mapped.end && is_resident(&block) {
                    whole.push(block);
                }
            }
            for part in whole.iter() {
                let _ = advise(&part, MADV_COLLAPSE);
            }
        }
    }

    /// The parts of slots that are of these addresses, and where they are here.
    fn of(&self, space: u32, addresses: &Range<u64>) -> impl Iterator<Item = (Range<u64>, u64)> {
        let Range { start, end } = *addresses;
        let before = self.slots.range((space, 0)..(space, end)).rev();
        let overlapping = before.take_while(move |(_, slot)| slot.end > start);
        overlapping.map(move |((_, first), slot)| {
            let part = start.max(*first)..end.min(slot.end);
            let at = slot.at + part.start - first;
            (part, at)
        })
    }

    /// Finds out which memory of a tree can be what is here: areas that are next to each other as one, since protection may
    /// be all that has parted them, and a program may have them as one mapping again (mremap(2) takes no more than that).
    pub(super) fn settle(&mut self, tree: &Tree) {
        for process in &tree.processes {
            let Some(body) = &process.body else { continue };
            if is_in_the_way(body) {
                continue;
            }
            let mut filled = Ranges::default();
            for areas in body.areas.chunk_by(is_beside) {
                if let [first, .., last] | [first @ last] = areas
                    && is_plain(first)
                    && let Some((at, pages)) =
                        self.whole(process.space, first.start..last.end, is_unreserved(first))
                {
                    let at = at..at + last.end - first.start;
                    self.given.insert((process.space, first.start), at);
                    filled.push(pages);
                }
            }
            self.filled.insert(process.space, filled);
        }
    }

    /// Where all of some memory is here, and which of it has its pages: what was not there when it was told of is mapped.
    fn whole(
        &mut self,
        space: u32,
        memory: Range<u64>,
        is_unreserved: bool,
    ) -> Option<(u64, Range<u64>)> {
        let mut slots = self.slots.range_mut((space, 0)..(space, memory.end)).rev();
        let ((_, first), slot) = slots.next().filter(|(_, slot)| slot.end > memory.start)?;
        let is_one = slots
            .next()
            .is_none_or(|(_, slot)| slot.end <= memory.start);
        let before = first.saturating_sub(memory.start);
        let behind = memory.end.saturating_sub(slot.end);
        if !is_one || before.max(behind) > ROOM || slot.is_unreserved != is_unreserved {
            return None;
        }
        let Range { start, end } = slot.mapped;
        for more in [start - before..start, end..end + behind] {
            if !more.is_empty() {
                map(more, is_unreserved).ok()?;
            }
        }
        slot.mapped = start - before..end + behind;
        let pages = memory.start.max(*first)..memory.end.min(slot.end);
        Some(((slot.at + memory.start) - first, pages))
    }

    /// Before a process is forked: it, or its descendants, are those of `processes`, and no other memory is theirs.
    pub(super) fn give(&self, processes: &BTreeSet<u32>) {
        for ((space, _), slot) in &self.slots {
            let advice = match processes.contains(space) {
                true => libc::MADV_DOFORK,
                false => libc::MADV_DONTFORK,
            };
            // What this process was not given itself is not there.
            let _ = advise(&slot.mapped, advice);
        }
    }

    /// What a process is given: where it belongs, and where it is until it is moved there.
    fn given(&self, process: &Process) -> impl Iterator<Item = (u64, &Range<u64>)> {
        let of_space = (process.space, 0)..=(process.space, u64::MAX);
        let given = self.given.range(of_space);
        given.map(|((_, start), at)| (*start, at))
    }

    /// Where a process has what it is given.
    pub(super) fn kept(&self, process: &Process) -> Ranges {
        self.given(process).map(|(_, at)| at.clone()).collect()
    }

    /// The calls that move it to where it belongs.
    pub(super) fn moves(&self, process: &Process) -> Vec<Call> {
        let given = self.given(process);
        given.map(|(start, at)| moved(at, start)).collect()
    }

    /// Whether an area is part of it.
    pub(super) fn gives(&self, process: &Process, area: &Area) -> bool {
        let mut given = self.given(process);
        given.any(|(start, at)| (start..start + at.end - at.start).contains(&area.start))
    }

    /// Whether processes have been given all of these pages.
    pub(super) fn has(&self, run: &Run) -> bool {
        let filled = self.filled.get(&run.space);
        filled.is_some_and(|filled| {
            let pages = Ranges::from(run.address..run.address + run.bytes);
            pages.without(filled).bytes() == 0
        })
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        for slot in self.slots.values() {
            let Range { start, end } = slot.mapped;
            // SAFETY: what is unmapped is a slot's, which this mapped and nothing refers to.
            unsafe { libc::munmap(start as *mut _, (end - start) as usize) };
        }
    }
}

/// Memory as areas are mapped: it takes its mapping along when it is moved.
fn map(at: Range<u64>, is_unreserved: bool) -> io::Result<()> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    let flags = flags
        | if is_unreserved {
            libc::MAP_NORESERVE
        } else {
            0
        };
    let bytes = (at.end - at.start) as usize;
    // SAFETY: where there is anything already, the call fails.
    let mapped = unsafe { libc::mmap(at.start as *mut _, bytes, protection, flags, -1, 0) };
    match mapped == ptr::without_provenance_mut(at.start as usize) {
        true => Ok(()),
        false => Err(io::Error::last_os_error()),
    }
}

fn clear(part: Range<u64>) -> Result<()> {
    advise(&part, libc::MADV_DONTNEED)
        .map_err(|source| Error::io("memory of a tree that comes", source))
}

fn advise(part: &Range<u64>, advice: i32) -> io::Result<()> {
    // SAFETY: the addresses are of a slot, whose pages nothing refers to; all kinds of advice leave it mapped.
    let advised = unsafe {
        libc::madvise(
            part.start as *mut _,
            (part.end - part.start) as usize,
            advice,
        )
    };
    match advised {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Whether all pages of a block are there.
fn is_resident(block: &Range<u64>) -> bool {
    let mut pages = [0_u8; (HUGE_BYTES / PAGE) as usize];
    // SAFETY: the block is of a slot; mincore(2) writes a byte for each of its pages, as many as there is room for.
    let asked = unsafe {
        libc::mincore(
            block.start as *mut _,
            HUGE_BYTES as usize,
            pages.as_mut_ptr(),
        )
    };
    asked == 0 && pages.iter().all(|page| page & 1 == 1)
}

/// Whether areas of a process are where slots are.
fn is_in_the_way(body: &Body) -> bool {
    let mut areas = body.areas.iter();
    areas.any(|area| area.start < SLOTS.end && SLOTS.start < area.end)
}

/// Whether an area is mapped as slots are.
fn is_plain(area: &Area) -> bool {
    // Who wants no huge pages is not given any.
    let is_special = |flag: &[u8; 2]| [b"gd", b"dp", b"nh"].contains(&flag);
    matches!(area.backing, Backing::Anonymous)
        && !area.is_shared
        && area.huge_bytes == 0
        && !area.flags.iter().any(is_special)
}

fn is_unreserved(area: &Area) -> bool {
    area.flags.contains(b"nr")
}

/// Whether areas may be of one mapping.
fn is_beside(area: &Area, next: &Area) -> bool {
    area.end == next.start
        && is_plain(area)
        && is_plain(next)
        && is_unreserved(area) == is_unreserved(next)
}
