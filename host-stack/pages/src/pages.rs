//! Which pages are registered, and how often: ranges that do not overlap, each with its count.

use std::collections::BTreeMap;

/// A range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// First.
    pub start: u64,
    /// After the last.
    pub end: u64,
}

impl Range {
    /// What it shares with another.
    pub fn and(self, other: Self) -> Option<Self> {
        let start = self.start.max(other.start);
        let end = self.end.min(other.end);
        (start < end).then_some(Self { start, end })
    }
}

/// Counted ranges.
#[derive(Debug, Default)]
pub struct Pages {
    /// End and count of each range, by its start.
    ranges: BTreeMap<u64, (u64, u32)>,
}

impl Pages {
    /// Parts of `range` that are not counted.
    pub fn missing(&self, range: Range) -> Vec<Range> {
        let mut missing = Vec::new();
        let mut at = range.start;
        for (start, end) in self.overlapping(range) {
            if start > at {
                missing.push(Range {
                    start: at,
                    end: start,
                });
            }
            at = at.max(end);
        }
        if at < range.end {
            missing.push(Range {
                start: at,
                end: range.end,
            });
        }
        missing
    }

    fn overlapping(&self, range: Range) -> impl Iterator<Item = (u64, u64)> + '_ {
        let before = self.ranges.range(..=range.start).next_back();
        let first = before.map_or(range.start, |(start, _)| *start);
        let near = self.ranges.range(first..range.end);
        near.filter(move |(_, (end, _))| *end > range.start)
            .map(|(start, (end, _))| (*start, *end))
    }

    /// Counts every page of `range` once more.
    pub fn add(&mut self, range: Range) {
        self.split(range.start);
        self.split(range.end);
        for gap in self.missing(range) {
            self.ranges.insert(gap.start, (gap.end, 0));
        }
        for (_, (_, count)) in self.ranges.range_mut(range.start..range.end) {
            *count += 1;
        }
    }

    /// Counts every page of `range` once less; parts that nobody counts any more.
    pub fn remove(&mut self, range: Range) -> Vec<Range> {
        self.split(range.start);
        self.split(range.end);
        let mut free = Vec::new();
        for (start, (end, count)) in self.ranges.range_mut(range.start..range.end) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                free.push(Range {
                    start: *start,
                    end: *end,
                });
            }
        }
        for range in &free {
            self.ranges.remove(&range.start);
        }
        free
    }

    /// Every range that is counted.
    pub fn all(&self) -> impl Iterator<Item = Range> + '_ {
        self.ranges.iter().map(|(start, (end, _))| Range {
            start: *start,
            end: *end,
        })
    }

    fn split(&mut self, at: u64) {
        let Some((&start, &(end, count))) = self.ranges.range(..at).next_back() else {
            return;
        };
        if end > at {
            self.ranges.insert(start, (at, count));
            self.ranges.insert(at, (end, count));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> Range {
        Range { start, end }
    }

    #[test]
    fn overlapping_ranges_are_free_when_the_last_is() {
        let mut pages = Pages::default();
        pages.add(range(10, 20));
        assert_eq!(pages.missing(range(5, 25)), [range(5, 10), range(20, 25)]);
        pages.add(range(15, 30));
        assert_eq!(pages.remove(range(10, 20)), [range(10, 15)]);
        assert_eq!(pages.missing(range(10, 30)), [range(10, 15)]);
        assert_eq!(pages.remove(range(15, 30)), [range(15, 20), range(20, 30)]);
        assert_eq!(pages.all().count(), 0);
    }
}
