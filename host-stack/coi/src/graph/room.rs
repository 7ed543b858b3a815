//! Operations for whose buffers there was no room in a process while others had theirs there. They wait,
//! and are tried again, one at a time and the oldest first, when something has ended.
//!
//! ```text
//!  Moving --no room--> parked --something ended--> Moving (on trial) --room--> Running
//!            |                                        |
//!            '-- nobody else uses a buffer: fails <---'
//! ```
//!
//! What must stay true: who is parked holds nothing that others could have; one that finds no room although
//! nobody else used a buffer from its start on fails.

use std::collections::BTreeSet;

use super::{Graph, OpId, Phase, Work};
use crate::CoiError;

/// Who is parked, and what is known of the others.
#[derive(Debug, Default)]
pub(super) struct Room {
    /// Operations that use buffers, those that make room aside.
    under_way: u64,
    /// How many of them were ever started.
    started: u64,
    parked: BTreeSet<OpId>,
    on_trial: Option<OpId>,
    /// Something has ended since the last trial began.
    more: bool,
}

impl Room {
    /// There may be more room now.
    pub fn more(&mut self) {
        self.more = true;
    }
}

impl Graph {
    /// An operation starts; what it has to know in the end to tell whether it was alone.
    pub(super) fn enters(&mut self, id: OpId) {
        if let Some(op) = self.ops.get_mut(&id).filter(|op| makes_use(&op.work)) {
            self.room.started += 1;
            op.alone = (self.room.under_way == 0).then_some(self.room.started);
            self.room.under_way += 1;
        }
    }

    /// It has ended, or is parked.
    pub(super) fn leaves(&mut self, id: OpId, work: &Work, phase: Phase) {
        self.room.more();
        self.room.parked.remove(&id);
        if phase != Phase::Waiting && makes_use(work) {
            self.room.under_way -= 1;
        }
        if self.room.on_trial == Some(id) {
            self.room.on_trial = None;
        }
    }

    /// There was room for it.
    pub(super) fn has_room(&mut self, id: OpId) {
        if self.room.on_trial == Some(id) {
            self.room.on_trial = None;
            self.room.more();
        }
    }

    /// There was none.
    pub(super) fn no_room(&mut self, id: OpId, error: CoiError) {
        let Some(op) = self.ops.get_mut(&id).filter(|op| op.phase == Phase::Moving) else {
            return;
        };
        let is_alone = op.alone == Some(self.room.started);
        let own: Vec<_> = op.claims.iter().map(|claim| claim.buffer).collect();
        let mut others = self.buffers.iter().filter(|(id, _)| !own.contains(id));
        let is_held = others.any(|(_, buffer)| {
            let mut references = buffer.references.values();
            !buffer.maps.is_empty() || references.any(|count| *count > 0)
        });
        if is_alone && !is_held {
            self.spoil(id);
            return self.complete(id, Err(error));
        }
        op.phase = Phase::Waiting;
        let work = op.work.clone();
        for buffer in own {
            if let Some(buffer) = self.buffers.get_mut(&buffer) {
                buffer.started.remove(&id);
                buffer.waiting.insert(id);
            }
        }
        self.leaves(id, &work, Phase::Moving);
        // Others that use something will end.
        self.room.more = self.room.under_way == 0 && !is_held;
        self.room.parked.insert(id);
    }

    /// Starts one of those that are parked, if there may be room for it; whether there was one.
    pub(super) fn try_again(&mut self) -> bool {
        if self.room.on_trial.is_some() || !std::mem::take(&mut self.room.more) {
            return false;
        }
        let mut parked = self.room.parked.iter().copied();
        let Some(id) = parked.find(|id| self.may_start(*id)) else {
            return false;
        };
        self.room.parked.remove(&id);
        self.room.on_trial = Some(id);
        self.start(id);
        true
    }
}

/// Whether an operation has buffers stay where they are.
fn makes_use(work: &Work) -> bool {
    !matches!(
        work,
        Work::Evict { .. } | Work::UserEvent | Work::Barrier { .. } | Work::Destroy { .. }
    )
}
