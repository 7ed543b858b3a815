//! A process's memory: areas, demand faults, and the calls that change them.
//!
//! What must stay true: every present page-table entry owns one use of its frame; areas never
//! overlap; nothing is mapped outside an area. A private frame has one entry, but for those that are
//! copied on write (`share`). A page comes into being on the first touch; faults
//! are grouped, because an exit costs 10 to 80 us where KVM is nested.

mod calls;
mod fill;
pub mod layout;
mod ranges;
mod share;

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};
use snaprig_card_driver::{
    device::{DeviceMemory, Pinned, UserMemory},
    errno::Errno,
};
use snaprig_card_fs::Inode;
use snaprig_card_memory::{
    CardMemory, HUGE_PAGE, PAGE, USER_END,
    paging::{Access, PageTables},
};
use snaprig_card_platform::{Cpu, Platform, PlatformError, Space};

pub use self::fill::Filling;

/// Lowest address that may be mapped: null dereferences fault.
pub const USER_START: u64 = 0x1_0000;
/// Where `mmap` looks first; it goes down from here.
const MMAP_TOP: u64 = USER_END - (1 << 30);
/// Pages brought in by one fault, around the one that was touched.
const FAULT_PAGES: u64 = 32;
/// Anonymous areas from this size on come in huge pages: in a smaller one (a stack, an allocator's
/// arena) more would be wasted than gained.
const HUGE_AREA: u64 = 8 * HUGE_PAGE;
/// Most areas of a process (Linux: vm.max_map_count).
const AREAS_MAX: usize = 65_530;
/// Most bytes of one `pin`.
const PIN_MAX_BYTES: u64 = 1 << 34;

/// What an area's pages come from.
#[derive(Clone)]
pub enum Backing {
    /// Zero pages of its own.
    Anonymous,
    /// A file's pages, shared with it or copied from it, from this byte offset on.
    File {
        /// The file.
        inode: Arc<Inode>,
        /// Its path, for /proc/self/maps and for snapshots.
        path: String,
        /// Offset of the area's start in the file.
        offset: u64,
    },
    /// What a device shows, from this byte offset on. A child has none of it.
    Device {
        /// The device's path, for /proc/self/maps.
        path: String,
        /// The mapping, of which this is all or a part.
        memory: Arc<DeviceMemory>,
        /// Offset of the area's start in the mapping.
        offset: u64,
    },
    /// What a device showed before a restore: nothing is there any more.
    Gone,
}

/// A range of addresses with one rule.
#[derive(Clone)]
pub struct Area {
    /// First address behind it.
    pub end: u64,
    /// `PROT_*` bits.
    pub prot: i32,
    /// `MAP_SHARED`.
    pub shared: bool,
    /// Where its pages come from.
    pub backing: Backing,
    /// What else is true of it.
    pub traits: Traits,
}

/// What is true of an area beside its protection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traits {
    /// Its file was opened for reading alone: it can never be written.
    pub read_only: bool,
    /// mlock(2).
    pub locked: bool,
    /// A child does not have it (MADV_DONTFORK).
    pub not_forked: bool,
    /// A child finds zeros in it (MADV_WIPEONFORK).
    pub wiped_on_fork: bool,
}

impl Area {
    /// How its pages are entered.
    pub(super) fn access(&self) -> Access {
        Access {
            write: self.prot & libc::PROT_WRITE != 0,
            execute: self.prot & libc::PROT_EXEC != 0,
            none: self.prot & (libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC) == 0,
            copied: false,
        }
    }

    /// The same area as seen from `by` bytes further on.
    pub(super) fn advanced(&self, by: u64) -> Self {
        let mut area = self.clone();
        if let Backing::File { offset, .. } | Backing::Device { offset, .. } = &mut area.backing {
            *offset += by;
        }
        area
    }
}

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

/// Why a touch cannot be satisfied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// No area there: SIGSEGV, SEGV_MAPERR.
    Unmapped,
    /// The area does not allow it: SIGSEGV, SEGV_ACCERR.
    Denied,
    /// Beyond the end of the file: SIGBUS, BUS_ADRERR.
    NoPage,
    /// The card's memory is full.
    Full,
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

    /// Brings in the page at `va`, and its neighbours where that is cheap.
    pub fn fault(&self, va: u64, write: bool, execute: bool) -> Result<(), Fault> {
        let page = va & !(PAGE - 1);
        let (start, area) = self.area(va).ok_or(Fault::Unmapped)?;
        let access = area.access();
        if !access.allows(write, execute) {
            return Err(Fault::Denied);
        }
        if write && self.is_copied(page) {
            return self.unshare(start, area, page);
        }
        if self.huge_page_in(start, area, page) {
            return Ok(());
        }
        if self.tables.get(page).is_none() {
            self.page_in(start, area, page)?;
        }
        let window = page & !(FAULT_PAGES * PAGE - 1);
        let (from, to) = (
            window.max(start),
            (window + FAULT_PAGES * PAGE).min(area.end),
        );
        for neighbour in (from..to).step_by(PAGE as usize) {
            // A neighbour that cannot be had now is not an error: it was not asked for.
            if self.tables.get(neighbour).is_none()
                && (self.memory.free_bytes() < 64 * PAGE
                    || self.page_in(start, area, neighbour).is_err())
            {
                break;
            }
        }
        Ok(())
    }

    /// Brings in the huge page around `page`, where one fits and a quarter of memory is free.
    fn huge_page_in(&self, start: u64, area: &Area, page: u64) -> bool {
        let enter = |frame| self.enter_huge(page, frame, area.access());
        self.has_room_for_huge_page(start, area, page)
            && self.memory.alloc_huge().is_some_and(enter)
    }

    fn has_room_for_huge_page(&self, start: u64, area: &Area, page: u64) -> bool {
        let first = page & !(HUGE_PAGE - 1);
        matches!(area.backing, Backing::Anonymous)
            && area.end - start >= HUGE_AREA
            && first >= start
            && first + HUGE_PAGE <= area.end
            && self.tables.has_room(first)
            && self.has_plenty()
    }

    /// Maps the huge page around `page`; without room for that its frames go back.
    fn enter_huge(&self, page: u64, frame: u64, access: Access) -> bool {
        let first = page & !(HUGE_PAGE - 1);
        let entered = self.tables.map_huge(first, frame, access).is_ok();
        if !entered {
            self.memory.put_run(frame, HUGE_PAGE / PAGE);
        }
        entered
    }

    fn page_in(&self, start: u64, area: &Area, page: u64) -> Result<(), Fault> {
        let frame = match &area.backing {
            Backing::Anonymous => self.memory.alloc().ok_or(Fault::Full)?,
            Backing::File { inode, offset, .. } => {
                let at = offset + (page - start);
                if at >= inode.size().next_multiple_of(PAGE) {
                    return Err(Fault::NoPage);
                }
                let frame = inode.frame(at / PAGE).map_err(|_| Fault::Full)?;
                if area.shared {
                    self.memory.get(frame);
                    frame
                } else {
                    self.copy_of(frame).ok_or(Fault::Full)?
                }
            }
            Backing::Device { memory, offset, .. } => {
                let frame = memory.frame(offset + (page - start));
                let frame = frame.ok_or(Fault::NoPage)?;
                self.memory.get(frame);
                frame
            }
            Backing::Gone => return Err(Fault::NoPage),
        };
        self.enter(page, frame, area.access())
            .map_err(|_| Fault::Full)
    }

    /// The frame behind `va`, faulted in as needed.
    pub fn frame(&self, va: u64, write: bool) -> Result<u64, Errno> {
        if va >= USER_END {
            return Err(Errno::EFAULT);
        }
        let page = va & !(PAGE - 1);
        match self.tables.get(page) {
            Some((frame, access)) if access.allows(write, false) => Ok(frame),
            Some((_, access)) if !(write && access.copied) => Err(Errno::EFAULT),
            _ => {
                self.fault(va, write, false).map_err(|fault| match fault {
                    Fault::Full => Errno::ENOMEM,
                    _ => Errno::EFAULT,
                })?;
                self.tables
                    .get(page)
                    .map(|(frame, _)| frame)
                    .ok_or(Errno::EFAULT)
            }
        }
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

    /// Puts contents at `va`, inside of one page of an area, whatever the area allows (exec).
    pub fn fill(&self, va: u64, bytes: &[u8]) -> Result<(), Errno> {
        let page = va & !(PAGE - 1);
        let (start, area) = self.area(page).ok_or(Errno::EFAULT)?;
        self.fill_page(start, area, page, va - page, bytes)
    }

    fn fill_page(
        &self,
        start: u64,
        area: &Area,
        page: u64,
        at: u64,
        bytes: &[u8],
    ) -> Result<(), Errno> {
        assert!(at + bytes.len() as u64 <= PAGE);
        if self.tables.get(page).is_none() {
            self.page_in(start, area, page).map_err(|_| Errno::ENOMEM)?;
        }
        if self.is_copied(page) {
            self.unshare(start, area, page).map_err(|_| Errno::ENOMEM)?;
        }
        let (frame, _) = self.tables.get(page).ok_or(Errno::EFAULT)?;
        self.memory.write(frame + at, bytes);
        Ok(())
    }

    fn for_each_page(
        &self,
        address: u64,
        len: usize,
        write: bool,
        mut visit: impl FnMut(u64, std::ops::Range<usize>),
    ) -> Result<(), Errno> {
        let mut done = 0;
        while done < len {
            let va = address.checked_add(done as u64).ok_or(Errno::EFAULT)?;
            let frame = self.frame(va, write)?;
            let in_page = (PAGE - va % PAGE) as usize;
            let part = in_page.min(len - done);
            visit(frame + va % PAGE, done..done + part);
            done += part;
        }
        Ok(())
    }
}

impl UserMemory for AddressSpace {
    fn read(&mut self, address: u64, to: &mut [u8]) -> Result<(), Errno> {
        let memory = self.memory.clone();
        self.for_each_page(address, to.len(), false, |at, part| {
            memory.read(at, &mut to[part])
        })
    }

    fn write(&mut self, address: u64, from: &[u8]) -> Result<(), Errno> {
        let memory = self.memory.clone();
        self.for_each_page(address, from.len(), true, |at, part| {
            memory.write(at, &from[part])
        })
    }

    fn writable(&mut self, address: u64, len: usize) -> usize {
        let mut good = 0;
        // A bad address only ends the count.
        let _ = self.for_each_page(address, len, true, |_, part| good = part.end);
        good
    }

    fn pin(&mut self, address: u64, len: u64, write: bool) -> Result<Pinned, Errno> {
        if !address.is_multiple_of(PAGE) || len == 0 || len > PIN_MAX_BYTES {
            return Err(Errno::EINVAL);
        }
        let mut pin = Pin {
            memory: self.memory.clone(),
            frames: Vec::new(),
        };
        let mut extents: Vec<(u64, u64)> = Vec::new();
        let end = address.checked_add(len).ok_or(Errno::EFAULT)?;
        for va in (address..end).step_by(PAGE as usize) {
            let frame = self.own_frame(va, write)?;
            if !self.memory.contains(frame, PAGE) {
                return Err(Errno::EFAULT);
            }
            self.memory.get(frame);
            pin.frames.push(frame);
            match extents.last_mut() {
                Some((start, bytes)) if *start + *bytes == frame => *bytes += PAGE,
                _ => extents.push((frame, PAGE)),
            }
        }
        Ok(Pinned {
            extents,
            guard: Arc::new(pin),
        })
    }

    fn maps(&self) -> String {
        let flag = |area: &Area, bit, letter| if area.prot & bit != 0 { letter } else { '-' };
        self.areas
            .iter()
            .map(|(start, area)| {
                let (offset, path) = match &area.backing {
                    Backing::File { path, offset, .. } | Backing::Device { path, offset, .. } => {
                        (*offset, path.as_str())
                    }
                    Backing::Anonymous if *start == self.brk.0 => (0, "[heap]"),
                    Backing::Anonymous if *start == layout::VDSO_BASE => (0, "[vdso]"),
                    Backing::Anonymous | Backing::Gone => (0, ""),
                };
                let line = format!(
                    "{start:08x}-{:08x} {}{}{}{} {offset:08x} 00:01 0 {path}",
                    area.end,
                    flag(area, libc::PROT_READ, 'r'),
                    flag(area, libc::PROT_WRITE, 'w'),
                    flag(area, libc::PROT_EXEC, 'x'),
                    if area.shared { 's' } else { 'p' },
                );
                format!("{}\n", line.trim_end())
            })
            .collect()
    }
}

/// Uses of frames that outlive the mappings they were found through.
struct Pin {
    memory: Arc<CardMemory>,
    frames: Vec<u64>,
}

impl Drop for Pin {
    fn drop(&mut self) {
        for frame in &self.frames {
            // Nobody saw who wrote to it.
            self.memory.dirty().mark(*frame);
            self.memory.put(*frame);
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
            for (_, frame) in self.tables.unmap(start, area.end) {
                self.memory.put(frame);
            }
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
