//! A process's memory: areas, demand faults, and the calls that change them.
//!
//! | file | what it is |
//! |---|---|
//! | `area`, `ranges` | a range of addresses with one rule; all of them, changed as calls ask |
//! | `fault`, `share` | a page comes into being; pages that are copied on write |
//! | `user`, `fill` | how calls reach a process's memory; how an image fills it |
//! | `calls`, `layout` | mmap(2) and its relatives; where what every program has is |
//!
//! What must stay true: every present page-table entry owns one use of its frame; areas never
//! overlap; nothing is mapped outside an area. A private frame has one entry, but for those that are
//! copied on write (`share`). A page comes into being on the first touch; faults
//! are grouped, because an exit costs 10 to 80 us where KVM is nested.

mod area;
mod calls;
mod fault;
mod fill;
pub mod layout;
mod ranges;
mod share;
mod user;

use std::{collections::BTreeMap, sync::Arc};

use snaprig_card_driver::errno::Errno;
use snaprig_card_fs::Inode;
use snaprig_card_memory::{
    CardMemory, PAGE, USER_END,
    paging::{Access, PageTables},
};
use snaprig_card_platform::{Cpu, Platform, PlatformError, Space};

pub use self::{
    area::{Area, Backing, Traits},
    fault::Fault,
    fill::Filling,
};

/// Lowest address that may be mapped: null dereferences fault.
pub const USER_START: u64 = 0x1_0000;
/// Where `mmap` looks first; it goes down from here.
const MMAP_TOP: u64 = USER_END - (1 << 30);
/// Most areas of a process (Linux: vm.max_map_count).
const AREAS_MAX: usize = 65_530;
/// One address space.
pub struct AddressSpace {
    pub(super) memory: Arc<CardMemory>,
    pub(super) areas: BTreeMap<u64, Area>,
    space: Arc<dyn Space>,
    pub(super) tables: PageTables,
    /// What is mapped from now on is locked (mlockall(2), MCL_FUTURE).
    pub locks_all: bool,
    /// Start and end of the heap (brk(2)).
    pub brk: (u64, u64),
    /// No free range of as many bytes lies above this address: `find` need not look there.
    full_above: (u64, u64),
}

impl AddressSpace {
    /// An empty space.
    pub fn new(memory: &Arc<CardMemory>, platform: &dyn Platform) -> Result<Self, Errno> {
        let tables = PageTables::new(memory.clone()).ok_or(Errno::ENOMEM)?;
        let space = platform.new_space(tables.root()).map_err(|error| {
            tracing::error!(%error, "no address space");
            Errno::ENOMEM
        })?;
        Ok(Self {
            memory: memory.clone(),
            areas: BTreeMap::new(),
            space,
            tables,
            locks_all: false,
            brk: (0, 0),
            full_above: (MMAP_TOP, 0),
        })
    }

    /// For the CPUs that run in it.
    pub fn space(&self) -> Arc<dyn Space> {
        self.space.clone()
    }

    /// Start and rule of every area, in order.
    pub fn areas(&self) -> impl Iterator<Item = (u64, &Area)> {
        self.areas.iter().map(|(start, area)| (*start, area))
    }

    /// Enters a page, whose frame it takes over.
    pub(super) fn enter(&self, va: u64, frame: u64, access: Access) -> Result<(), Errno> {
        self.tables.map(va, frame, access).map_err(|_| {
            self.memory.put(frame);
            Errno::ENOMEM
        })
    }

    /// Adds an area over whatever was there. `start` and `area.end` are page-aligned.
    pub fn map(&mut self, cpu: &mut dyn Cpu, start: u64, area: Area) -> Result<(), Errno> {
        if start < USER_START {
            return Err(Errno::EPERM);
        }
        if area.end > USER_END || start >= area.end {
            return Err(Errno::ENOMEM);
        }
        if self.areas.len() >= AREAS_MAX {
            return Err(Errno::ENOMEM);
        }
        self.unmap(cpu, start, area.end)?;
        self.insert(start, area);
        Ok(())
    }

    /// Adds an area where nothing is.
    pub fn add(&mut self, start: u64, area: Area) -> Result<(), Errno> {
        if !self.is_free(start, area.end) {
            return Err(Errno::ENOMEM);
        }
        self.insert(start, area);
        Ok(())
    }

    /// Adds an area, joined with its neighbour below where the two are one.
    pub(super) fn insert(&mut self, start: u64, area: Area) {
        if let Some((&below, last)) = self.areas.range_mut(..start).next_back()
            && last.end == start
            && last.prot == area.prot
            && last.shared == area.shared
            && last.traits == area.traits
            && !area.shared
            && matches!(
                (&last.backing, &area.backing),
                (Backing::Anonymous, Backing::Anonymous)
            )
            && below < start
        {
            last.end = area.end;
            return;
        }
        self.areas.insert(start, area);
    }

    /// A free range of `len` bytes below the usual top, as high as there is one.
    pub fn find(&mut self, len: u64) -> Result<u64, Errno> {
        let mut top = match self.full_above {
            (above, least) if len >= least => above,
            _ => MMAP_TOP,
        };
        for (start, area) in self.areas.range(..top).rev() {
            if top.saturating_sub(area.end) >= len {
                break;
            }
            top = *start;
        }
        let start = top.checked_sub(len).filter(|start| *start >= USER_START);
        let start = start.ok_or(Errno::ENOMEM)?;
        self.full_above = (top, len);
        Ok(start)
    }

    /// Whether nothing is mapped in `start..end`.
    pub fn is_free(&self, start: u64, end: u64) -> bool {
        start < end
            && end <= USER_END
            && start >= USER_START
            && self
                .areas
                .range(..end)
                .next_back()
                .is_none_or(|(_, area)| area.end <= start)
    }

    /// Takes everything in `start..end` away.
    pub fn unmap(&mut self, cpu: &mut dyn Cpu, start: u64, end: u64) -> Result<(), Errno> {
        self.split(start);
        self.split(end);
        let starts: Vec<_> = self
            .areas
            .range(start..end)
            .map(|(start, _)| *start)
            .collect();
        if !starts.is_empty() && end > self.full_above.0 {
            self.full_above = (MMAP_TOP, 0);
        }
        let gone: Vec<_> = starts
            .iter()
            .filter_map(|start| self.areas.remove(start))
            .collect();
        self.release(cpu, start, end);
        // What devices have shown goes once nobody sees it.
        drop(gone);
        Ok(())
    }

    /// Drops the pages in `start..end`; the areas stay (madvise(MADV_DONTNEED)).
    pub fn release(&mut self, cpu: &mut dyn Cpu, start: u64, end: u64) {
        let pages = self.tables.unmap(start, end);
        if pages.is_empty() {
            return;
        }
        self.flush(Some(cpu), start, end);
        for (_, frame) in pages {
            self.memory.put(frame);
        }
    }

    /// Makes every CPU of the space forget what it knew of a range.
    pub(super) fn flush(&self, cpu: Option<&mut dyn Cpu>, start: u64, end: u64) {
        flushed(self.space.flush(cpu, start, end));
    }

    /// From now on what CPUs of this space write to is noticed (`dirty`), if it is where its pages are
    /// entered anew. What none of them may write to stays: code that has to be entered again is most of what a
    /// small increment costs its process. `cpu` as for [`Space::flush`].
    pub fn show_writes(&self, mut cpu: Option<&mut dyn Cpu>) {
        if !self.space.has_own_mapping() {
            return;
        }
        let areas: Vec<_> = self.areas().collect();
        let runs = areas.chunk_by(|(_, one), (_, next)| one.access().write == next.access().write);
        for run in runs.filter(|run| run[0].1.access().write) {
            let (start, end) = (run[0].0, run[run.len() - 1].1.end);
            // `as_deref_mut` would borrow the CPU for as long as it lives.
            match &mut cpu {
                Some(cpu) => self.flush(Some(&mut **cpu), start, end),
                None => self.flush(None, start, end),
            }
        }
    }

    /// The areas that reach into `start..end`, in order.
    pub(super) fn overlapping(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, &Area)> {
        let first = self
            .areas
            .range(..=start)
            .next_back()
            .map_or(start, |(first, _)| *first);
        self.areas
            .range(first..end)
            .filter(move |(_, area)| area.end > start)
            .map(|(start, area)| (*start, area))
    }

    /// The area at `va`.
    pub fn area(&self, va: u64) -> Option<(u64, &Area)> {
        let (start, area) = self.areas.range(..=va).next_back()?;
        (va < area.end).then_some((*start, area))
    }

    /// Makes `at` a border between areas.
    pub(super) fn split(&mut self, at: u64) {
        if let Some((&start, area)) = self.areas.range_mut(..at).next_back()
            && area.end > at
        {
            let upper = area.advanced(at - start);
            area.end = at;
            self.areas.insert(at, upper);
        }
    }

    /// brk(2): the new end, or the old one if it cannot be.
    pub fn set_brk(&mut self, cpu: &mut dyn Cpu, to: u64) -> u64 {
        let (start, end) = self.brk;
        let old = end.next_multiple_of(PAGE);
        if to < start || to >= MMAP_TOP {
            return end;
        }
        let new = to.next_multiple_of(PAGE);
        if new > old {
            if !self.is_free(old, new) || !self.has_room(new - old) {
                return end;
            }
            let heap = Area {
                end: new,
                prot: libc::PROT_READ | libc::PROT_WRITE,
                shared: false,
                backing: Backing::Anonymous,
                traits: Traits {
                    locked: self.locks_all,
                    ..Traits::default()
                },
            };
            self.insert(old, heap);
        } else if new < old && self.unmap(cpu, new, old).is_err() {
            return end;
        }
        self.brk.1 = to;
        to
    }

    /// Bytes of its areas that are in memory, shared ones too.
    pub fn resident_bytes(&self) -> u64 {
        let pages =
            |(start, area): (&u64, &Area)| self.tables.mapped(*start, area.end).len() as u64;
        self.areas.iter().map(pages).sum::<u64>() * PAGE
    }

    /// Whether so many bytes could be touched now. More than that is not promised, so that a program
    /// hears of it where it asks; areas that are reserved in parts may still come to more than there is.
    pub fn has_room(&self, bytes: u64) -> bool {
        bytes <= self.memory.free_bytes()
    }

    /// Shows the pages that exist in `start..end`, in order: address and frame.
    pub fn present(&self, start: u64, end: u64, mut seen: impl FnMut(u64, u64)) {
        self.tables.each(start, end, |va, frame, _| seen(va, frame));
    }

    /// The same for neighbours in neighbouring frames: address, frame, pages.
    pub fn extents(&self, start: u64, end: u64, mut seen: impl FnMut(u64, u64, u64)) {
        let seen = |va, frame, pages, _| seen(va, frame, pages);
        self.tables.extents(start, end, seen);
    }

    /// What is mapped of one file is mapped of another from now on. No page of it is there yet.
    pub fn replace_file(&mut self, old: &Arc<Inode>, new: &Arc<Inode>) {
        for area in self.areas.values_mut() {
            if let Backing::File { inode, .. } = &mut area.backing
                && Arc::ptr_eq(inode, old)
            {
                *inode = new.clone();
            }
        }
    }
}

impl AddressSpace {
    /// Gives all pages back. No CPU may run in this space again.
    pub fn clear(&mut self) {
        if !self.areas.is_empty() {
            flushed(self.space.end());
        }
        for (start, area) in std::mem::take(&mut self.areas) {
            self.empty(start, area.end);
        }
    }
}

impl Drop for AddressSpace {
    fn drop(&mut self) {
        self.clear();
    }
}

fn flushed(result: Result<(), PlatformError>) {
    if let Err(error) = result {
        // Running on with stale translations would let the guest see frames it gave back.
        tracing::error!(%error, "translations cannot be flushed");
        std::process::abort();
    }
}
