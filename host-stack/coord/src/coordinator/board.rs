//! The board: what members publish under keys, and who waits for it. Entries of a round go with it,
//! others with the member that published them.

use std::collections::BTreeMap;

use super::{Answer, CallError, CallId, ConnectionId, Machine, Ns, invalid, later};
use crate::message::{ENTRIES_MAX, Entry, KEY_MAX, MESSAGE_MAX, VALUE_MAX};

/// Most entries of a member.
pub const OWNED_MAX: usize = 64 << 10;
/// Most bytes of keys and values of a member.
pub const OWNED_BYTES_MAX: usize = 16 << 20;
/// Values of one answer are no longer than this together: there is room for the rest of it.
const ANSWER_MAX: usize = MESSAGE_MAX - (32 << 10);

/// A round, or 0, and a key.
type Key = (u64, Vec<u8>);

#[derive(Debug, Default)]
pub(super) struct Board {
    entries: BTreeMap<Key, Value>,
    lookups: BTreeMap<CallId, Lookup>,
    /// By member: entries, and their bytes.
    owned: BTreeMap<String, (usize, usize)>,
}

#[derive(Debug)]
struct Value {
    owner: String,
    bytes: Vec<u8>,
}

#[derive(Debug)]
struct Lookup {
    round: u64,
    keys: Vec<Vec<u8>>,
    /// The first of them that is not known to be there.
    next: usize,
    deadline_ns: Ns,
}

impl Board {
    pub(super) fn deadline(&self) -> Option<Ns> {
        self.lookups.values().map(|lookup| lookup.deadline_ns).min()
    }

    /// A member is gone: what it has published, and waits for.
    pub(super) fn forget(&mut self, member: &str, connection: ConnectionId) {
        self.entries.retain(|_, value| value.owner != member);
        self.owned.remove(member);
        self.lookups.retain(|call, _| call.connection != connection);
    }

    /// A round is over.
    pub(super) fn forget_round(&mut self, round: u64) {
        let mut later = self.entries.split_off(&(round, Vec::new()));
        let mut after = later.split_off(&(round.saturating_add(1), Vec::new()));
        self.entries.append(&mut after);
        for ((_, key), value) in later {
            if let Some((entries, bytes)) = self.owned.get_mut(&value.owner) {
                *entries -= 1;
                *bytes -= key.len() + value.bytes.len();
            }
        }
    }

    /// Takes out the calls that wait in a round.
    pub(super) fn of_round(&mut self, round: u64) -> Vec<CallId> {
        let of_round = self.lookups.iter();
        let of_round = of_round.filter(|(_, lookup)| lookup.round == round);
        let of_round: Vec<_> = of_round.map(|(call, _)| *call).collect();
        self.lookups.retain(|_, lookup| lookup.round != round);
        of_round
    }

    fn put(&mut self, member: &str, round: u64, (key, bytes): Entry) -> Result<(), CallError> {
        if key.len() > KEY_MAX || bytes.len() > VALUE_MAX {
            let lens = (key.len(), bytes.len());
            let what =
                format!("a key and a value of {lens:?} bytes: {KEY_MAX}, {VALUE_MAX} at most");
            return Err(invalid(what));
        }
        let known = self.entries.get(&(round, key.clone()));
        if let Some(other) = known.filter(|value| value.owner != member) {
            let owner = other.owner.clone();
            return Err(CallError::Owned { key, owner });
        }
        let known = known.map(|value| (1, key.len() + value.bytes.len()));
        let (one, less) = known.unwrap_or((0, 0));
        let owned = self.owned.entry(member.into()).or_default();
        let entries = owned.0 + 1 - one;
        let all = owned.1 + key.len() + bytes.len() - less;
        if entries > OWNED_MAX || all > OWNED_BYTES_MAX {
            let what = format!(
                "{entries} entries of {all} bytes: a member has {OWNED_MAX} of {OWNED_BYTES_MAX} at most"
            );
            return Err(invalid(what));
        }
        *owned = (entries, all);
        let owner = member.into();
        self.entries.insert((round, key), Value { owner, bytes });
        Ok(())
    }

    /// What comes of a lookup now, if anything does. Keys that were there are not looked for again:
    /// entries go only together with who looks for them, or the answer says that they are gone.
    fn look(&mut self, call: CallId) -> Option<Result<Answer, CallError>> {
        let lookup = self.lookups.get_mut(&call)?;
        let is_there = |key: &Vec<u8>| self.entries.contains_key(&(lookup.round, key.clone()));
        let there = lookup.keys[lookup.next..].iter();
        lookup.next += there.take_while(|key| is_there(key)).count();
        if lookup.next < lookup.keys.len() {
            return None;
        }
        let mut values = Vec::with_capacity(lookup.keys.len());
        let mut len = 0;
        for key in &lookup.keys {
            let Some(value) = self.entries.get(&(lookup.round, key.clone())) else {
                return Some(Err(CallError::NotFound { key: key.clone() }));
            };
            len += value.bytes.len() + 8;
            values.push(value.bytes.clone());
        }
        Some(match len {
            ..=ANSWER_MAX => Ok(Answer::Values(values)),
            _ => Err(invalid(format!(
                "values of {len} bytes: look up fewer keys"
            ))),
        })
    }
}

impl Machine {
    pub(super) fn publish(
        &mut self,
        member: &str,
        round: u64,
        entries: Vec<Entry>,
    ) -> Result<Answer, CallError> {
        self.is_in_round(member, round)?;
        if entries.len() > ENTRIES_MAX {
            return Err(invalid(format!("more than {ENTRIES_MAX} entries at once")));
        }
        let mut result = Ok(Answer::Done);
        for entry in entries {
            if let Err(error) = self.board.put(member, round, entry) {
                result = Err(error);
                break;
            }
        }
        let waiting = self.board.lookups.iter();
        let waiting = waiting.filter(|(_, lookup)| lookup.round == round);
        let waiting: Vec<_> = waiting.map(|(call, _)| *call).collect();
        waiting.into_iter().for_each(|call| self.look(call));
        result
    }

    /// An answer if the lookup need not wait.
    pub(super) fn lookup(
        &mut self,
        at: CallId,
        member: &str,
        round: u64,
        keys: Vec<Vec<u8>>,
        patience_ms: u32,
    ) -> Option<Result<Answer, CallError>> {
        if let Err(error) = self.is_in_round(member, round) {
            return Some(Err(error));
        }
        if keys.len() > ENTRIES_MAX {
            return Some(Err(invalid(format!(
                "more than {ENTRIES_MAX} keys at once"
            ))));
        }
        let lookup = Lookup {
            round,
            keys,
            next: 0,
            deadline_ns: later(self.now, patience_ms),
        };
        self.board.lookups.insert(at, lookup);
        self.look(at);
        None
    }

    /// Entries that are there, as many as fit into an answer of so many bytes.
    pub(super) fn collect(
        &self,
        member: &str,
        round: u64,
        prefix: &[u8],
        after: &[u8],
        bytes_max: u32,
    ) -> Result<Answer, CallError> {
        self.is_in_round(member, round)?;
        let bytes_max = ANSWER_MAX.min(bytes_max as usize);
        let first = (round, after.max(prefix).to_vec());
        let behind = self.board.entries.range(first..);
        let all = behind
            .filter(|((_, key), _)| key != after)
            .take_while(|((of, key), _)| *of == round && key.starts_with(prefix));
        let mut bytes = 0;
        let fits = all.take_while(|((_, key), value)| {
            let is_first = bytes == 0;
            bytes += key.len() + value.bytes.len() + 16;
            is_first || bytes <= bytes_max
        });
        let entries = fits.map(|((_, key), value)| (key.clone(), value.bytes.clone()));
        Ok(Answer::Entries(entries.collect()))
    }

    fn look(&mut self, call: CallId) {
        if let Some(result) = self.board.look(call) {
            self.board.lookups.remove(&call);
            self.answer(call, result);
        }
    }

    pub(super) fn expire_lookups(&mut self) {
        let now = self.now;
        let late = self.board.lookups.iter();
        let late = late.filter(|(_, lookup)| lookup.deadline_ns <= now);
        let late: Vec<_> = late.map(|(call, _)| *call).collect();
        for call in late {
            if let Some(mut lookup) = self.board.lookups.remove(&call) {
                let key = lookup.keys.swap_remove(lookup.next);
                self.answer(call, Err(CallError::NotFound { key }));
            }
        }
    }
}
