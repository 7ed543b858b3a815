//! Demand faults: a page comes into being on the first touch, with its neighbours.

use snaprig_card_driver::errno::Errno;
use snaprig_card_memory::{HUGE_PAGE, PAGE, USER_END, paging::Access};

use super::{
    AddressSpace,
    area::{Area, Backing},
};

/// Pages brought in by one fault, around the one that was touched.
pub(super) const FAULT_PAGES: u64 = 32;
/// Anonymous areas from this size on come in huge pages: in a smaller one (a stack, an allocator's
/// arena) more would be wasted than gained.
pub(super) const HUGE_AREA: u64 = 8 * HUGE_PAGE;
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

/// Neighbours in neighbouring frames: address, frame, pages.
fn runs(pages: impl Iterator<Item = (u64, u64)>) -> Vec<(u64, u64, u64)> {
    let mut runs: Vec<(u64, u64, u64)> = Vec::new();
    for (va, frame) in pages {
        match runs.last_mut() {
            Some((first, from, pages))
                if *first + *pages * PAGE == va && *from + *pages * PAGE == frame =>
            {
                *pages += 1;
            }
            _ => runs.push((va, frame, 1)),
        }
    }
    runs
}

impl AddressSpace {
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

    pub(super) fn has_room_for_huge_page(&self, start: u64, area: &Area, page: u64) -> bool {
        let first = page & !(HUGE_PAGE - 1);
        matches!(area.backing, Backing::Anonymous)
            && area.end - start >= HUGE_AREA
            && first >= start
            && first + HUGE_PAGE <= area.end
            && self.tables.has_room(first)
            && self.has_plenty()
    }

    /// Maps the huge page around `page`; without room for that its frames go back.
    pub(super) fn enter_huge(&self, page: u64, frame: u64, access: Access) -> bool {
        let first = page & !(HUGE_PAGE - 1);
        let entered = self.tables.map_huge(first, frame, access).is_ok();
        if !entered {
            self.memory.put_run(frame, HUGE_PAGE / PAGE);
        }
        entered
    }

    /// Brings in what there is already of files that are mapped shared in `start..end`: page by page it takes ten times as long.
    pub(super) fn enter_shared(&self, start: u64, end: u64, write: bool) {
        for (from, area) in self.overlapping(start, end) {
            let (true, Backing::File { inode, offset, .. }) = (area.shared, &area.backing) else {
                continue;
            };
            let access = area.access();
            if !access.allows(write, false) {
                continue;
            }
            let page = |va| (offset + (va - from)) / PAGE;
            let (first, last) = (from.max(start), area.end.min(end));
            let last = page(last).min(inode.size().div_ceil(PAGE));
            let frames = inode.frames(page(first)..last.max(page(first)));
            let frames = frames.into_iter();
            let absent = frames.map(|(page, frame)| (from + (page * PAGE - offset), frame));
            let absent = absent.filter(|(va, _)| self.tables.get(*va).is_none());
            for (va, frame, pages) in runs(absent) {
                self.memory.get_run(frame, pages);
                let entered = self.tables.map_run(va, frame, pages, access);
                if entered < pages {
                    let left = frame + entered * PAGE;
                    return self.memory.put_run(left, pages - entered);
                }
            }
        }
    }

    pub(super) fn page_in(&self, start: u64, area: &Area, page: u64) -> Result<(), Fault> {
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
}
