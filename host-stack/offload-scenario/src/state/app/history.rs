//! What has been asked of COI and what came of it, and so what must be true: an operation starts
//! once, after all that it depends on and all that it conflicts with; it is completed once, and
//! fails as what it depends on has; and who looks at a buffer sees what was written last.
//!
//! The last writer of a cell is known when an operation is asked for, since operations on the same
//! bytes never race: those that COI orders do not, and the others are told what to wait for.

use std::collections::BTreeMap;

use snaprig_coi::{
    CoiError,
    graph::{BufferId, OpId, PipelineId},
};

use crate::invariants;

/// What an operation does to a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touch {
    Read,
    /// It looks at it and leaves its own number there.
    Change,
    /// It leaves its own number there.
    Write,
    /// It leaves what is in another cell there.
    CopyOf(BufferId, u64),
    /// It may move it, and leaves it as it is.
    Keep,
}

/// Cells, and what is done to them.
pub type Touches = BTreeMap<(BufferId, u64), Touch>;

#[derive(Debug, Default)]
struct Op {
    after: Vec<OpId>,
    behind: Vec<OpId>,
    is_transfer: bool,
    expects: BTreeMap<(BufferId, u64), Cell>,
    starts: u32,
    runs: u32,
    failed: Option<CoiError>,
    end: Option<Result<(), CoiError>>,
}

/// What is in a cell, once all who put it there have succeeded.
#[derive(Clone, Debug, Default)]
struct Cell {
    value: u64,
    writers: Vec<OpId>,
    readers: Vec<OpId>,
    /// Those before the last writer, and whether they write: it may fail before they are done.
    before: Vec<(OpId, bool)>,
}

impl Cell {
    /// All who use it, and whether they write.
    fn users(&self) -> impl Iterator<Item = (OpId, bool)> {
        let last = self.writers.last().map(|id| (*id, true));
        let readers = self.readers.iter().map(|id| (*id, false));
        let before = self.before.iter().copied();
        before.chain(last).chain(readers)
    }
}

/// All operations of an application.
#[derive(Debug, Default)]
pub struct History {
    ops: BTreeMap<OpId, Op>,
    cells: BTreeMap<(BufferId, u64), Cell>,
    last_of: BTreeMap<PipelineId, OpId>,
    /// What must never happen, and did.
    pub broken: Vec<(&'static str, String)>,
}

impl History {
    /// Operations that an operation on these cells conflicts with: all, and those of them that are
    /// transfers.
    pub fn conflicts(&self, touches: &Touches) -> (Vec<OpId>, Vec<OpId>) {
        let mut all = Vec::new();
        for (at, touch) in touches {
            let Some(cell) = self.cells.get(at) else {
                continue;
            };
            let conflicts = cell
                .users()
                .filter(|(_, writes)| *writes || *touch != Touch::Read);
            all.extend(conflicts.map(|(id, _)| id));
        }
        all.sort_unstable();
        all.dedup();
        let is_transfer = |id: &&OpId| self.ops.get(id).is_some_and(|op| op.is_transfer);
        let transfers = all.iter().filter(is_transfer).copied().collect();
        (all, transfers)
    }

    /// An operation was taken in.
    pub fn submitted(
        &mut self,
        id: OpId,
        after: &[OpId],
        touches: &Touches,
        is_transfer: bool,
        pipeline: Option<PipelineId>,
    ) {
        let (mut behind, _) = self.conflicts(touches);
        behind.extend(pipeline.and_then(|one| self.last_of.insert(one, id)));
        let mut expects = BTreeMap::new();
        let mut left = Vec::new();
        for (at, touch) in touches {
            let cell = self.cells.entry(*at).or_default();
            if matches!(touch, Touch::Read | Touch::Change) {
                expects.insert(*at, cell.clone());
            }
            let (value, writers) = match touch {
                Touch::Read => {
                    cell.readers.push(id);
                    continue;
                }
                Touch::Change | Touch::Write => (id, vec![]),
                Touch::Keep => (cell.value, cell.writers.clone()),
                Touch::CopyOf(buffer, other) => {
                    let other = self.cells.entry((*buffer, *other)).or_default();
                    (other.value, other.writers.clone())
                }
            };
            let before: Vec<_> = self.cells[at].users().collect();
            left.push((*at, value, writers, before));
        }
        for (at, value, mut writers, mut before) in left {
            let waits = |id: &OpId| self.ops.get(id).is_some_and(|op| op.end.is_none());
            before.retain(|(id, _)| waits(id));
            writers.push(id);
            let cell = Cell {
                value,
                writers,
                before,
                readers: vec![],
            };
            self.cells.insert(at, cell);
        }
        let op = Op {
            after: after.to_vec(),
            behind,
            is_transfer,
            expects,
            ..Op::default()
        };
        self.ops.insert(id, op);
    }

    /// Nobody uses a buffer any more.
    pub fn forget(&mut self, buffer: BufferId) {
        self.cells.retain(|(of, _), _| *of != buffer);
    }

    fn breaks(&mut self, invariant: &'static str, how: String) {
        self.broken.push((invariant, how));
    }

    /// An operation starts.
    pub fn started(&mut self, id: OpId) {
        let Some(op) = self.ops.get_mut(&id) else {
            return;
        };
        op.starts += 1;
        let starts = op.starts;
        let (after, behind) = (op.after.clone(), op.behind.clone());
        if starts > 1 {
            self.breaks(
                invariants::OPERATIONS,
                format!("{id} started {starts} times"),
            );
        }
        let end = |of: &OpId| self.ops.get(of).map(|op| op.end.clone());
        let waits = |of: &&OpId| matches!(end(of), Some(None));
        let early = after.iter().chain(&behind).find(waits);
        let failed = after.iter().find(|of| match end(of) {
            Some(Some(Err(error))) => error != CoiError::Canceled,
            _ => false,
        });
        let early = early.map(|of| format!("{id} started before {of} was done"));
        let failed = failed.map(|of| format!("{id} started, and depends on {of}, which failed"));
        if let Some(how) = early {
            self.breaks(invariants::OPERATIONS, how);
        }
        if let Some(how) = failed {
            self.breaks(invariants::DEPENDENTS, how);
        }
    }

    /// Whether its bytes have begun to move, at least.
    pub fn has_started(&self, id: OpId) -> bool {
        self.ops.get(&id).is_some_and(|op| op.starts > 0)
    }

    /// A run function is sent.
    pub fn runs(&mut self, id: OpId) {
        let Some(op) = self.ops.get_mut(&id) else {
            return;
        };
        op.runs += 1;
        if op.starts == 0 {
            self.started(id);
        } else if op.runs > 1 {
            self.breaks(invariants::OPERATIONS, format!("{id} was run twice"));
        }
    }

    /// It has looked at a cell.
    pub fn saw(&mut self, id: OpId, buffer: BufferId, cell: u64, value: u64) {
        let Some(op) = self.ops.get(&id) else {
            return;
        };
        let Some(expected) = op.expects.get(&(buffer, cell)) else {
            return;
        };
        let ended = |of: &OpId| self.ops.get(of).and_then(|op| op.end.as_ref());
        let mut writers = expected.writers.iter();
        let known = writers.all(|of| ended(of).is_none_or(Result::is_ok));
        if known && value != expected.value {
            let how = format!(
                "{id} saw {value} in cell {cell} of buffer {buffer}, not what {} left there",
                expected.value
            );
            self.breaks(invariants::VISIBLE, how);
        }
    }

    /// An operation has failed, whatever becomes of it.
    pub fn failed(&mut self, id: OpId, error: &CoiError) {
        if let Some(op) = self.ops.get_mut(&id) {
            op.failed = Some(error.clone());
        }
    }

    /// An operation is completed.
    pub fn completed(&mut self, id: OpId, result: &Result<(), CoiError>) {
        let Some(op) = self.ops.get_mut(&id) else {
            return;
        };
        let before = op.end.replace(result.clone());
        let (starts, after) = (op.starts, op.after.clone());
        let hides = result.is_ok().then(|| op.failed.clone()).flatten();
        if before.is_some() {
            self.breaks(invariants::OPERATIONS, format!("{id} was completed twice"));
        }
        if let Some(error) = hides {
            let how = format!("{id} failed ({error}), and who depends on it is not told");
            self.breaks(invariants::DEPENDENTS, how);
        }
        let end = |of: &OpId| self.ops.get(of)?.end.clone();
        let early = result.is_ok() && after.iter().any(|of| end(of).is_none());
        if early {
            let how = format!("{id} was done before what it depends on");
            self.breaks(invariants::OPERATIONS, how);
        }
        let end = |of: &OpId| self.ops.get(of)?.end.clone();
        let mut failures = after.iter().filter_map(|of| end(of)?.err());
        let mut others = failures.by_ref().filter(|one| *one != CoiError::Canceled);
        let alike = match (others.next(), result) {
            (None, _) => true,
            (Some(_), Ok(())) => false,
            (Some(first), Err(error)) => first == *error || others.any(|other| other == *error),
        };
        if !alike && starts == 0 {
            let how = format!("{id} ended with {result:?}, unlike what it depends on");
            self.breaks(invariants::DEPENDENTS, how);
        }
    }

    /// Whether it was done well.
    pub fn is_done(&self, id: OpId) -> bool {
        let op = self.ops.get(&id);
        op.is_some_and(|op| matches!(op.end, Some(Ok(()))))
    }

    /// The operation so many before the next one.
    pub fn back(&self, by: u64) -> Option<OpId> {
        let (last, _) = self.ops.last_key_value()?;
        (last + 1)
            .checked_sub(by)
            .filter(|id| self.ops.contains_key(id))
    }

    /// Operations that were never completed.
    pub fn waiting(&self) -> Vec<OpId> {
        let waiting = self.ops.iter().filter(|(_, op)| op.end.is_none());
        waiting.map(|(id, _)| *id).collect()
    }

    /// The first of them that failed, and why.
    pub fn failure(&self) -> Option<String> {
        let mut ends = self.ops.values().filter_map(|op| op.end.as_ref());
        let failed = ends.find_map(|end| {
            end.as_ref()
                .err()
                .filter(|error| **error != CoiError::Canceled)
        });
        failed.map(ToString::to_string)
    }
}
