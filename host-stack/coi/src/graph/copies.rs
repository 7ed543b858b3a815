//! Where the bytes of a buffer are valid, range by range.
//!
//! What must stay true: the runs cover the buffer without gap or overlap, and neighbours differ.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use super::Place;

/// Bytes that are in the same places.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// Which bytes.
    pub range: Range<u64>,
    /// Who has them as they are now.
    pub valid: BTreeSet<Place>,
    /// Nobody has ever written to them: they are zero everywhere, and there is nothing to move.
    pub blank: bool,
}

impl Run {
    /// Where they are best taken from: the host, else the process with the lowest id.
    pub fn source(&self) -> Option<Place> {
        self.valid.first().copied()
    }
}

/// The runs of one buffer, by their beginnings.
#[derive(Clone, Debug)]
pub struct Copies(BTreeMap<u64, Run>);

impl Copies {
    /// All of a buffer that is valid in one place.
    pub fn new(bytes: u64, place: Place, blank: bool) -> Self {
        let all = Run {
            range: 0..bytes,
            valid: BTreeSet::from([place]),
            blank,
        };
        Self(BTreeMap::from([(0, all)]))
    }

    /// The runs of a range, cut to it.
    pub fn within(&self, range: &Range<u64>) -> Vec<Run> {
        let before = self.0.range(..=range.start).next_back();
        let first = before.map_or(range.start, |(start, _)| *start);
        let runs = self.0.range(first..).map(|(_, run)| run);
        runs.take_while(|run| run.range.start < range.end)
            .filter(|run| run.range.end > range.start)
            .map(|run| Run {
                range: run.range.start.max(range.start)..run.range.end.min(range.end),
                ..run.clone()
            })
            .collect()
    }

    /// Changes the runs of a range.
    pub fn change(&mut self, range: &Range<u64>, change: impl Fn(&mut Run)) {
        if range.is_empty() {
            return;
        }
        self.split(range.start);
        self.split(range.end);
        for (_, run) in self.0.range_mut(range.clone()) {
            change(run);
        }
        self.join(range);
    }

    /// A run begins here, if there are bytes.
    fn split(&mut self, at: u64) {
        let Some((_, run)) = self.0.range_mut(..at).next_back() else {
            return;
        };
        if at < run.range.end {
            let rest = Run {
                range: at..run.range.end,
                ..run.clone()
            };
            run.range.end = at;
            self.0.insert(at, rest);
        }
    }

    /// Neighbours in a range, and at its ends, that are alike become one.
    fn join(&mut self, range: &Range<u64>) {
        let before = self.0.range(..range.start).next_back();
        let first = before.map_or(range.start, |(start, _)| *start);
        let starts: Vec<_> = self.0.range(first..=range.end).map(|(at, _)| *at).collect();
        let mut last: Option<Run> = None;
        for start in starts {
            let Some(run) = self.0.remove(&start) else {
                continue;
            };
            match &mut last {
                Some(last) if last.valid == run.valid && last.blank == run.blank => {
                    last.range.end = run.range.end;
                }
                _ => {
                    let done = last.replace(run);
                    self.0.extend(done.map(|run| (run.range.start, run)));
                }
            }
        }
        self.0.extend(last.map(|run| (run.range.start, run)));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BYTES: u64 = 32;

    proptest! {
        /// The runs say what a plain array of bytes would.
        #[test]
        fn runs_are_as_good_as_a_set_for_each_byte(
            changes in prop::collection::vec((0..BYTES, 0..BYTES, 0u64..3, any::<bool>()), 0..40),
        ) {
            let mut copies = Copies::new(BYTES, Place::Host, true);
            let mut bytes = vec![(BTreeSet::from([Place::Host]), true); BYTES as usize];
            for (a, b, process, only) in changes {
                let range = a.min(b)..a.max(b);
                let change = |valid: &mut BTreeSet<Place>, blank: &mut bool| {
                    if only {
                        valid.clear();
                        *blank = false;
                    }
                    valid.insert(Place::Process(process));
                };
                copies.change(&range, |run| change(&mut run.valid, &mut run.blank));
                for (valid, blank) in &mut bytes[range.start as usize..range.end as usize] {
                    change(valid, blank);
                }
                let runs = copies.within(&(0..BYTES));
                let mut at = 0;
                for run in &runs {
                    prop_assert_eq!(run.range.start, at);
                    for byte in run.range.clone() {
                        let (valid, blank) = &bytes[byte as usize];
                        prop_assert_eq!((&run.valid, run.blank), (valid, *blank));
                    }
                    at = run.range.end;
                }
                prop_assert_eq!(at, BYTES);
                for pair in runs.windows(2) {
                    prop_assert!(pair[0].valid != pair[1].valid || pair[0].blank != pair[1].blank);
                }
            }
        }
    }
}
