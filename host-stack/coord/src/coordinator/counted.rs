//! Counted barriers: open when so many calls wait there, whichever members they are of. A member may wait at one several
//! times, for processes of its own that meet those of others.

use std::collections::BTreeMap;

use super::{Answer, CallError, CallId, ConnectionId, Machine, Ns, invalid, later};
use crate::message::KEY_MAX;

/// What a call says of the barrier that it waits at.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) name: Vec<u8>,
    pub(super) count: u32,
    pub(super) patience_ms: u32,
}

/// All counted barriers at which somebody waits, by round and name.
#[derive(Debug, Default)]
pub(super) struct Counted(BTreeMap<(u64, Vec<u8>), Barrier>);

#[derive(Debug)]
struct Barrier {
    count: u32,
    waiting: BTreeMap<CallId, Ns>,
}

impl Counted {
    pub(super) fn deadline(&self) -> Option<Ns> {
        let waiting = self.0.values().flat_map(|barrier| barrier.waiting.values());
        waiting.min().copied()
    }

    /// Who waits over this connection waits no more.
    pub(super) fn forget(&mut self, connection: ConnectionId) {
        self.take(|call, _| call.connection == connection);
    }

    /// Takes out the calls that wait in a round.
    pub(super) fn of_round(&mut self, round: u64) -> Vec<CallId> {
        let keys = self.0.keys().filter(|(of, _)| *of == round);
        let keys: Vec<_> = keys.cloned().collect();
        let barriers = keys.into_iter().filter_map(|key| self.0.remove(&key));
        barriers
            .flat_map(|barrier| barrier.waiting.into_keys())
            .collect()
    }

    /// Takes out calls, with what to say of their barriers.
    fn take(&mut self, is: impl Fn(&CallId, Ns) -> bool) -> Vec<(CallId, CallError)> {
        let mut taken = Vec::new();
        for ((_, name), barrier) in &mut self.0 {
            let error = CallError::Few {
                name: name.clone(),
                there: barrier.waiting.len() as u32,
                count: barrier.count,
            };
            let late = barrier.waiting.iter().filter(|(call, due)| is(call, **due));
            taken.extend(late.map(|(call, _)| (*call, error.clone())));
            barrier.waiting.retain(|call, due| !is(call, *due));
        }
        self.0.retain(|_, barrier| !barrier.waiting.is_empty());
        taken
    }
}

impl Machine {
    /// A call comes to a counted barrier; an answer if it need not wait.
    pub(super) fn count(
        &mut self,
        at: CallId,
        member: &str,
        round: u64,
        wanted: Wanted,
    ) -> Option<Result<Answer, CallError>> {
        if let Err(error) = self.is_in_round(member, round) {
            return Some(Err(error));
        }
        if wanted.name.len() > KEY_MAX {
            return Some(Err(invalid("a barrier with too long a name")));
        }
        let due = later(self.now, wanted.patience_ms);
        let key = (round, wanted.name);
        let barrier = self.counted.0.entry(key.clone()).or_insert(Barrier {
            count: wanted.count,
            waiting: BTreeMap::new(),
        });
        if barrier.count != wanted.count {
            let others = barrier.count;
            let what = format!("others wait at that barrier for {others} to come");
            return Some(Err(invalid(what)));
        }
        barrier.waiting.insert(at, due);
        if barrier.waiting.len() >= barrier.count as usize {
            let all = self.counted.0.remove(&key).into_iter();
            for call in all.flat_map(|barrier| barrier.waiting.into_keys()) {
                self.answer(call, Ok(Answer::Done));
            }
        }
        None
    }

    pub(super) fn expire_counted(&mut self) {
        let now = self.now;
        for (call, error) in self.counted.take(|_, due| due <= now) {
            self.answer(call, Err(error));
        }
    }
}
