//! x86-64 page tables in card memory: the truth of what a process's addresses mean, walked by the
//! virtual CPUs of `kvm` and consulted by `ptrace`.
//!
//! What must stay true: the tables own the frames of the tables, never the frames they map. Taking
//! an entry away does not free its frame: the caller flushes first, then puts it back. Entries
//! above [`USER_END`] are the platform's and are left alone. A huge page can always be split: a
//! table for that is put aside when it is mapped.
//!
//! The host's driver may write to card memory, so to the tables, at any time: an entry that points out of
//! memory counts as none. Pages alone, no tables and no huge pages, may also be in what is shown of a peer's
//! memory ([`outside`](crate::outside)): the host has mapped that for the card, and may reach all of it.
//! What else it does there harms the card's programs only.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{
    layout::{HUGE_PAGE, PAGE, USER_END},
    memory::CardMemory,
};

const PRESENT: u64 = 1;
const WRITE: u64 = 1 << 1;
const USER: u64 = 1 << 2;
/// Set by the processor; preset, so that it need not be.
const ACCESSED_DIRTY: u64 = 1 << 5 | 1 << 6;
/// In a directory: a page of [`HUGE_PAGE`] bytes instead of a table.
const HUGE: u64 = 1 << 7;
/// A bit that the processor ignores: the entry keeps a frame though it is not present (PROT_NONE).
const HELD: u64 = 1 << 9;
/// Another bit that it ignores: the frame may be others' too, a write has to copy it first.
const COPIED: u64 = 1 << 10;
const NO_EXECUTE: u64 = 1 << 63;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
const ENTRIES: u64 = 512;

/// What a mapping allows. Reading is always allowed but for `none`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Writing.
    pub write: bool,
    /// Executing.
    pub execute: bool,
    /// Nothing at all (PROT_NONE): the entry keeps its frame and is not present.
    pub none: bool,
    /// Copy on write: the frame may be others' too, so `write` is not.
    pub copied: bool,
}

impl Access {
    /// Whether an access of this kind goes through.
    pub fn allows(self, write: bool, execute: bool) -> bool {
        !self.none && (!write || self.write) && (!execute || self.execute)
    }
}

/// The card has no frame left for a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no card memory left for page tables")]
pub struct OutOfMemory;

/// The page tables of one address space.
pub struct PageTables {
    memory: Arc<CardMemory>,
    root: u64,
    /// Frames for the tables of huge pages that are split, one for each huge page.
    spare: Mutex<Vec<u64>>,
}

impl PageTables {
    /// Empty tables.
    pub fn new(memory: Arc<CardMemory>) -> Option<Self> {
        let root = memory.alloc()?;
        Some(Self {
            memory,
            root,
            spare: Mutex::default(),
        })
    }

    /// Card-physical address of the top table.
    pub fn root(&self) -> u64 {
        self.root
    }

    /// Maps the page at `va` to `frame`.
    pub fn map(&self, va: u64, frame: u64, access: Access) -> Result<(), OutOfMemory> {
        match self.map_run(va, frame, 1, access) {
            0 => Err(OutOfMemory),
            _ => Ok(()),
        }
    }

    /// Maps so many pages from `va` on to the frames from `frame` on. Returns how many there was memory for.
    pub fn map_run(&self, va: u64, frame: u64, pages: u64, access: Access) -> u64 {
        let bytes = pages.saturating_mul(PAGE);
        assert!(va.saturating_add(bytes) <= USER_END && (va | frame).is_multiple_of(PAGE));
        let mut done = 0;
        while done < bytes {
            let first = va + done;
            self.split(first);
            let Ok(table) = self.table(first, 0) else {
                break;
            };
            let border = (first | (HUGE_PAGE - 1)) + 1;
            let end = border.min(va + bytes);
            for page in (first..end).step_by(PAGE as usize) {
                let frame = frame + (page - va);
                self.memory
                    .store(slot(table, page, 0), frame | bits(access));
            }
            done = end - va;
        }
        done / PAGE
    }

    /// Maps the huge page at `va` to the frames from `frame` on.
    pub fn map_huge(&self, va: u64, frame: u64, access: Access) -> Result<(), OutOfMemory> {
        assert!(va < USER_END && (va | frame).is_multiple_of(HUGE_PAGE));
        let directory = self.table(va, 1)?;
        let spare = self.memory.alloc().ok_or(OutOfMemory)?;
        self.spare().push(spare);
        let entry = frame | bits(access) | HUGE;
        self.memory.store(slot(directory, va, 1), entry);
        Ok(())
    }

    /// Whether there is nothing where a huge page would be, and has not been.
    pub fn has_room(&self, va: u64) -> bool {
        directory(&self.memory, self.root, va)
            .is_none_or(|directory| self.memory.load(slot(directory, va, 1)) == 0)
    }

    /// Whether a huge page is mapped at `va`.
    pub fn is_huge(&self, va: u64) -> bool {
        directory(&self.memory, self.root, va)
            .is_some_and(|directory| self.memory.load(slot(directory, va, 1)) & HUGE != 0)
    }

    /// The frame at `va` and what may be done with it.
    pub fn get(&self, va: u64) -> Option<(u64, Access)> {
        lookup(&self.memory, self.root, va)
    }

    /// Changes what is allowed in `start..end`. What is copied on write stays so.
    pub fn protect(&self, start: u64, end: u64, access: Access) {
        self.edit(start, end, |_, entry| {
            let copied = access.copied || entry & COPIED != 0;
            entry & (ADDRESS | HUGE) | bits(Access { copied, ..access })
        });
    }

    /// Puts the frames from `frame` on behind what is mapped in `start..end`.
    pub fn replace(&self, start: u64, end: u64, frame: u64, access: Access) {
        self.edit(start, end, |va, entry| {
            (frame + (va - start)) | bits(access) | entry & HUGE
        });
    }

    /// Takes every page in `start..end` out and returns them: address and frame.
    pub fn unmap(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        let mut taken = Vec::new();
        self.edit(start, end, |va, entry| {
            let pages = if entry & HUGE != 0 { ENTRIES } else { 1 };
            let page = |i| (va + i * PAGE, (entry & ADDRESS) + i * PAGE);
            taken.extend((0..pages).map(page));
            0
        });
        taken
    }

    /// Every mapped page in `start..end`, in order: address, frame, access.
    pub fn mapped(&self, start: u64, end: u64) -> Vec<(u64, u64, Access)> {
        let mut found = Vec::new();
        self.each(start, end, |va, frame, access| {
            found.push((va, frame, access))
        });
        found
    }

    /// Shows every mapped page in `start..end`, in order: address, frame, access.
    pub fn each(&self, start: u64, end: u64, mut seen: impl FnMut(u64, u64, Access)) {
        self.extents(start, end, |va, frame, pages, access| {
            for at in (0..pages * PAGE).step_by(PAGE as usize) {
                seen(va + at, frame + at, access);
            }
        });
    }

    /// The same for neighbours in neighbouring frames, as far as an entry says so at once: address,
    /// frame, pages, access.
    pub fn extents(&self, start: u64, end: u64, mut seen: impl FnMut(u64, u64, u64, Access)) {
        self.visit(start, end, |_, va, entry| {
            let (first, last) = match entry & HUGE {
                0 => (va, va + PAGE),
                _ => (va.max(start), (va + HUGE_PAGE).min(end)),
            };
            let frame = (entry & ADDRESS) + (first - va);
            seen(first, frame, (last - first) / PAGE, access(entry));
        });
    }

    /// Replaces every entry in `start..end`, which is given its address and what it is.
    fn edit(&self, start: u64, end: u64, mut change: impl FnMut(u64, u64) -> u64) {
        for border in [start, end] {
            if !border.is_multiple_of(HUGE_PAGE) {
                self.split(border);
            }
        }
        let mut gone = Vec::new();
        self.visit(start, end, |slot, va, entry| {
            let now = change(va, entry);
            self.memory.store(slot, now);
            if entry & HUGE != 0 && now == 0 {
                gone.extend(self.spare().pop());
            }
        });
        for spare in gone {
            self.memory.put(spare);
        }
    }

    /// Every entry that maps something in `start..end`: where it is, its first address, itself.
    fn visit(&self, start: u64, end: u64, mut seen: impl FnMut(u64, u64, u64)) {
        let (mut va, end) = (start, end.min(USER_END));
        while va < end {
            let next = (va | (HUGE_PAGE - 1)) + 1;
            if let Some(directory) = directory(&self.memory, self.root, va) {
                let at = slot(directory, va, 1);
                let entry = load(&self.memory, at, 1);
                if entry & HUGE != 0 {
                    seen(at, va & !(HUGE_PAGE - 1), entry);
                } else if entry & PRESENT != 0 {
                    for page in (va..end.min(next)).step_by(PAGE as usize) {
                        let at = slot(entry & ADDRESS, page, 0);
                        let entry = load(&self.memory, at, 0);
                        if entry & (PRESENT | HELD) != 0 {
                            seen(at, page, entry);
                        }
                    }
                }
            }
            va = next;
        }
    }

    /// Makes the huge page at `va`, if there is one, a table of pages. Nothing that is in use
    /// changes, so that nothing needs to be flushed.
    fn split(&self, va: u64) {
        let Some(directory) = directory(&self.memory, self.root, va) else {
            return;
        };
        let at = slot(directory, va, 1);
        let entry = load(&self.memory, at, 1);
        if entry & HUGE == 0 {
            return;
        }
        // There is one for each huge page of ours.
        let Some(table) = self.spare().pop() else {
            return;
        };
        for index in 0..ENTRIES {
            let page = (entry & !HUGE) + index * PAGE;
            self.memory.store(table + index * 8, page);
        }
        self.memory
            .store(at, table | PRESENT | WRITE | USER | ACCESSED_DIRTY);
    }

    fn spare(&self) -> MutexGuard<'_, Vec<u64>> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The table of level `to` for `va`, made as needed.
    fn table(&self, va: u64, to: u32) -> Result<u64, OutOfMemory> {
        let mut table = self.root;
        for level in (to + 1..=3).rev() {
            let slot = slot(table, va, level);
            let mut entry = load(&self.memory, slot, level);
            if entry & PRESENT == 0 {
                let next = self.memory.alloc().ok_or(OutOfMemory)?;
                entry = next | PRESENT | WRITE | USER | ACCESSED_DIRTY;
                self.memory.store(slot, entry);
            }
            table = entry & ADDRESS;
        }
        Ok(table)
    }

    fn free(&self, table: u64, level: u32, entries: u64) {
        if level > 0 {
            for index in 0..entries {
                let entry = load(&self.memory, table + index * 8, level);
                if entry & PRESENT != 0 && entry & HUGE == 0 {
                    self.free(entry & ADDRESS, level - 1, ENTRIES);
                }
            }
        }
        self.memory.put(table);
    }
}

impl Drop for PageTables {
    fn drop(&mut self) {
        self.free(self.root, 3, USER_END >> 39);
        for spare in self.spare().drain(..) {
            self.memory.put(spare);
        }
    }
}

/// The frame at `va` in the tables at `root`, and what may be done with it.
pub fn lookup(memory: &CardMemory, root: u64, va: u64) -> Option<(u64, Access)> {
    let mut entry = load(memory, slot(directory(memory, root, va)?, va, 1), 1);
    let mut offset = va & (HUGE_PAGE - PAGE);
    if entry & HUGE == 0 {
        if entry & PRESENT == 0 {
            return None;
        }
        (entry, offset) = (load(memory, slot(entry & ADDRESS, va, 0), 0), 0);
    }
    (entry & (PRESENT | HELD) != 0).then(|| ((entry & ADDRESS) + offset, access(entry)))
}

/// The table of huge pages and tables for `va`.
fn directory(memory: &CardMemory, root: u64, va: u64) -> Option<u64> {
    if va >= USER_END {
        return None;
    }
    let mut table = root;
    for level in (2..=3).rev() {
        let entry = load(memory, slot(table, va, level), level);
        if entry & PRESENT == 0 {
            return None;
        }
        table = entry & ADDRESS;
    }
    Some(table)
}

/// The entry at `slot` of a table of `level`; 0 if what it points to is not memory that it may point to.
fn load(memory: &CardMemory, slot: u64, level: u32) -> u64 {
    let mut entry = memory.load(slot);
    if level == 0 {
        entry &= !HUGE;
    }
    let bytes = match level {
        1 if entry & HUGE != 0 => HUGE_PAGE,
        _ => PAGE,
    };
    let address = entry & ADDRESS;
    if memory.contains(address, bytes) || level == 0 && memory.outside().contains(address, bytes) {
        entry
    } else {
        0
    }
}

/// Address of the entry for `va` in `table`, at `level` (0 is the last).
fn slot(table: u64, va: u64, level: u32) -> u64 {
    table + (va >> (12 + 9 * level) & (ENTRIES - 1)) * 8
}

fn bits(access: Access) -> u64 {
    let copied = if access.copied { COPIED } else { 0 };
    if access.none {
        return HELD | copied;
    }
    let write = access.write && !access.copied;
    let write = if write { WRITE } else { 0 };
    let no_execute = if access.execute { 0 } else { NO_EXECUTE };
    PRESENT | USER | ACCESSED_DIRTY | copied | write | no_execute
}

fn access(entry: u64) -> Access {
    let none = entry & PRESENT == 0;
    Access {
        write: !none && entry & WRITE != 0,
        execute: !none && entry & NO_EXECUTE == 0,
        none,
        copied: entry & COPIED != 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outside;

    #[test]
    fn pages_map_protect_and_go_and_the_tables_are_given_back() {
        let memory = Arc::new(CardMemory::new(64 * PAGE).unwrap());
        let free = memory.free_bytes();
        let tables = PageTables::new(memory.clone()).unwrap();
        let write = Access {
            write: true,
            ..Access::default()
        };
        let none = Access {
            none: true,
            ..Access::default()
        };
        for va in [0x40_0000, 0x40_1000, USER_END - PAGE] {
            tables.map(va, 0x5000, write).unwrap();
            assert_eq!(tables.get(va), Some((0x5000, write)));
        }
        tables.protect(0x40_0000, 0x40_1000, none);
        assert_eq!(tables.get(0x40_0000), Some((0x5000, none)));
        assert_eq!(tables.mapped(0, USER_END).len(), 3);
        assert_eq!(tables.unmap(0x40_1000, 0x40_2000), [(0x40_1000, 0x5000)]);
        assert_eq!(tables.get(0x40_1000), None);
        assert_eq!(tables.get(USER_END), None);
        drop(tables);
        assert_eq!(memory.free_bytes(), free);
    }

    #[test]
    fn what_the_host_writes_to_tables_ends_nobody() {
        let memory = Arc::new(CardMemory::new(64 * PAGE).unwrap());
        let read = Access::default();
        for (level, frame, flags) in [
            (3, 1 << 28, PRESENT),
            (2, 64, PRESENT),
            (1, 64, PRESENT | HUGE),
            (1, 0, PRESENT | HUGE),
            (0, 64, PRESENT),
            (0, outside::START / PAGE, PRESENT),
            (0, (outside::START + HUGE_PAGE) / PAGE, PRESENT),
            (1, (outside::START + HUGE_PAGE) / PAGE, PRESENT | HUGE),
            (2, (outside::START + HUGE_PAGE) / PAGE, PRESENT),
            (0, 63, PRESENT),
            (0, 60, PRESENT | HUGE),
        ] {
            let tables = PageTables::new(memory.clone()).unwrap();
            let page = memory.alloc().unwrap();
            tables.map(0, page, read).unwrap();
            let table = (level..3).fold(tables.root(), |at, _| memory.load(at) & ADDRESS);
            memory.store(table, (frame * PAGE) | flags);
            let inside = |(frame, _)| memory.contains(frame, PAGE);
            assert!(tables.get(0).is_none_or(inside));
            tables.protect(0, PAGE, read);
            for (_, frame) in tables.unmap(0, PAGE) {
                memory.put(frame);
            }
            let _ = tables.map(0, page, read);
        }
    }

    #[test]
    fn a_huge_page_is_split_where_a_part_of_it_changes() {
        const VA: u64 = 0x4000_0000;
        let memory = Arc::new(CardMemory::new(4 * HUGE_PAGE).unwrap());
        let free = memory.free_bytes();
        let tables = PageTables::new(memory.clone()).unwrap();
        let (read, write) = (
            Access::default(),
            Access {
                write: true,
                ..Access::default()
            },
        );
        assert!(tables.has_room(VA));
        tables.map_huge(VA, HUGE_PAGE, write).unwrap();
        tables.map_huge(VA + HUGE_PAGE, 0, write).unwrap();
        assert!(!tables.has_room(VA));
        assert_eq!(
            tables.get(VA + 5 * PAGE),
            Some((HUGE_PAGE + 5 * PAGE, write))
        );
        tables.protect(VA + PAGE, VA + 3 * PAGE, read);
        for (page, access) in [(0, write), (1, read), (2, read), (3, write), (511, write)] {
            let frame = HUGE_PAGE + page * PAGE;
            assert_eq!(tables.get(VA + page * PAGE), Some((frame, access)));
        }
        assert_eq!(tables.mapped(VA + PAGE, VA + HUGE_PAGE + PAGE).len(), 512);
        tables.protect(VA, VA + 2 * HUGE_PAGE, Access { none: true, ..read });
        assert!(tables.get(VA + HUGE_PAGE).unwrap().1.none);
        assert_eq!(tables.unmap(VA, VA + 2 * HUGE_PAGE).len(), 1024);
        assert_eq!(tables.get(VA), None);
        assert!(tables.has_room(VA + HUGE_PAGE));
        drop(tables);
        assert_eq!(memory.free_bytes(), free);
    }
}
