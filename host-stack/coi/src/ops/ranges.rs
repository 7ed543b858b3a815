//! Which bytes of a buffer's memory were written to: few ranges that have all of them, and not much more.
//!
//! What must stay true: nothing that was added is left out; there are never more than [`MOST`].

use std::{collections::BTreeMap, ops::Range};

/// Ranges that are kept apart. More are joined where least is between.
const MOST: usize = 1024;

/// Ranges, apart from each other: ends by starts.
#[derive(Debug, Default)]
pub(super) struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    /// Adds one.
    pub fn add(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let (mut start, mut end) = (range.start, range.end);
        while let Some((&at, &until)) = self.0.range(..=end).next_back()
            && until >= start
        {
            (start, end) = (start.min(at), end.max(until));
            self.0.remove(&at);
        }
        self.0.insert(start, end);
        if self.0.len() > MOST {
            self.join();
        }
    }

    /// All of them.
    pub fn into_all(self) -> Vec<Range<u64>> {
        self.0.into_iter().map(|(start, end)| start..end).collect()
    }

    /// Half as many, with what is between where least is.
    fn join(&mut self) {
        let mut gaps: Vec<u64> = self.gaps().collect();
        gaps.sort_unstable();
        let widest = gaps[gaps.len() / 2];
        let mut joined: BTreeMap<u64, u64> = BTreeMap::new();
        for (start, end) in std::mem::take(&mut self.0) {
            match joined.last_entry() {
                Some(mut last) if start - *last.get() <= widest => *last.get_mut() = end,
                _ => drop(joined.insert(start, end)),
            }
        }
        self.0 = joined;
    }

    fn gaps(&self) -> impl Iterator<Item = u64> {
        let next = self.0.keys().skip(1);
        self.0.values().zip(next).map(|(end, start)| start - end)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn all_that_is_added_is_there_and_nothing_else(
            added in prop::collection::vec((0..500u64, 0..20u64), 0..60),
        ) {
            let (mut ranges, mut expected) = (Ranges::default(), [false; 520]);
            for (start, len) in added {
                ranges.add(start..start + len);
                expected[start as usize..(start + len) as usize].fill(true);
            }
            let all = ranges.into_all();
            prop_assert!(all.windows(2).all(|two| two[0].end < two[1].start));
            let mut found = [false; 520];
            all.into_iter().for_each(|range| found[range.start as usize..range.end as usize].fill(true));
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn many_are_joined_where_least_is_between() {
        let mut ranges = Ranges::default();
        let start = |at: u64| at * 1000 + at % 2 * 900;
        (0..5000).for_each(|at| ranges.add(start(at)..start(at) + 1));
        let all = ranges.into_all();
        assert!(all.len() <= MOST && all.len() > MOST / 4, "{}", all.len());
        for at in 0..5000 {
            assert!(all.iter().any(|range| range.contains(&start(at))));
        }
    }
}
