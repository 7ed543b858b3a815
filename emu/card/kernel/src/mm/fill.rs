//! Filling an address space with the pages of an image, which come in ascending order, in runs.
//!
//! Each byte is written once: frames are not zeroed before. What an image leaves out of a huge page
//! is zeroed when a later page comes, or by [`Filling::finish`]. The next image of a chain changes what there is: areas,
//! then pages. What must stay true: nothing runs in a space before its filling is finished.

use snaprig_card_driver::errno::Errno;
use snaprig_card_memory::{CardMemory, HUGE_PAGE, PAGE};

use super::{AddressSpace, Area, MMAP_TOP};

/// A process's memory on its way in.
pub struct Filling {
    /// Bytes that are still to come, at most.
    left: u64,
    /// The frames of a huge page that are not filled yet: from where, and to where.
    open: (u64, u64),
}

impl Filling {
    /// Of so many bytes of pages, at most.
    pub fn new(bytes: u64) -> Self {
        Self {
            left: bytes,
            open: (0, 0),
        }
    }

    /// All pages have come.
    pub fn finish(&mut self, memory: &CardMemory) {
        memory.zero(self.open.0, self.open.1 - self.open.0);
        self.open = (0, 0);
    }

    /// Writes pages to the frames of a huge page.
    fn write(&mut self, memory: &CardMemory, frame: u64, pages: &[u8]) {
        let (from, to) = self.open;
        let end = frame + pages.len() as u64;
        if (from..to).contains(&frame) {
            memory.zero(from, frame - from);
            self.open.0 = end;
        }
        memory.write(frame, pages);
    }
}

impl AddressSpace {
    /// Has these areas in place of its own. Pages stay where both have private ones.
    pub fn set_areas(&mut self, areas: Vec<(u64, Area)>) -> Result<(), Errno> {
        let old = std::mem::take(&mut self.areas);
        self.full_above = (MMAP_TOP, 0);
        for (start, area) in areas {
            if let Err(error) = self.add(start, area) {
                // What is in memory is in the old ones.
                self.areas = old;
                return Err(error);
            }
        }
        for (start, area) in old {
            let kept = self.overlapping(start, area.end);
            let kept = kept.filter(|(_, new)| !area.shared && !new.shared);
            let kept: Vec<_> = kept
                .map(|(at, new)| (at.max(start), new.end.min(area.end), new.access()))
                .collect();
            let mut at = start;
            for (from, to, access) in kept {
                self.empty(at, from);
                if access != area.access() {
                    self.tables.protect(from, to, access);
                }
                at = to;
            }
            self.empty(at, area.end);
        }
        Ok(())
    }

    /// Gives pages back.
    pub fn empty(&mut self, start: u64, end: u64) {
        if start < end {
            for (_, frame) in self.tables.unmap(start, end) {
                self.memory.put(frame);
            }
        }
    }

    /// Puts whole pages at `address` and behind it, whatever the areas there allow.
    pub fn fill_run(
        &self,
        mut address: u64,
        mut pages: &[u8],
        filling: &mut Filling,
    ) -> Result<(), Errno> {
        while !pages.is_empty() {
            let (start, area) = self.area(address).ok_or(Errno::EBADMSG)?;
            // No further than the area, nor than a huge page there.
            let border = ((address | (HUGE_PAGE - 1)) + 1).min(area.end);
            let len = pages.len().min((border - address) as usize);
            let (part, rest) = pages.split_at(len);
            if self.tables.get(address).is_none() {
                self.open_huge_page(start, area, address, filling);
            }
            match self.tables.get(address) {
                Some((frame, _)) if self.tables.is_huge(address) => {
                    filling.write(&self.memory, frame, part);
                }
                _ => self.fill_pages(start, area, address, part)?,
            }
            filling.left = filling.left.saturating_sub(len as u64);
            address += len as u64;
            pages = rest;
        }
        Ok(())
    }

    /// Brings in the huge page around `page`, unfilled, where one fits and leaves room for all that is
    /// still to come.
    fn open_huge_page(&self, start: u64, area: &Area, page: u64, filling: &mut Filling) {
        if !self.has_room_for_huge_page(start, area, page)
            || filling.left.saturating_add(HUGE_PAGE) > self.memory.free_bytes()
        {
            return;
        }
        let Some(frame) = self.memory.alloc_huge_unzeroed() else {
            return;
        };
        if self.enter_huge(page, frame, area.access()) {
            filling.finish(&self.memory);
            filling.open = (frame, frame + HUGE_PAGE);
        }
    }

    fn fill_pages(&self, start: u64, area: &Area, address: u64, pages: &[u8]) -> Result<(), Errno> {
        for (index, page) in pages.chunks_exact(PAGE as usize).enumerate() {
            let va = address + index as u64 * PAGE;
            if self.tables.get(va).is_none() && !area.shared {
                // All of it is written here: whatever else would be in it need not be brought.
                let frame = self.memory.alloc_unzeroed(1, 1).ok_or(Errno::ENOMEM)?;
                self.memory.write(frame, page);
                self.enter(va, frame, area.access())?;
            } else {
                self.fill_page(start, area, va, 0, page)?;
            }
        }
        Ok(())
    }
}
