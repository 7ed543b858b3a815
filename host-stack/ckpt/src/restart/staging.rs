//! Memory of processes that are yet to be made, in that of their supervisor: filled while the tree that it comes from still
//! runs. Processes have it by fork(2), and nothing of it is copied while they stand still.
//!
//! ```text
//! image --pages--> slot of the supervisor --fork--> the same in the process --mremap--> area
//! ```
//! What must stay true: a slot has what the image says, as far as that was read, and zeroes elsewhere; nobody else keeps
//! that. What no slot has room for is filled as any other memory, and so is, out of its slot, what turns out not to be mapped
//! as slots are.
//!
//! Linux makes no one mapping of memory that came by fork(2) and of what is mapped beside it later, in any process
//! (`is_mergeable_anon_vma`), and mremap(2) does not take both at once: so a process is given no part of a mapping.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    ops::Range,
    ptr, slice,
};

use snaprig_ckpt_image::image::{PAGE, Piece};
use snaprig_resources::{
    error::{Error, Result},
    growing::moved,
    state::{Area, Body, Process, Tree},
    target::{Targets, clear, put},
};
use snaprig_tracee::{
    pagemap::Pagemap,
    ranges::Ranges,
    remote::{Call, call},
};

/// Where slots are: programs, and what instruments them (the shadow memory of sanitizers), rarely have anything there.
const SLOTS: Range<u64> = 0x2000_0000_0000..0x3000_0000_0000;
/// What is free around a slot: its area may grow by as much.
const ROOM: u64 = 1 << 30;
/// Bytes of a huge page. Areas are as they were to those: that many are moved at once.
const HUGE_BYTES: u64 = 2 << 20;
/// madvise(2), since Linux 5.14: pages that are about to be written to are there at once, without a fault each.
const MADV_POPULATE_WRITE: i32 = 23;

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
    /// The pages of which the image says something: never written to where it does not, so zeroes are there at most.
    said: Vec<bool>,
}

impl Slot {
    /// What is said of some pages, which begin so far from the slot's first address.
    fn say(&mut self, from: u64, bytes: u64, is_said: bool) {
        let pages = (from / PAGE) as usize..((from + bytes) / PAGE) as usize;
        if let Some(said) = self.said.get_mut(pages) {
            said.fill(is_said);
        }
    }

    /// The parts of which the image says something, of a slot that begins at this address.
    fn said(&self, first: u64) -> Ranges {
        let mut said = Ranges::default();
        let mut page = first;
        for run in self.said.chunk_by(|one, other| one == other) {
            let end = page + run.len() as u64 * PAGE;
            if run[0] {
                said.push(page..end);
            }
            page = end;
        }
        said
    }
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
                said: vec![false; ((end - at) / PAGE) as usize],
            };
            self.slots.insert((space, memory.start), slot);
        }
    }

    /// Pages of a space are about to come: they are made while nobody waits for them.
    pub fn populate(&self, space: u32, pages: &Range<u64>) {
        for (part, at) in self.of(space, pages) {
            // If there is no room for them, that is found out when they come.
            let _ = advise(&(at..at + (part.end - part.start)), MADV_POPULATE_WRITE);
        }
    }

    /// As memory of a space is when its processes stand still: what has become longer has room here, too. Only by who has
    /// reserved it, before fork(2).
    pub fn grow(&mut self, space: u32, memory: Range<u64>) {
        let slots = self.slots.range_mut((space, 0)..(space, memory.end));
        let mut slots = slots.rev().take_while(|(_, slot)| slot.end > memory.start);
        let (Some(((_, first), slot)), None) = (slots.next(), slots.next()) else {
            return;
        };
        let before = first.saturating_sub(memory.start);
        let behind = memory.end.saturating_sub(slot.end);
        if before.max(behind) > ROOM {
            return;
        }
        let wanted = slot.at - before..slot.at + (slot.end - first) + behind;
        let Range { start, end } = slot.mapped;
        for more in [wanted.start..start, end..wanted.end] {
            if !more.is_empty() && map(more.clone(), slot.is_unreserved).is_ok() {
                slot.mapped = slot.mapped.start.min(more.start)..slot.mapped.end.max(more.end);
            }
        }
    }

    /// What an image says next; `others` is told what of it no slot has room for.
    pub fn take(
        &mut self,
        piece: Piece<'_>,
        mut others: impl FnMut(Piece<'_>) -> Result<()>,
    ) -> Result<()> {
        match piece {
            Piece::State(_) => others(piece),
            Piece::Pages {
                space,
                address,
                bytes,
            } => {
                for (part, at) in self.split(space, address..address + bytes.len() as u64, true) {
                    let from = (part.start - address) as usize;
                    let bytes = &bytes[from..][..(part.end - part.start) as usize];
                    let Some(at) = at else {
                        let address = part.start;
                        others(Piece::Pages {
                            space,
                            address,
                            bytes,
                        })?;
                        continue;
                    };
                    let _ = advise(&(at..at + bytes.len() as u64), MADV_POPULATE_WRITE);
                    // SAFETY: the addresses are of a slot, which this mapped and nobody else knows of.
                    let to = unsafe { slice::from_raw_parts_mut(at as *mut u8, bytes.len()) };
                    to.copy_from_slice(bytes);
                }
                Ok(())
            }
            Piece::Zeroes {
                space,
                address,
                bytes,
            } => self.clear(space, address, bytes, true, |address, bytes| {
                others(Piece::Zeroes {
                    space,
                    address,
                    bytes,
                })
            }),
            Piece::Gone {
                space,
                address,
                bytes,
            } => self.clear(space, address, bytes, false, |address, bytes| {
                others(Piece::Gone {
                    space,
                    address,
                    bytes,
                })
            }),
        }
    }

    fn clear(
        &mut self,
        space: u32,
        address: u64,
        bytes: u64,
        is_said: bool,
        mut others: impl FnMut(u64, u64) -> Result<()>,
    ) -> Result<()> {
        let end = address.saturating_add(bytes);
        for (part, at) in self.split(space, address..end, is_said) {
            let bytes = part.end - part.start;
            match at {
                Some(at) => drop_pages(at..at + bytes)?,
                None => others(part.start, bytes)?,
            }
        }
        Ok(())
    }

    /// Addresses of which an image says something, or says that nothing is to be said of them any more: the parts of them,
    /// ascending, and where those of slots are here.
    fn split(
        &mut self,
        space: u32,
        addresses: Range<u64>,
        is_said: bool,
    ) -> Vec<(Range<u64>, Option<u64>)> {
        let mut slots: Vec<_> = self.of(space, &addresses).collect();
        slots.reverse();
        let (mut parts, mut next) = (Vec::new(), addresses.start);
        for (part, at) in slots {
            parts.push((next..part.start, None));
            next = part.end;
            if let Some((first, slot)) = self.slots.range_mut(..=(space, part.start)).next_back() {
                slot.say(part.start - first.1, part.end - part.start, is_said);
            }
            parts.push((part, Some(at)));
        }
        parts.push((next..addresses.end, None));
        parts.retain(|(part, _)| !part.is_empty());
        parts
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

    /// Where all of some memory is here, and which of it has its pages.
    fn whole(
        &self,
        space: u32,
        memory: Range<u64>,
        is_unreserved: bool,
    ) -> Option<(u64, Range<u64>)> {
        let mut slots = self.slots.range((space, 0)..(space, memory.end)).rev();
        let ((_, first), slot) = slots.next().filter(|(_, slot)| slot.end > memory.start)?;
        let is_one = slots
            .next()
            .is_none_or(|(_, slot)| slot.end <= memory.start);
        let at = (slot.at + memory.start).checked_sub(*first)?;
        let end = at + (memory.end - memory.start);
        let is_mapped = slot.mapped.start <= at && end <= slot.mapped.end;
        let pages = memory.start.max(*first)..memory.end.min(slot.end);
        (is_one && is_mapped && slot.is_unreserved == is_unreserved).then_some((at, pages))
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
        given
            .flat_map(|(start, at)| {
                // Its children were made without it ([`Self::give`]); those that it makes itself have it.
                let advice = libc::MADV_DOFORK as u64;
                let is_forked = [at.start, at.end - at.start, advice];
                [call(libc::SYS_madvise, is_forked), moved(at, start)]
            })
            .collect()
    }

    /// Whether an area is part of it.
    pub(super) fn gives(&self, process: &Process, area: &Area) -> bool {
        let mut given = self.given(process);
        given.any(|(start, at)| (start..start + at.end - at.start).contains(&area.start))
    }

    /// Fills in what slots have that no process was given.
    pub(super) fn fill_left(&self, targets: &Targets) -> Result<()> {
        let own = Pagemap::own_process()?;
        let none = Ranges::default();
        for ((space, first), slot) in &self.slots {
            let given = self.filled.get(space).unwrap_or(&none);
            let left = slot.said(*first).without(given);
            let Some(target) = targets.get(space) else {
                continue;
            };
            for part in left.iter() {
                let here = |address: u64| slot.at + address - first;
                let there = |at: u64| first + at - slot.at;
                let at = here(part.start)..here(part.end);
                let (mut pages, mut guards) = (Ranges::default(), Ranges::default());
                own.own(at.clone(), false, &mut pages, &mut guards)?;
                for run in Ranges::from(at).without(&pages).iter() {
                    clear(target, there(run.start)..there(run.end))?;
                }
                for run in pages.iter() {
                    // SAFETY: the addresses are of a slot, whose pages nobody changes as long as this is borrowed.
                    let bytes = unsafe {
                        slice::from_raw_parts(
                            run.start as *const u8,
                            (run.end - run.start) as usize,
                        )
                    };
                    put(target, there(run.start), bytes)?;
                }
            }
        }
        Ok(())
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

fn drop_pages(part: Range<u64>) -> Result<()> {
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

/// Whether areas of a process are where slots are.
fn is_in_the_way(body: &Body) -> bool {
    let mut areas = body.areas.iter();
    areas.any(|area| area.start < SLOTS.end && SLOTS.start < area.end)
}

/// Whether an area is mapped as slots are.
fn is_plain(area: &Area) -> bool {
    // Who wants no huge pages is not given any.
    let is_special = |flag: &[u8; 2]| [b"gd", b"dp", b"nh"].contains(&flag);
    area.is_own() && !area.flags.iter().any(is_special)
}

fn is_unreserved(area: &Area) -> bool {
    area.flags.contains(b"nr")
}

/// Whether areas may be of one mapping.
pub(super) fn is_beside(area: &Area, next: &Area) -> bool {
    area.end == next.start
        && is_plain(area)
        && is_plain(next)
        && is_unreserved(area) == is_unreserved(next)
}
