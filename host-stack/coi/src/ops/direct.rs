//! Bytes that go between memory of the caller's and a process without a stop in the host's copy: two steps at once.
//!
//! What must stay true: afterwards the host's copy is as good as if they had stopped there, wherever it is valid.

use std::{collections::BTreeMap, ops::Range};

use super::{Payload, Runtime, kinds};
use crate::{
    CoiError,
    graph::{BufferId, OpId, ProcessId, Step},
};

/// Which steps of an operation are pairs.
pub(super) struct Pairs<'a> {
    steps: &'a [Step],
    /// By buffer and place: the last step that sends what was put there.
    sends: BTreeMap<(BufferId, u64), usize>,
    /// The other steps of pairs that are done.
    done: Vec<bool>,
}

/// Two steps.
pub(super) struct Pair {
    /// The second one.
    last: usize,
    process: ProcessId,
    buffer: BufferId,
    range: Range<u64>,
    write: bool,
}

impl<'a> Pairs<'a> {
    /// Of these steps. Where one overwrites what another has put, all of them go by the host's copy.
    pub fn of(steps: &'a [Step]) -> Self {
        let (mut puts, mut sends) = (Vec::new(), BTreeMap::new());
        for (at, step) in steps.iter().enumerate() {
            match step {
                Step::Put { buffer, range, .. } => puts.push((*buffer, range.start, range.end)),
                Step::ToProcess { buffer, range, .. } => {
                    sends.insert((*buffer, range.start), at);
                }
                _ => {}
            }
        }
        puts.sort_unstable();
        if puts
            .windows(2)
            .any(|two| two[0].0 == two[1].0 && two[1].1 < two[0].2)
        {
            sends.clear();
        }
        Self {
            steps,
            sends,
            done: vec![false; steps.len()],
        }
    }

    /// Whether a step was done as the second of a pair.
    pub fn is_done(&self, at: usize) -> bool {
        self.done[at]
    }

    /// A pair is done.
    pub fn finish(&mut self, pair: &Pair) {
        self.done[pair.last] = true;
    }

    /// The pair of which a step is the first.
    pub fn pair(&self, at: usize) -> Option<Pair> {
        match (&self.steps[at], self.steps.get(at + 1)) {
            (
                Step::Put {
                    buffer,
                    range,
                    staged: true,
                },
                _,
            ) => {
                let last = *self.sends.get(&(*buffer, range.start))?;
                let Step::ToProcess {
                    process,
                    range: sent,
                    staged: true,
                    ..
                } = &self.steps[last]
                else {
                    return None;
                };
                (last > at && sent == range).then(|| Pair {
                    last,
                    process: *process,
                    buffer: *buffer,
                    range: range.clone(),
                    write: true,
                })
            }
            (
                Step::FromProcess {
                    process,
                    buffer,
                    range,
                    staged: true,
                },
                Some(Step::Take {
                    buffer: other,
                    range: taken,
                    staged: true,
                }),
            ) => (buffer == other && range == taken).then(|| Pair {
                last: at + 1,
                process: *process,
                buffer: *buffer,
                range: range.clone(),
                write: false,
            }),
            _ => None,
        }
    }
}

impl Runtime {
    /// Does both steps of a pair at once, if that can be.
    pub(super) fn move_directly(
        &self,
        id: OpId,
        pair: &Pair,
        payload: &Payload,
    ) -> Result<bool, CoiError> {
        let Pair { buffer, range, .. } = pair;
        // Who looks at it there sees what is written.
        if pair.write && self.lock().graph.stays_on_host(id, *buffer, range) {
            return Ok(false);
        }
        let body = self.body(*buffer)?;
        for (at, memory) in kinds::pieces_within(&payload.pieces, range) {
            if !body.copy_directly(pair.process, at, memory, pair.write)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(start: u64, end: u64) -> Step {
        Step::Put {
            buffer: 1,
            range: start..end,
            staged: true,
        }
    }

    fn send(start: u64, end: u64) -> Step {
        Step::ToProcess {
            process: 7,
            buffer: 1,
            range: start..end,
            staged: true,
        }
    }

    fn last(steps: &[Step], at: usize) -> Option<usize> {
        Pairs::of(steps).pair(at).map(|pair| pair.last)
    }

    #[test]
    fn what_is_put_and_sent_is_a_pair() {
        // All of it is brought there first, then a part of it is written.
        let steps = [send(0, 9), put(0, 4), put(6, 9), send(0, 4), send(6, 9)];
        assert_eq!(last(&steps, 0), None);
        assert_eq!(last(&steps, 1), Some(3));
        assert_eq!(last(&steps, 2), Some(4));
        assert_eq!(last(&[put(0, 4), send(0, 5)], 0), None);
        assert_eq!(last(&[send(0, 4), put(0, 4)], 1), None);
        let twice = [put(0, 4), put(0, 4), send(0, 4), send(0, 4)];
        assert_eq!((last(&twice, 0), last(&twice, 1)), (None, None));
    }

    #[test]
    fn what_is_fetched_to_be_taken_is_a_pair() {
        let fetch = Step::FromProcess {
            process: 7,
            buffer: 1,
            range: 0..4,
            staged: true,
        };
        let take = |buffer, staged| Step::Take {
            buffer,
            range: 0..4,
            staged,
        };
        assert_eq!(last(&[fetch.clone(), take(1, true)], 0), Some(1));
        assert_eq!(last(&[fetch.clone(), take(2, true)], 0), None);
        assert_eq!(last(&[fetch.clone(), take(1, false)], 0), None);
        assert_eq!(last(&[fetch], 0), None);
    }
}
