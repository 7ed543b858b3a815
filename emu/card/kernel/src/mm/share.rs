//! Copy on write: what fork(2) leaves to parent and child, until one of them writes.
//!
//! What must stay true: a private frame that more than one space has is copied on write in all of
//! them, so writable in none; one that is entered without that is its space's own, and stays at its
//! address. So what is relied on from elsewhere is its space's own: pinned pages, which a DMA engine
//! writes to, and the words that threads wait for (futex(2)). Fork copies these for the child at
//! once, as Linux does what is pinned (mm/memory.c, `copy_present_page`).
//!
//! A write to what is shared costs a fault and a flush, which is as much as many pages' copies: so
//! neighbours come along, and small areas (stacks, a program's data) are copied by fork itself: what every
//! child writes to is had, or refused, where it is asked for.

use std::ops::Range;

use snaprig_card_driver::errno::Errno;
use snaprig_card_memory::{HUGE_PAGE, PAGE, paging::Access};
use snaprig_card_platform::Platform;

use super::{AddressSpace, Area, Backing, Fault, fault::FAULT_PAGES};

/// Writable areas of no more pages than this are copied at once.
const COPY_PAGES: u64 = 64;

/// Where less is free, only what is asked for is copied.
const SPARE_BYTES: u64 = 64 * PAGE;

/// The part of memory that fork, and what is made for other nodes to use, leave free for what was promised, half of what files
/// leave. Without it a fork bomb is ended by the killing of who writes next instead of by an error.
pub(super) const RESERVED_PART: u64 = 32;

/// A range to be widened.
const NOTHING: Range<u64> = Range {
    start: u64::MAX,
    end: 0,
};

/// Whether somebody relies on so many bytes of frames from an address on to stay where they are.
type IsAwaited<'a> = &'a dyn Fn(u64, u64) -> bool;

impl AddressSpace {
    /// A copy for fork(2): private pages are copied on write, shared ones shared. Frames that
    /// `is_awaited` stay this space's own.
    pub fn fork(&self, platform: &dyn Platform, is_awaited: IsAwaited) -> Result<Self, Errno> {
        let mut child = Self::new(&self.memory, platform)?;
        child.brk = self.brk;
        child.areas = self.areas.clone();
        let is_inherited = |area: &Area| {
            !area.traits.not_forked && !matches!(area.backing, Backing::Device { .. })
        };
        child.areas.retain(|_, area| is_inherited(area));
        for area in child.areas.values_mut() {
            // Locks are not inherited (mlock(2)).
            area.traits.locked = false;
        }
        let mut taken = NOTHING;
        let has_pages = |area: &Area| is_inherited(area) && !area.traits.wiped_on_fork;
        let mut areas = self.areas.iter().filter(|(_, area)| has_pages(area));
        let shared = areas.try_for_each(|(start, area)| {
            if area.shared {
                self.share_pages(&child, *start, area)
            } else {
                self.share_copied(&child, *start, area, is_awaited, &mut taken)
            }
        });
        // Other threads of the parent may run. Until here all that they write is the child's too.
        if !taken.is_empty() {
            self.flush(None, taken.start, taken.end);
        }
        shared?;
        match self.memory.free_bytes() < self.memory.bytes() / RESERVED_PART {
            true => Err(Errno::ENOMEM),
            false => Ok(child),
        }
    }

    fn share_pages(&self, child: &Self, start: u64, area: &Area) -> Result<(), Errno> {
        for (va, frame, access) in self.tables.mapped(start, area.end) {
            self.memory.get(frame);
            child.enter(va, frame, access)?;
        }
        Ok(())
    }

    /// Enters a private area's pages in the child. What this space could write to and cannot any more
    /// is `taken`.
    fn share_copied(
        &self,
        child: &Self,
        start: u64,
        area: &Area,
        is_awaited: IsAwaited,
        taken: &mut Range<u64>,
    ) -> Result<(), Errno> {
        let mut found = Vec::new();
        self.tables
            .extents(start, area.end, |va, frame, pages, access| {
                found.push((va, frame, pages, access));
            });
        let pages: u64 = found.iter().map(|(_, _, pages, _)| pages).sum();
        let is_small = area.access().write && pages <= COPY_PAGES;
        for (va, frame, pages, access) in found {
            let is_own = |frame, pages| {
                !access.copied && (is_small || self.is_relied_on(frame, pages, is_awaited))
            };
            let is_huge = pages * PAGE == HUGE_PAGE && frame.is_multiple_of(HUGE_PAGE);
            let step = match is_huge && !is_own(frame, pages) {
                true => pages,
                false => 1,
            };
            for at in (0..pages * PAGE).step_by((step * PAGE) as usize) {
                let (va, frame) = (va + at, frame + at);
                if step == 1 && is_own(frame, 1) {
                    let copy = self.copy_of(frame).ok_or(Errno::ENOMEM)?;
                    child.enter(va, copy, access)?;
                    continue;
                }
                let copied = Access {
                    write: false,
                    copied: true,
                    ..access
                };
                if !access.copied {
                    let end = va + step * PAGE;
                    self.tables.protect(va, end, copied);
                    if access.write {
                        widen(taken, va, end);
                    }
                }
                self.memory.get_run(frame, step);
                if step == 1 {
                    child.enter(va, frame, copied)?;
                } else if !child.enter_huge(va, frame, copied) {
                    return Err(Errno::ENOMEM);
                }
            }
        }
        Ok(())
    }

    /// Whether somebody has pinned some of these frames of this space, or waits there.
    fn is_relied_on(&self, frame: u64, pages: u64, is_awaited: IsAwaited) -> bool {
        is_awaited(frame, pages * PAGE) || self.are_used_twice(frame, pages)
    }

    /// Whether one of these frames has more than one use.
    fn are_used_twice(&self, frame: u64, pages: u64) -> bool {
        let is_used_twice = self.memory.shared();
        (0..pages).any(|page| is_used_twice(frame + page * PAGE))
    }

    /// Whether pages may be copied that nobody has asked for.
    pub(super) fn has_plenty(&self) -> bool {
        self.memory.free_bytes() >= self.memory.bytes() / 4
    }

    pub(super) fn copy_of(&self, frame: u64) -> Option<u64> {
        let copy = self.memory.alloc_unzeroed(1, 1)?;
        self.memory.copy(frame, copy, PAGE);
        Some(copy)
    }

    /// Whether a write to the page has to copy it.
    pub(crate) fn is_copied(&self, page: u64) -> bool {
        let entry = self.tables.get(page);
        entry.is_some_and(|(_, access)| access.copied)
    }

    /// The frame behind `va`, which stays there whoever forks or writes: for those who go by its address.
    pub fn own_frame(&self, va: u64, write: bool) -> Result<u64, Errno> {
        let (frame, page) = (self.frame(va, write)?, va & !(PAGE - 1));
        if !self.is_copied(page) {
            return Ok(frame);
        }
        let (start, area) = self.area(page).ok_or(Errno::EFAULT)?;
        self.unshare(start, area, page).map_err(|_| Errno::ENOMEM)?;
        self.frame(va, write)
    }

    /// Makes a page that is copied on write the space's own, and its neighbours where that is cheap.
    pub(super) fn unshare(&self, start: u64, area: &Area, page: u64) -> Result<(), Fault> {
        if self.tables.is_huge(page) && self.unshare_huge(area, page) {
            return Ok(());
        }
        let around = |bytes: u64| {
            let first = page & !(bytes - 1);
            first.max(start)..(first + bytes).min(area.end)
        };
        let (all, near) = (
            around(HUGE_PAGE),
            self.along(page, around(FAULT_PAGES * PAGE)),
        );
        let (mut left, mut changed) = (Vec::new(), NOTHING);
        let mut result = Ok(());
        for (va, frame, access) in self.tables.mapped(all.start, all.end) {
            if !access.copied {
                continue;
            }
            let own = if self.memory.uses(frame) == 1 {
                frame
            } else if va == page || near.contains(&va) && self.memory.free_bytes() > SPARE_BYTES {
                let Some(copy) = self.copy_of(frame) else {
                    result = Err(Fault::Full);
                    continue;
                };
                left.push(frame);
                copy
            } else {
                continue;
            };
            self.tables.replace(va, va + PAGE, own, area.access());
            widen(&mut changed, va, va + PAGE);
        }
        if !changed.is_empty() {
            self.flush(None, changed.start, changed.end);
        }
        for frame in left {
            self.memory.put(frame);
        }
        result
    }

    /// Which pages around one are copied with it: where memory is scarce none, unless the page before it
    /// has been, as by somebody who writes one after the other.
    fn along(&self, page: u64, around: Range<u64>) -> Range<u64> {
        if self.has_plenty() {
            return around;
        }
        let before = self.tables.get(page.saturating_sub(PAGE));
        match before.is_some_and(|(_, access)| access.write) {
            true => page..around.end,
            false => page..page + PAGE,
        }
    }

    /// The same for the whole huge page around `page`; not where others have it and memory is scarce.
    fn unshare_huge(&self, area: &Area, page: u64) -> bool {
        let first = page & !(HUGE_PAGE - 1);
        let pages = HUGE_PAGE / PAGE;
        let Some((frame, _)) = self.tables.get(first) else {
            return false;
        };
        let own = match self.are_used_twice(frame, pages) {
            false => Some(frame),
            true if self.has_plenty() => self.memory.alloc_unzeroed(pages as usize, pages as usize),
            true => None,
        };
        let Some(own) = own else {
            return false;
        };
        if own != frame {
            self.memory.copy(frame, own, HUGE_PAGE);
        }
        let end = first + HUGE_PAGE;
        self.tables.replace(first, end, own, area.access());
        self.flush(None, first, end);
        if own != frame {
            self.memory.put_run(frame, pages);
        }
        true
    }
}

fn widen(range: &mut Range<u64>, start: u64, end: u64) {
    *range = range.start.min(start)..range.end.max(end);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use snaprig_card_driver::device::UserMemory;
    use snaprig_card_memory::CardMemory;
    use snaprig_card_platform::{self as platform, Kind};

    use super::*;
    use crate::mm::{Backing, Traits};

    const VA: u64 = 0x4000_0000;
    const NOBODY: IsAwaited = &|_, _| false;

    struct Machine {
        memory: Arc<CardMemory>,
        platform: Arc<dyn Platform>,
    }

    fn machine() -> Machine {
        let memory = Arc::new(CardMemory::new(64 << 20).unwrap());
        let platform = platform::choose(Some(Kind::Ptrace), &memory).unwrap();
        Machine { memory, platform }
    }

    impl Machine {
        /// A space with an area of `pages` at `VA`, each holding its number.
        fn space(&self, pages: u64) -> AddressSpace {
            let mut mm = AddressSpace::new(&self.memory, &*self.platform).unwrap();
            let area = Area {
                end: VA + pages * PAGE,
                prot: libc::PROT_READ | libc::PROT_WRITE,
                shared: false,
                backing: Backing::Anonymous,
                traits: Traits::default(),
            };
            mm.add(VA, area).unwrap();
            for page in 0..pages {
                mm.write(at(page), &page.to_le_bytes()).unwrap();
            }
            mm
        }

        fn fork(&self, mm: &AddressSpace, is_awaited: IsAwaited) -> AddressSpace {
            mm.fork(&*self.platform, is_awaited).unwrap()
        }
    }

    fn at(page: u64) -> u64 {
        VA + page * PAGE
    }

    fn word(mm: &mut AddressSpace, page: u64) -> u64 {
        let mut bytes = [0; 8];
        mm.read(at(page), &mut bytes).unwrap();
        u64::from_le_bytes(bytes)
    }

    fn entry(mm: &AddressSpace, page: u64) -> (u64, Access) {
        mm.tables.get(at(page)).unwrap()
    }

    #[test]
    fn pages_are_shared_until_somebody_writes() {
        let machine = machine();
        let free = machine.memory.free_bytes();
        for pages in [200, 4 * 2048] {
            let mut parent = machine.space(pages);
            let before = machine.memory.free_bytes();
            let mut child = machine.fork(&parent, NOBODY);
            let mut grandchild = machine.fork(&child, NOBODY);
            assert!(before - machine.memory.free_bytes() < 64 * PAGE);
            let shared = entry(&parent, 100).0;
            assert_eq!(entry(&grandchild, 100).0, shared);
            assert!(!entry(&parent, 100).1.write && !entry(&child, 100).1.write);
            parent.write(at(100), &7_u64.to_le_bytes()).unwrap();
            child.write(at(101), &8_u64.to_le_bytes()).unwrap();
            let words = |mm: &mut AddressSpace| [100, 101, 102].map(|page| word(mm, page));
            assert_eq!(words(&mut parent), [7, 101, 102]);
            assert_eq!(words(&mut child), [100, 8, 102]);
            assert_eq!(words(&mut grandchild), [100, 101, 102]);
            drop((parent, child));
            // Who is left over takes the page without a copy.
            grandchild.write(at(100), &9_u64.to_le_bytes()).unwrap();
            assert_eq!(words(&mut grandchild), [9, 101, 102]);
            assert_eq!(entry(&grandchild, 100).0, shared);
            assert!(entry(&grandchild, 100).1.write);
            drop(grandchild);
            assert_eq!(machine.memory.free_bytes(), free);
        }
    }

    #[test]
    fn what_is_relied_on_stays_where_it_is() {
        let machine = machine();
        for pages in [200, 4 * 2048] {
            let mut parent = machine.space(pages);
            let first = machine.fork(&parent, NOBODY);
            // A pin of what is shared makes it the parent's own, even for reading.
            let pinned = parent.pin(at(90), PAGE, false).unwrap();
            let (frame, awaited) = (entry(&parent, 90).0, parent.own_frame(at(150), false));
            let awaited = awaited.unwrap();
            assert_eq!(pinned.extents[0].0, frame);
            assert_ne!(entry(&first, 90).0, frame);
            let mut second = machine.fork(&parent, &|from, len| {
                (from..from + len).contains(&(awaited + 8))
            });
            for (page, frame) in [(90, frame), (150, awaited)] {
                assert_eq!(entry(&parent, page).0, frame);
                assert!(entry(&parent, page).1.write);
                assert_ne!(entry(&second, page).0, frame);
                machine.memory.write(frame, &1_u64.to_le_bytes());
                assert_eq!(word(&mut parent, page), 1);
                assert_eq!(word(&mut second, page), page);
            }
            assert!(entry(&parent, 40).1.copied);
        }
    }

    #[test]
    fn a_protection_gives_no_write_to_what_is_shared() {
        let machine = machine();
        let mut parent = machine.space(200);
        let mut child = machine.fork(&parent, NOBODY);
        let write = Access {
            write: true,
            ..Access::default()
        };
        for access in [
            Access::default(),
            Access {
                none: true,
                ..Access::default()
            },
            write,
        ] {
            parent.tables.protect(at(0), at(200), access);
            assert!(!entry(&parent, 5).1.write && entry(&parent, 5).1.copied);
        }
        parent.write(at(5), &0_u64.to_le_bytes()).unwrap();
        assert_eq!((word(&mut parent, 5), word(&mut child, 5)), (0, 5));
    }

    #[test]
    fn small_areas_are_copied_at_once_and_full_memory_is_said() {
        let machine = machine();
        let parent = machine.space(COPY_PAGES);
        let child = machine.fork(&parent, NOBODY);
        assert!(entry(&parent, 0).1.write && entry(&child, 0).1.write);
        assert_ne!(entry(&parent, 0).0, entry(&child, 0).0);
        let large = machine.space(200);
        let mut sharer = machine.fork(&large, NOBODY);
        let mut all = Vec::new();
        while let Some(frame) = machine.memory.alloc() {
            all.push(frame);
        }
        assert_eq!(sharer.fault(at(3), true, false), Err(Fault::Full));
        assert_eq!(sharer.write(at(3), &[1]), Err(Errno::ENOMEM));
        assert_eq!(word(&mut sharer, 3), 3);
        for frame in all {
            machine.memory.put(frame);
        }
        assert_eq!(sharer.fault(at(3), true, false), Ok(()));
    }
}
