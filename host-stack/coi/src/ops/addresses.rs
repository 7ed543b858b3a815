//! Where buffers are in the memory of offload processes: at one address in all of them, which the host
//! chooses.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{LazyLock, Mutex},
};

use snaprig_offload_wire::coi::{BUFFER_SPACE, BUFFER_SPACE_END};

use crate::process::lock;

const PAGE: u64 = 4096;

/// Ranges that are free. Neighbours are one.
#[derive(Debug, Default)]
pub(super) struct Ranges {
    /// Beginnings, and lengths.
    by_start: BTreeMap<u64, u64>,
    by_len: BTreeSet<(u64, u64)>,
}

impl Ranges {
    /// A range is free (again).
    pub fn give(&mut self, start: u64, len: u64) {
        let (mut start, mut end) = (start, start + len);
        let before = self.by_start.range(..start).next_back();
        if let Some((at, len)) = before.map(|(at, len)| (*at, *len))
            && at + len == start
        {
            self.remove(at, len);
            start = at;
        }
        if let Some(len) = self.by_start.get(&end).copied() {
            self.remove(end, len);
            end += len;
        }
        self.insert(start, end - start);
    }

    /// The smallest range that is large enough, the first of those; its beginning is a multiple of
    /// `align`, a power of two that all ranges are multiples of `PAGE` with.
    pub fn take(&mut self, len: u64, align: u64) -> Option<u64> {
        let enough = len.checked_add(align - PAGE.min(align))?;
        let (has, start) = self.by_len.range((enough, 0)..).next().copied()?;
        self.remove(start, has);
        let at = start.next_multiple_of(align);
        self.insert(start, at - start);
        self.insert(at + len, start + has - (at + len));
        Some(at)
    }

    /// This range is not free any more, which it was.
    pub fn remove(&mut self, start: u64, len: u64) {
        self.by_start.remove(&start);
        self.by_len.remove(&(len, start));
    }

    fn insert(&mut self, start: u64, len: u64) {
        if len > 0 {
            self.by_start.insert(start, len);
            self.by_len.insert((len, start));
        }
    }

    /// Whether exactly this is one free range.
    pub fn has(&self, start: u64, len: u64) -> bool {
        self.by_start.get(&start) == Some(&len)
    }
}

static SPACE: LazyLock<Mutex<Ranges>> = LazyLock::new(|| {
    let mut all = Ranges::default();
    all.give(BUFFER_SPACE, BUFFER_SPACE_END - BUFFER_SPACE);
    Mutex::new(all)
});

/// A range of addresses; dropped, it is free again.
#[derive(Debug)]
pub(crate) struct Address {
    start: u64,
    len: u64,
}

impl Address {
    /// So many bytes, with a page behind them that nobody has: who writes past the end is told so.
    pub fn take(bytes: u64, align: u64) -> Option<Self> {
        let len = bytes.checked_next_multiple_of(PAGE)?.checked_add(PAGE)?;
        let start = lock(&SPACE).take(len, align)?;
        Some(Self { start, len })
    }

    pub fn get(&self) -> u64 {
        self.start
    }
}

impl Drop for Address {
    fn drop(&mut self) {
        lock(&SPACE).give(self.start, self.len);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BASE: u64 = 1 << 30;

    proptest! {
        /// What is taken is nobody else's, and all that is given back is one range again.
        #[test]
        fn ranges_do_not_meet_and_come_back_whole(
            calls in prop::collection::vec((any::<bool>(), 1u64..9, 0u32..3), 1..80),
        ) {
            let mut space = Ranges::default();
            space.give(BASE, 64 * PAGE);
            let mut taken: Vec<(u64, u64)> = Vec::new();
            for (take, pages, align) in calls {
                if take {
                    let (len, align) = (pages * PAGE, PAGE << align);
                    if let Some(at) = space.take(len, align) {
                        prop_assert!(at.is_multiple_of(align));
                        prop_assert!(at >= BASE && at + len <= BASE + 64 * PAGE);
                        prop_assert!(taken.iter().all(|(a, l)| at + len <= *a || a + l <= at));
                        taken.push((at, len));
                    }
                } else if let Some((at, len)) = taken.pop() {
                    space.give(at, len);
                }
            }
            taken.drain(..).for_each(|(at, len)| space.give(at, len));
            prop_assert!(space.has(BASE, 64 * PAGE));
            prop_assert_eq!(space.take(u64::MAX, PAGE), None);
        }
    }
}
