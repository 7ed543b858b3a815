//! Who has to wait for whom.

use std::ops::Range;

use super::{BufferId, Graph, Mode, Op, OpId, Phase, Work};
use crate::CoiError;

/// How an operation stands to those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// It waits for earlier ones on the same bytes, and for references.
    Ordered,
    /// It waits for explicit dependencies, and for other transfers.
    Transfer,
    /// It waits for everybody.
    Last,
    /// It waits for nobody that has not started: they may wait for the memory that it makes free.
    First,
}

impl Class {
    pub fn of(work: &Work) -> Self {
        match work {
            Work::Write { .. } | Work::Read { .. } | Work::Copy { .. } => Self::Transfer,
            Work::Destroy { .. } => Self::Last,
            Work::Evict { .. } => Self::First,
            _ => Self::Ordered,
        }
    }
}

/// Bytes that an operation uses.
#[derive(Clone, Debug)]
pub(super) struct Claim {
    pub buffer: BufferId,
    pub range: Range<u64>,
    pub write: bool,
}

impl Claim {
    fn meets(&self, other: &Self) -> bool {
        self.buffer == other.buffer
            && self.range.start < other.range.end
            && other.range.start < self.range.end
    }

    fn conflicts(&self, other: &Self) -> bool {
        (self.write || other.write) && self.meets(other)
    }
}

impl Graph {
    /// What an operation uses; an error if there is no such thing.
    pub(super) fn claims(&self, work: &Work) -> Result<Vec<Claim>, CoiError> {
        let claim = |buffer: BufferId, range: Range<u64>, write: bool| {
            let bytes = self.bytes_of(buffer)?;
            match range.start <= range.end && range.end <= bytes {
                true => Ok(Claim {
                    buffer,
                    range,
                    write,
                }),
                false => Err(CoiError::OutOfRange(format!(
                    "bytes {} to {} of a buffer of {bytes} bytes",
                    range.start, range.end
                ))),
            }
        };
        Ok(match work {
            Work::Run { uses, .. } => uses
                .iter()
                .map(|one| claim(one.buffer, one.range.clone(), one.mode != Mode::Read))
                .collect::<Result<_, _>>()?,
            Work::Write {
                buffer,
                all,
                ranges,
                whole,
                ..
            } => {
                let range = if *whole { all.clone() } else { around(ranges) };
                vec![claim(*buffer, range, true)?]
            }
            Work::Read { buffer, ranges } => vec![claim(*buffer, around(ranges), false)?],
            Work::Copy {
                from,
                from_at,
                into,
                all,
                into_at,
                bytes,
                whole,
                ..
            } => {
                let from_range = *from_at..from_at.saturating_add(*bytes);
                let into_range = *into_at..into_at.saturating_add(*bytes);
                let from = claim(*from, from_range, false)?;
                let written = claim(*into, into_range, true)?;
                if from.meets(&written) {
                    return Err(CoiError::Overlap);
                }
                let into = if *whole {
                    claim(*into, all.clone(), true)?
                } else {
                    written
                };
                vec![from, into]
            }
            Work::Map {
                buffer,
                range,
                mode,
            } => vec![claim(*buffer, range.clone(), *mode != Mode::Read)?],
            Work::Unmap { map } => {
                let (buffer, range, mode) = self
                    .maps
                    .get(map)
                    .ok_or_else(|| CoiError::InvalidHandle("nothing is mapped there".into()))?;
                vec![claim(*buffer, range.clone(), *mode != Mode::Read)?]
            }
            Work::SetState { buffer, range, .. } | Work::Evict { buffer, range, .. } => {
                vec![claim(*buffer, range.clone(), true)?]
            }
            Work::Destroy { buffer } => vec![claim(*buffer, 0..self.bytes_of(*buffer)?, true)?],
            Work::Barrier { .. } | Work::UserEvent => Vec::new(),
        })
    }

    fn bytes_of(&self, buffer: BufferId) -> Result<u64, CoiError> {
        let buffer = self.buffers.get(&buffer).map(|buffer| buffer.bytes);
        buffer.ok_or_else(|| CoiError::InvalidHandle("no such buffer".into()))
    }

    /// What the host looks at is not for run functions and transfers, and is not unmapped twice.
    pub(super) fn refuse_mapped(&self, work: &Work, claims: &[Claim]) -> Result<(), CoiError> {
        match work {
            Work::Run { .. } | Work::Write { .. } | Work::Read { .. } | Work::Copy { .. } => {
                let mut buffers = claims
                    .iter()
                    .filter_map(|one| self.buffers.get(&one.buffer));
                match buffers.any(|buffer| !buffer.unordered && !buffer.maps.is_empty()) {
                    true => Err(CoiError::Retry("the buffer is mapped; unmap it first")),
                    false => Ok(()),
                }
            }
            Work::Unmap { map } => {
                let buffer = claims.first().and_then(|one| self.buffers.get(&one.buffer));
                match buffer.is_some_and(|buffer| buffer.maps.contains(map)) {
                    true => Ok(()),
                    false => Err(CoiError::InvalidHandle("it is unmapped already".into())),
                }
            }
            Work::Destroy { buffer } if self.is_mapped(*buffer) => {
                Err(CoiError::Retry("the buffer is mapped; unmap it first"))
            }
            _ => Ok(()),
        }
    }

    /// Whether nobody is in the way of an operation that is ready.
    pub(super) fn may_start(&self, id: OpId) -> bool {
        let Some(op) = self.ops.get(&id) else {
            return false;
        };
        op.claims.iter().all(|claim| {
            let Some(buffer) = self.buffers.get(&claim.buffer) else {
                return true;
            };
            let mut references = buffer.references.iter();
            let held = match op.class {
                Class::Ordered => !buffer.unordered && references.any(|(_, count)| *count > 0),
                Class::Transfer => false,
                Class::First => references.any(|(_, count)| *count > 0),
                Class::Last => references.any(|(process, count)| {
                    *count > buffer.counted.get(process).copied().unwrap_or(0)
                }),
            };
            if held {
                return false;
            }
            let others = |id: &OpId| self.ops.get(id);
            // One at a time has a process get its memory back.
            let mut moving = buffer.started.iter().filter_map(others);
            if !buffer.absent.is_empty() && moving.any(|other| other.phase == Phase::Moving) {
                return false;
            }
            let started = buffer.started.iter().filter_map(others);
            let earlier = buffer.waiting.range(..id).filter_map(others);
            !started
                .into_iter()
                .any(|other| hinders(other, op, claim, buffer.unordered))
                && !earlier
                    .into_iter()
                    .any(|other| precedes(other, op, claim, buffer.unordered))
        })
    }
}

/// Whether an operation that has started is in the way.
fn hinders(other: &Op, op: &Op, claim: &Claim, unordered: bool) -> bool {
    let mut theirs = other.claims.iter();
    match (other.phase, op.class) {
        (_, Class::Last) => true,
        (Phase::Moving, _) => theirs.any(|one| one.meets(claim)),
        (_, Class::Ordered) => !unordered && theirs.any(|one| one.conflicts(claim)),
        (_, Class::First) => theirs.any(|one| one.meets(claim)),
        (_, Class::Transfer) => false,
    }
}

/// Whether an earlier operation that has not started goes first.
fn precedes(other: &Op, op: &Op, claim: &Claim, unordered: bool) -> bool {
    let ordered = match (other.class, op.class) {
        (_, Class::First) => return false,
        (_, Class::Last) => return true,
        (Class::Last | Class::First, _) => true,
        (Class::Transfer, _) => other.pending == 0,
        (Class::Ordered, Class::Ordered) => !unordered,
        (Class::Ordered, Class::Transfer) => false,
    };
    ordered && other.claims.iter().any(|one| one.conflicts(claim))
}

/// From the first byte of all ranges to the last.
fn around(ranges: &[Range<u64>]) -> Range<u64> {
    let start = ranges.iter().map(|range| range.start).min();
    let end = ranges.iter().map(|range| range.end).max();
    start.unwrap_or(0)..end.unwrap_or(0)
}
