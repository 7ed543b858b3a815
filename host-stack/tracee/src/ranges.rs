//! Sets of addresses.

use std::ops::Range;

/// Ranges that are sorted, and neither empty nor next to each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranges(Vec<Range<u64>>);

impl Ranges {
    /// Adds what is behind everything that is there, or at its end.
    pub fn push(&mut self, range: Range<u64>) {
        match self.0.last_mut() {
            Some(last) if last.end >= range.start => last.end = last.end.max(range.end),
            _ if range.is_empty() => {}
            _ => self.0.push(range),
        }
    }

    /// The ranges, in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Range<u64>> + Clone {
        self.0.iter().cloned()
    }

    /// How many addresses.
    pub fn bytes(&self) -> u64 {
        self.iter().map(|range| range.end - range.start).sum()
    }

    /// What is in one of them.
    pub fn union(&self, other: &Self) -> Self {
        self.iter().chain(other.iter()).collect()
    }

    /// What is not in the other.
    pub fn without(&self, other: &Self) -> Self {
        let mut left = Self::default();
        let mut others = other.0.as_slice();
        for Range { mut start, end } in self.iter() {
            while let Some(gap) = others.first().filter(|gap| gap.end <= start) {
                debug_assert!(gap.start < gap.end);
                others = &others[1..];
            }
            for gap in others {
                if gap.start >= end {
                    break;
                }
                left.push(start..gap.start.max(start));
                start = gap.end;
            }
            left.push(start..end.max(start));
        }
        left
    }

    /// What is in both.
    pub fn within(&self, other: &Self) -> Self {
        self.without(&self.without(other))
    }
}

impl From<Range<u64>> for Ranges {
    fn from(range: Range<u64>) -> Self {
        std::iter::once(range).collect()
    }
}

impl FromIterator<Range<u64>> for Ranges {
    fn from_iter<I: IntoIterator<Item = Range<u64>>>(ranges: I) -> Self {
        let mut sorted: Vec<_> = ranges.into_iter().collect();
        sorted.sort_unstable_by_key(|range| range.start);
        let mut set = Self::default();
        for range in sorted {
            set.push(range);
        }
        set
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn set(parts: &[(u8, u8)]) -> (Ranges, BTreeSet<u64>) {
        let ranges = parts
            .iter()
            .map(|(at, len)| u64::from(*at)..u64::from(*at) + u64::from(*len));
        (ranges.clone().collect(), ranges.flatten().collect())
    }

    fn same(ranges: &Ranges, expected: BTreeSet<u64>) -> bool {
        let apart = ranges.0.windows(2).all(|two| two[0].end < two[1].start);
        let full = ranges.0.iter().all(|range| !range.is_empty());
        apart && full && ranges.iter().flatten().collect::<BTreeSet<_>>() == expected
    }

    proptest! {
        #[test]
        fn they_are_the_sets_that_they_say(
            one in prop::collection::vec((0..100u8, 0..20u8), 0..12),
            other in prop::collection::vec((0..100u8, 0..20u8), 0..12),
        ) {
            let ((a, x), (b, y)) = (set(&one), set(&other));
            prop_assert!(same(&a, x.clone()));
            prop_assert_eq!(a.bytes(), x.len() as u64);
            prop_assert!(same(&a.union(&b), &x | &y));
            prop_assert!(same(&a.without(&b), &x - &y));
            prop_assert!(same(&a.within(&b), &x & &y));
        }
    }
}
