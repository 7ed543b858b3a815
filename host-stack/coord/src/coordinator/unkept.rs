//! Members that the disk does not know of yet: they hear nothing, so that none is at work of whom a coordinator that takes
//! over would not know.

use std::collections::BTreeMap;

use super::ConnectionId;
use crate::message::ToMember;

#[derive(Debug, Default)]
pub(super) struct Unkept {
    /// How often the disk was told who the members are, and how often it has answered.
    told: u64,
    kept: u64,
    waiting: BTreeMap<ConnectionId, Waiting>,
}

#[derive(Debug)]
struct Waiting {
    /// How often the disk has answered when it knows of this one.
    until: u64,
    /// What it is to hear then.
    messages: Vec<ToMember>,
}

impl Unkept {
    /// The disk is told.
    pub(super) fn tell(&mut self) {
        self.told += 1;
    }

    /// A member has come, whom all that was told so far is to know of.
    pub(super) fn come(&mut self, connection: ConnectionId) {
        if self.kept < self.told {
            let (until, messages) = (self.told, Vec::new());
            self.waiting.insert(connection, Waiting { until, messages });
        }
    }

    /// It is gone.
    pub(super) fn forget(&mut self, connection: ConnectionId) {
        self.waiting.remove(&connection);
    }

    /// A message, unless it has to wait.
    pub(super) fn hold(&mut self, connection: ConnectionId, message: ToMember) -> Option<ToMember> {
        match self.waiting.get_mut(&connection) {
            Some(waiting) => {
                waiting.messages.push(message);
                None
            }
            None => Some(message),
        }
    }

    /// The disk has answered: who may hear something now, and what.
    pub(super) fn kept(&mut self) -> Vec<(ConnectionId, Vec<ToMember>)> {
        // An answer to nothing is none.
        self.kept = self.told.min(self.kept + 1);
        let is_known = |one: &Waiting| one.until <= self.kept;
        let known = self.waiting.iter_mut().filter(|(_, one)| is_known(one));
        let known = known.map(|(connection, one)| (*connection, std::mem::take(&mut one.messages)));
        let known = known.collect();
        self.waiting.retain(|_, one| !is_known(one));
        known
    }
}
