//! What the trees of a job tell each other in a round.

use std::{sync::MutexGuard, time::Duration};

use serde::{Serialize, de::DeserializeOwned};
use snaprig_coord::{driver::Member, message::CallError};

use crate::error::{Error, Result};

/// The board of a round, as one of its members sees it.
#[derive(Clone, Copy)]
pub struct Board<'a> {
    /// The member.
    pub member: &'a Member,
    /// The round.
    pub round: u64,
    /// How long others may take to say what is looked for.
    pub patience: Duration,
}

impl Board<'_> {
    /// Says what there is to say under keys.
    pub fn publish<T: Serialize>(&self, entries: &[(Vec<u8>, T)]) -> Result<()> {
        let entry = |(key, value): &(Vec<u8>, T)| Ok((key.clone(), postcard::to_stdvec(value)?));
        let entries: Result<Vec<_>, postcard::Error> = entries.iter().map(entry).collect();
        let entries = entries.map_err(|error| nonsense(&error))?;
        Ok(self.member.publish(self.round, &entries)?)
    }

    /// Says that there is something under keys, of which others may say so as well.
    pub fn claim<'a>(&self, keys: impl Iterator<Item = &'a Vec<u8>>) -> Result<()> {
        let entries: Vec<_> = keys.map(|key| (key.clone(), Vec::new())).collect();
        let mut left = &entries[..];
        loop {
            let said = self.member.publish(self.round, left);
            // They are said in order, up to the first that is another's.
            let owned = match &said {
                Err(CallError::Owned { key, .. }) => left.iter().position(|(one, _)| one == key),
                _ => None,
            };
            match owned {
                Some(at) => left = &left[at + 1..],
                None => return Ok(said?),
            }
        }
    }

    /// What others say under these keys; waits until all of it is said.
    pub fn lookup<T: DeserializeOwned>(&self, keys: &[Vec<u8>]) -> Result<Vec<T>> {
        let values = self.member.lookup(self.round, keys, self.patience)?;
        values.iter().map(|value| decode(value)).collect()
    }

    /// What others have said under these keys; none: nobody has said anything.
    pub fn look<T: DeserializeOwned>(&self, keys: &[Vec<u8>]) -> Result<Vec<Option<T>>> {
        let mut found = Vec::new();
        let mut lost: Vec<Vec<u8>> = Vec::new();
        // Each time, it says which is the first that is not there.
        let values = loop {
            let left: Vec<_> = keys
                .iter()
                .filter(|key| !lost.contains(key))
                .cloned()
                .collect();
            match self.member.lookup(self.round, &left, Duration::ZERO) {
                Ok(values) => break values,
                Err(CallError::NotFound { key }) if left.contains(&key) => lost.push(key),
                Err(error) => return Err(error.into()),
            }
        };
        let mut values = values.iter();
        for key in keys {
            found.push(match lost.contains(key) {
                true => None,
                false => values.next().map(|value| decode(value)).transpose()?,
            });
        }
        Ok(found)
    }

    /// Waits until all members of the round are there.
    pub fn meet(&self, name: &str) -> Result<()> {
        Ok(self.member.barrier(self.round, name, self.patience)?)
    }

    /// Until this is dropped, the process can be forked as if it had one thread.
    pub fn quiet(&self) -> MutexGuard<'_, ()> {
        self.member.quiet()
    }
}

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    postcard::from_bytes(bytes).map_err(|error| nonsense(&error))
}

fn nonsense(error: &postcard::Error) -> Error {
    Error::Job {
        what: format!("what a member says on the board: {error}"),
    }
}
