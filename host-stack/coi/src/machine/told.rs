//! References that the process takes itself are told with results, on one connection a pipeline, and
//! those that it gives back with notices, on another one: what it said later may be heard earlier.
//! Whatever comes after a telling, as the process numbers them, waits here until that has been heard:
//! else references that one run function gave back would hide those that another one holds.
//!
//! What must stay true: nothing waits here once the pause is settled, since all results have come.

use std::collections::{BTreeMap, BTreeSet};

use super::{Machine, Output, Ticket, Value};

/// Most things that may wait: each pipeline has one result.
const WAITING_MAX: usize = 65_536;

/// Something that was heard early, or is heard now.
#[derive(Debug)]
pub(super) enum Heard {
    /// The result of a run function.
    Result(Ticket, Value),
    /// References are given back.
    Released { id: u64, count: u64, told: u64 },
}

/// What has been told, and what waits.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// All tellings up to this one have been heard, and these beyond it.
    up_to: u64,
    beyond: BTreeSet<u64>,
    /// By the telling that it comes after; a telling itself comes first.
    waiting: BTreeMap<(u64, bool, u64), Heard>,
    count: u64,
}

impl Told {
    /// Nothing waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The run functions whose results wait.
    pub fn drain(&mut self) -> Vec<Ticket> {
        let all = std::mem::take(&mut self.waiting).into_values();
        all.filter_map(|heard| match heard {
            Heard::Result(ticket, _) => Some(ticket),
            Heard::Released { .. } => None,
        })
        .collect()
    }
}

impl Machine {
    /// Something comes after the telling `told`, or is that.
    pub(super) fn hear(&mut self, told: u64, heard: Heard) {
        let is_telling = match &heard {
            Heard::Result(_, Value::Returned { added, .. }) => !added.is_empty(),
            _ => false,
        };
        let known = &mut self.told;
        if is_telling && told > known.up_to {
            known.beyond.insert(told);
            while known.beyond.remove(&known.up_to.saturating_add(1)) {
                known.up_to += 1;
            }
        }
        known.count += 1;
        known
            .waiting
            .insert((told, !is_telling, known.count), heard);
        if known.waiting.len().max(known.beyond.len()) > WAITING_MAX {
            // The process makes no sense any more.
            self.fate = Some(Err(()));
        }
        while let Some(next) = self.told.waiting.first_entry() {
            if next.key().0 > self.told.up_to {
                return;
            }
            match next.remove() {
                Heard::Result(ticket, value) => self.done(ticket, value),
                Heard::Released { id, count, told } => {
                    let notice = super::Notice::Released { id, count, told };
                    self.outputs.push_back(Output::Notice(notice));
                }
            }
        }
    }
}
