//! Where the bytes of a buffer are valid, range by range.
//!
//! What must stay true: the runs cover the buffer without gap or overlap, and neighbours differ.

use std::{collections::BTreeSet, ops::Range};

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

/// The runs of one buffer.
#[derive(Clone, Debug)]
pub struct Copies(Vec<Run>);

impl Copies {
    /// All of a buffer that is valid in one place.
    pub fn new(bytes: u64, place: Place, blank: bool) -> Self {
        Self(vec![Run {
            range: 0..bytes,
            valid: BTreeSet::from([place]),
            blank,
        }])
    }

    /// The runs of a range, cut to it.
    pub fn within(&self, range: &Range<u64>) -> Vec<Run> {
        let first = self.0.partition_point(|run| run.range.end <= range.start);
        let runs = self.0[first..].iter();
        runs.take_while(|run| run.range.start < range.end)
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
        let mut runs: Vec<Run> = Vec::with_capacity(self.0.len() + 2);
        let mut push = |run: Run| match runs.last_mut() {
            _ if run.range.is_empty() => {}
            Some(last) if last.valid == run.valid && last.blank == run.blank => {
                last.range.end = run.range.end;
            }
            _ => runs.push(run),
        };
        for run in std::mem::take(&mut self.0) {
            let (start, end) = (run.range.start, run.range.end);
            let cut = range.start.clamp(start, end)..range.end.clamp(start, end);
            let part = |range: Range<u64>| Run {
                range,
                ..run.clone()
            };
            let mut changed = part(cut.clone());
            change(&mut changed);
            push(part(start..cut.start));
            push(changed);
            push(part(cut.end..end));
        }
        self.0 = runs;
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
