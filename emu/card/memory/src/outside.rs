//! Memory that is not the card's, where its programs can have it mapped: windows of a peer's, which the
//! host has mapped for the card (scif_mmap(3)).
//!
//! ```text
//! 0          card memory      START                        END
//! |----------|                |--range--|  |--range--|     |
//! ```
//!
//! A page-table entry may name a page of such a range as it names a frame. What must stay true: such a page
//! is no frame. It is not counted, nobody tracks who writes to it, it holds no page table, and no image has
//! it. It may go at any moment for who has not a [`Shown`](crate::shown::Shown) of it: the host's driver may write its address
//! where it likes. So whoever reaches it by address does so under the lock under which it goes.

use std::{
    collections::BTreeMap,
    io,
    ptr::NonNull,
    sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, Weak},
};

use snaprig_dma::Shared;

/// Below it is card memory.
pub const START: u64 = 1 << 36;
/// Where the address space of a card's CPUs has something else.
const END: u64 = 1 << 38;
/// Ranges are further apart than any one walk from page to page goes, and begin where huge pages do.
pub(crate) const ALIGNMENT: u64 = 2 << 20;

/// A platform whose CPUs have to be told where such memory is.
pub trait Show: Send + Sync {
    /// Memory at `base` of this process is at `start` for guests.
    fn show(&self, start: u64, bytes: u64, base: NonNull<u8>) -> io::Result<()>;

    /// It is not any more. No page table names it.
    fn hide(&self, start: u64);
}

/// All such memory of a card.
#[derive(Default)]
pub struct Outside {
    ranges: RwLock<BTreeMap<u64, Range>>,
    platform: Mutex<Option<Weak<dyn Show>>>,
}

struct Range {
    bytes: u64,
    memory: Shared,
}

impl Outside {
    /// Finds a place for whole pages of `memory`, and tells the platform: where they begin.
    pub(crate) fn insert(&self, memory: Shared, bytes: u64) -> io::Result<u64> {
        let mut ranges = self.ranges.write().unwrap_or_else(PoisonError::into_inner);
        let start = free(&ranges, bytes).ok_or(io::ErrorKind::OutOfMemory)?;
        if let Some(platform) = self.platform() {
            platform.show(start, bytes, memory.base())?;
        }
        ranges.insert(start, Range { bytes, memory });
        Ok(start)
    }

    /// Takes the range at `start` away: from who reaches it by address, then from the platform's CPUs, and only then is
    /// its memory unmapped.
    pub(crate) fn remove(&self, start: u64) {
        let mut ranges = self.ranges.write().unwrap_or_else(PoisonError::into_inner);
        let gone = ranges.remove(&start);
        drop(ranges);
        if let Some(platform) = self.platform() {
            platform.hide(start);
        }
        drop(gone);
    }

    /// Tells this one from now on. Nothing is shown yet.
    pub fn tell(&self, platform: Weak<dyn Show>) {
        *self.platform.lock().unwrap_or_else(PoisonError::into_inner) = Some(platform);
    }

    fn platform(&self) -> Option<Arc<dyn Show>> {
        let platform = self.platform.lock().unwrap_or_else(PoisonError::into_inner);
        platform.as_ref().and_then(Weak::upgrade)
    }

    /// Whether `len` bytes at `address` are there now.
    pub fn contains(&self, address: u64, len: u64) -> bool {
        address >= START && find(&self.ranges(), address, len).is_some()
    }

    /// The memory behind `len` bytes at `address`: it, and where in it they are.
    pub fn memory(&self, address: u64, len: u64) -> Option<(Shared, u64)> {
        let ranges = self.ranges();
        let (range, at) = find(&ranges, address, len)?;
        Some((range.memory.clone(), at))
    }

    /// Copies out of it; zeros, if it is not there any more.
    pub fn read(&self, address: u64, to: &mut [u8]) {
        let ranges = self.ranges();
        let Some((range, at)) = find(&ranges, address, to.len() as u64) else {
            return to.fill(0);
        };
        // SAFETY: inside of the mapping, which stays for as long as the lock is held; `to` is private
        // memory, so they do not overlap.
        unsafe {
            let from = range.memory.base().add(at as usize);
            std::ptr::copy_nonoverlapping(from.as_ptr(), to.as_mut_ptr(), to.len());
        }
    }

    /// Copies into it, if it is still there.
    pub fn write(&self, address: u64, from: &[u8]) {
        let ranges = self.ranges();
        let Some((range, at)) = find(&ranges, address, from.len() as u64) else {
            return;
        };
        // SAFETY: inside of the mapping, which stays for as long as the lock is held; `from` is private
        // memory, so they do not overlap.
        unsafe {
            let to = range.memory.base().add(at as usize);
            std::ptr::copy_nonoverlapping(from.as_ptr(), to.as_ptr(), from.len());
        }
    }

    fn ranges(&self) -> RwLockReadGuard<'_, BTreeMap<u64, Range>> {
        self.ranges.read().unwrap_or_else(PoisonError::into_inner)
    }
}

fn find(ranges: &BTreeMap<u64, Range>, address: u64, len: u64) -> Option<(&Range, u64)> {
    let (start, range) = ranges.range(..=address).next_back()?;
    let at = address - start;
    let inside = at.checked_add(len).is_some_and(|end| end <= range.bytes);
    inside.then_some((range, at))
}

/// The first place for so many bytes with room on both sides.
fn free(ranges: &BTreeMap<u64, Range>, bytes: u64) -> Option<u64> {
    let mut start = START + ALIGNMENT;
    for (taken, range) in ranges {
        if bytes < taken.saturating_sub(start) {
            break;
        }
        start = (taken + range.bytes + 1).next_multiple_of(ALIGNMENT);
    }
    let end = start.checked_add(bytes)?;
    (bytes > 0 && end < END).then_some(start)
}
