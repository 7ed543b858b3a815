//! Named barriers: of a round, or of all members of the job. Who belongs to one is asked when
//! somebody arrives or goes, so that nobody waits for who is not part of it any more.

use std::collections::BTreeMap;

use super::{Answer, CallError, CallId, ConnectionId, Machine, Ns, later};
use crate::message::is_name;

/// A round (0: of the job), and a name.
type Key = (u64, String);

/// All barriers at which somebody waits.
#[derive(Debug, Default)]
pub(super) struct Barriers(BTreeMap<Key, Barrier>);

#[derive(Debug)]
struct Barrier {
    /// By member, the call that waits.
    arrived: BTreeMap<String, CallId>,
    deadline_ns: Ns,
}

impl Barriers {
    pub(super) fn deadline(&self) -> Option<Ns> {
        self.0.values().map(|barrier| barrier.deadline_ns).min()
    }

    /// Who waits over this connection waits no more.
    pub(super) fn forget(&mut self, connection: ConnectionId) {
        for barrier in self.0.values_mut() {
            barrier
                .arrived
                .retain(|_, call| call.connection != connection);
        }
        self.0.retain(|_, barrier| !barrier.arrived.is_empty());
    }

    /// Takes out the calls that wait in a round.
    pub(super) fn of_round(&mut self, round: u64) -> Vec<CallId> {
        let of_round = self.take(|(of, _), _| *of == round);
        let arrived = of_round.into_iter().map(|(_, barrier)| barrier.arrived);
        arrived.flat_map(BTreeMap::into_values).collect()
    }

    /// Takes out those of which this is true.
    fn take(&mut self, is: impl Fn(&Key, &Barrier) -> bool) -> Vec<(Key, Barrier)> {
        let keys = self.0.iter().filter(|(key, barrier)| is(key, barrier));
        let keys: Vec<_> = keys.map(|(key, _)| key.clone()).collect();
        let taken = keys.into_iter().filter_map(|key| self.0.remove_entry(&key));
        taken.collect()
    }
}

impl Machine {
    /// A member arrives; an answer if it need not wait.
    pub(super) fn arrive(
        &mut self,
        at: CallId,
        member: &str,
        round: u64,
        name: String,
        patience_ms: u32,
    ) -> Option<Result<Answer, CallError>> {
        if !is_name(&name) {
            return Some(Err(super::invalid(format!("a barrier named {name:?}"))));
        }
        if let Err(error) = self.is_in_round(member, round) {
            return Some(Err(error));
        }
        let deadline_ns = later(self.now, patience_ms);
        let barrier = self.barriers.0.entry((round, name)).or_insert(Barrier {
            arrived: BTreeMap::new(),
            deadline_ns,
        });
        if barrier.arrived.contains_key(member) {
            let twice = "a member arrives at a barrier twice";
            return Some(Err(super::invalid(twice)));
        }
        barrier.deadline_ns = barrier.deadline_ns.min(deadline_ns);
        barrier.arrived.insert(member.into(), at);
        None
    }

    /// Who belongs to a barrier.
    fn participants(&self, round: u64) -> Vec<&str> {
        match (round, &self.round) {
            (0, _) => self.members.keys().map(String::as_str).collect(),
            (_, Some(current)) if current.number == round => current.present().collect(),
            _ => Vec::new(),
        }
    }

    /// Those at which all have arrived open.
    pub(super) fn settle_barriers(&mut self) {
        let complete = |(key, barrier): (&Key, &Barrier)| {
            let all = self.participants(key.0);
            let arrived = all.iter().all(|name| barrier.arrived.contains_key(*name));
            arrived.then(|| key.clone())
        };
        let complete: Vec<_> = self.barriers.0.iter().filter_map(complete).collect();
        for key in complete {
            if let Some(barrier) = self.barriers.0.remove(&key) {
                for call in barrier.arrived.into_values() {
                    self.answer(call, Ok(Answer::Done));
                }
            }
        }
    }

    pub(super) fn expire_barriers(&mut self) {
        // Who has arrived in time is not late.
        self.settle_barriers();
        let now = self.now;
        let late = self.barriers.take(|_, barrier| barrier.deadline_ns <= now);
        for ((round, name), barrier) in late {
            let all = self.participants(round).into_iter();
            let missing = all.filter(|member| !barrier.arrived.contains_key(*member));
            let missing = missing.map(str::to_owned).collect();
            let error = CallError::Missing { name, missing };
            for call in barrier.arrived.into_values() {
                self.answer(call, Err(error.clone()));
            }
            self.fail_round(round, error.to_string());
        }
    }
}
