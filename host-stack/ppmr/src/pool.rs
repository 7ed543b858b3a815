//! Chunks of memory by number, and how many of them a stream may have.
//!
//! All streams of a node share its pool, and the paper leaves open what happens when one of them is slow: its chunks would
//! fill first the target's pool, then the source's, and all others would stand still behind it. So chunks are of two kinds:
//!
//! - For each stream that there may be, one is set aside. A stream that has none always gets that one.
//! - The others are shared. A stream may have one more of them while it has fewer than are free (Choudhury and Hahne,
//!   "Dynamic queue length thresholds for shared-memory packet switches", 1998). One stream alone gets half of them; n
//!   streams that take what they can get have an n+1th each; and one is always left for who comes next.
//!
//! What must stay true: a chunk is free, or exactly one has it; a stream that has no chunk can take one.

/// The chunks of a node.
#[derive(Debug)]
pub struct Pool {
    /// Those that are free; the last one back is the first to be used, while caches know it.
    free: Vec<u32>,
    /// How many of these are not set aside.
    shared_free: u32,
}

/// What a stream has of a pool.
#[derive(Debug, Default, PartialEq, Eq, Hash)]
pub struct Share {
    has_own: bool,
    shared: u32,
}

impl Share {
    /// How many chunks it has.
    pub fn chunks(&self) -> u32 {
        u32::from(self.has_own) + self.shared
    }
}

impl Pool {
    /// A pool of so many chunks for so many streams at most, each of which has a chunk.
    pub fn new(chunks: u32, streams_max: u32) -> Self {
        Self {
            free: (0..chunks).rev().collect(),
            shared_free: chunks.saturating_sub(streams_max),
        }
    }

    /// How many chunks are free.
    pub fn free(&self) -> u32 {
        self.free.len() as u32
    }

    /// Whether a stream may have one more.
    pub fn can_take(&self, share: &Share) -> bool {
        !self.free.is_empty() && (!share.has_own || share.shared < self.shared_free)
    }

    /// One more for a stream, if it may have that.
    pub fn take(&mut self, share: &mut Share) -> Option<u32> {
        if !self.can_take(share) {
            return None;
        }
        let slot = self.free.pop()?;
        match share.has_own {
            false => share.has_own = true,
            true => {
                share.shared += 1;
                self.shared_free -= 1;
            }
        }
        Some(slot)
    }

    /// A stream does not need this one any more.
    pub fn give(&mut self, share: &mut Share, slot: u32) {
        match share.shared {
            0 => share.has_own = false,
            _ => {
                share.shared -= 1;
                self.shared_free += 1;
            }
        }
        self.free.push(slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn one_alone_gets_half_of_what_is_shared_and_all_get_the_same() {
        let mut pool = Pool::new(64, 8);
        let mut one = Share::default();
        while pool.take(&mut one).is_some() {}
        assert_eq!(one.chunks(), 1 + 28);
        let mut pool = Pool::new(64, 8);
        let mut all: Vec<Share> = (0..8).map(|_| Share::default()).collect();
        for _ in 0..64 {
            for share in &mut all {
                pool.take(share);
            }
        }
        let chunks: Vec<_> = all.iter().map(Share::chunks).collect();
        assert_eq!(chunks, [8, 8, 7, 7, 7, 7, 7, 7]);
    }

    proptest! {
        #[test]
        fn who_has_none_gets_one_and_nothing_is_there_twice(
            chunks in 1..40u32, streams in 1..8u32, steps in prop::collection::vec((any::<bool>(), 0..8usize), 0..300)
        ) {
            prop_assume!(chunks >= streams);
            let mut pool = Pool::new(chunks, streams);
            let mut all: Vec<(Share, Vec<u32>)> = (0..streams).map(|_| Default::default()).collect();
            for (takes, which) in steps {
                let (share, slots) = &mut all[which % streams as usize];
                match (takes, slots.pop()) {
                    (false, Some(slot)) => pool.give(share, slot),
                    (false, None) => {}
                    (true, last) => {
                        slots.extend(last);
                        let has_none = slots.is_empty();
                        let slot = pool.take(share);
                        prop_assert!(slot.is_some() || !has_none);
                        slots.extend(slot);
                    }
                }
                prop_assert_eq!(share.chunks() as usize, slots.len());
                let mut taken: Vec<_> = all.iter().flat_map(|(_, slots)| slots.clone()).collect();
                let count = taken.len();
                taken.sort_unstable();
                taken.dedup();
                prop_assert_eq!(taken.len(), count);
                prop_assert_eq!(count + pool.free() as usize, chunks as usize);
            }
        }
    }
}
