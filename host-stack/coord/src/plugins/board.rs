//! The board of a tree that is in no job: what its plugins publish, look up, and meet at. In a job, the coordinator has
//! one for all trees ([`crate::message::Call`]).
//!
//! What must stay true: every question has one answer, at its deadline at the latest.

use std::collections::BTreeMap;

use snaprig_ckpt_plugin::message::{Answer, BATCH_BYTES, ENTRY_BYTES, Entry, Question};

use super::QuestionId;
use crate::Ns;

/// Most bytes of keys and values together.
const BYTES_MAX: usize = 64 << 20;

/// What comes of questions.
pub type Answers = Vec<(QuestionId, Result<Answer, String>)>;

/// The board.
#[derive(Debug, Default)]
pub struct Board {
    entries: BTreeMap<Vec<u8>, Vec<u8>>,
    bytes: usize,
    lookups: BTreeMap<QuestionId, (Vec<Vec<u8>>, Ns)>,
    barriers: BTreeMap<Vec<u8>, Barrier>,
}

#[derive(Debug)]
struct Barrier {
    count: u32,
    waiting: Vec<(QuestionId, Ns)>,
}

impl Board {
    /// When [`Board::expire`] is due.
    pub fn deadline(&self) -> Option<Ns> {
        let lookups = self.lookups.values().map(|(_, deadline_ns)| *deadline_ns);
        let waiting = self.barriers.values().flat_map(|barrier| &barrier.waiting);
        lookups
            .chain(waiting.map(|(_, deadline_ns)| *deadline_ns))
            .min()
    }

    /// A question, with scoped keys, and what comes of it and of others because of it.
    pub fn ask(&mut self, id: QuestionId, question: Question, deadline_ns: Ns) -> Answers {
        match question {
            Question::Publish(entries) => self.publish(id, entries),
            Question::Lookup(keys) => {
                self.lookups.insert(id, (keys, deadline_ns));
                self.settle()
            }
            Question::Collect { prefix, after } => vec![(id, Ok(self.collect(&prefix, &after)))],
            Question::Barrier { name, count } => self.arrive(id, name, count, deadline_ns),
            // It is no question for a board.
            Question::Variable(_) => vec![(id, Ok(Answer::Variable(None)))],
        }
    }

    /// Those have an answer now for which it is too late.
    pub fn expire(&mut self, now: Ns) -> Answers {
        let mut answers = Vec::new();
        self.lookups.retain(|id, (keys, deadline_ns)| {
            if *deadline_ns > now {
                return true;
            }
            let missing = keys.iter().find(|key| !self.entries.contains_key(*key));
            let key = super::unscoped(missing.unwrap_or(&keys[0])).escape_ascii();
            answers.push((*id, Err(format!("nobody has published {key}"))));
            false
        });
        for (name, barrier) in &mut self.barriers {
            let (there, of) = (barrier.waiting.len(), barrier.count);
            let name = super::unscoped(name).escape_ascii();
            barrier.waiting.retain(|(id, deadline_ns)| {
                if *deadline_ns > now {
                    return true;
                }
                let why = format!("barrier {name}: {there} of {of} have come");
                answers.push((*id, Err(why)));
                false
            });
        }
        self.barriers.retain(|_, it| !it.waiting.is_empty());
        answers
    }

    fn publish(&mut self, id: QuestionId, entries: Vec<Entry>) -> Answers {
        for (key, value) in entries {
            let bytes = key.len() + value.len() + ENTRY_BYTES;
            if self.bytes + bytes > BYTES_MAX {
                return vec![(id, Err(format!("the board has {BYTES_MAX} bytes at most")))];
            }
            self.bytes += bytes;
            self.entries.insert(key, value);
        }
        let mut answers = vec![(id, Ok(Answer::Done))];
        answers.append(&mut self.settle());
        answers
    }

    /// Lookups of which all keys are there.
    fn settle(&mut self) -> Answers {
        let mut answers = Vec::new();
        self.lookups.retain(|id, (keys, _)| {
            let values = keys.iter().map(|key| self.entries.get(key).cloned());
            let Some(values) = values.collect::<Option<Vec<_>>>() else {
                return true;
            };
            answers.push((*id, fits(values)));
            false
        });
        answers
    }

    fn collect(&self, prefix: &[u8], after: &[u8]) -> Answer {
        let first = after.max(prefix).to_vec();
        let behind = self.entries.range(first..).filter(|(key, _)| *key != after);
        let all = behind.take_while(|(key, _)| key.starts_with(prefix));
        portion(all)
    }

    fn arrive(&mut self, id: QuestionId, name: Vec<u8>, count: u32, deadline_ns: Ns) -> Answers {
        let barrier = self.barriers.entry(name.clone()).or_insert(Barrier {
            count,
            waiting: Vec::new(),
        });
        if barrier.count != count {
            let why = format!("others wait there for {} to come", barrier.count);
            return vec![(id, Err(why))];
        }
        barrier.waiting.push((id, deadline_ns));
        if barrier.waiting.len() < count as usize {
            return Vec::new();
        }
        let all = self.barriers.remove(&name).into_iter();
        let all = all.flat_map(|barrier| barrier.waiting);
        all.map(|(id, _)| (id, Ok(Answer::Done))).collect()
    }
}

/// Values as an answer, if they fit into a message.
pub fn fits(values: Vec<Vec<u8>>) -> Result<Answer, String> {
    let bytes: usize = values.iter().map(|value| value.len() + ENTRY_BYTES).sum();
    match bytes {
        ..=BATCH_BYTES => Ok(Answer::Values(values)),
        _ => Err(format!("values of {bytes} bytes: look up fewer keys")),
    }
}

/// As many entries as fit into a message, with the keys that plugins know; at least one, if there is any.
fn portion<'a>(all: impl Iterator<Item = (&'a Vec<u8>, &'a Vec<u8>)>) -> Answer {
    let (mut bytes, mut is_all) = (0, true);
    let fits = all.take_while(|(key, value)| {
        let is_first = bytes == 0;
        bytes += key.len() + value.len() + ENTRY_BYTES;
        is_all = is_first || bytes <= BATCH_BYTES;
        is_all
    });
    let entries = fits.map(|(key, value)| (super::unscoped(key).to_vec(), value.clone()));
    Answer::Entries {
        entries: entries.collect(),
        is_all,
    }
}
