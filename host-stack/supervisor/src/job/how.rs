//! How a job is checkpointed: one setting for all of its members, in `JOB/how.json`. Who orders a checkpoint reads it, and
//! says in the order what members need to know of it.
//!
//! What must stay true: an increment builds on the round that the order names, the newest complete one when it was given.
//! So all increments of a round build on the same one, which is not removed before the round is over.

use std::{fs::File, io};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use snaprig_ckpt_image::store;
use snaprig_coord::{job::JobError, phase::Order};
use snaprig_resources::error::{Error, Result};

use super::Job;
use crate::{checkpoint::Mode, schedule::Schedule};

const NAME: &str = "how.json";

/// What is said of how a job is checkpointed; of what is not, that stays what was said before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Settings {
    /// When, if nobody asks.
    pub schedule: Option<Schedule>,
    /// What a checkpoint has, and when that is copied.
    pub mode: Option<Mode>,
    /// Compressed with zstd, at this level.
    pub zstd: Option<i32>,
    /// Older checkpoints than so many are removed, unless one of those builds on them.
    pub keep: Option<usize>,
}

impl Settings {
    /// These, where `later` says nothing.
    fn and(self, later: Self) -> Self {
        Self {
            schedule: later.schedule.or(self.schedule),
            mode: later.mode.or(self.mode),
            zstd: later.zstd.or(self.zstd),
            keep: later.keep.or(self.keep),
        }
    }
}

impl Job {
    /// How it is checkpointed from now on.
    pub fn set(&self, settings: Settings) -> Result<()> {
        if settings == Settings::default() {
            return Ok(());
        }
        let path = self.directory.path("job.json");
        let failed = |source| Error::io(path.display().to_string(), source);
        // Of those that are launched at the same time, each says something.
        let lock = File::open(&path).map_err(failed)?;
        flock(&lock, FlockOperation::LockExclusive).map_err(|error| failed(error.into()))?;
        let settings = self.settings()?.and(settings);
        Ok(self.directory.write_file(NAME, &settings)?)
    }

    /// How it is checkpointed.
    pub fn settings(&self) -> Result<Settings> {
        match self.directory.read_file(NAME) {
            Err(JobError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                Ok(Settings::default())
            }
            read => Ok(read?),
        }
    }
}

/// What an order says to members.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// What the checkpoint has, and when that is copied.
    pub mode: Mode,
    /// Whatever the mode, it builds on no other.
    pub is_whole: bool,
    /// Compressed with zstd, at this level.
    pub zstd: Option<i32>,
    /// The round that increments build on.
    pub base: Option<u64>,
}

impl Note {
    /// That of an order.
    pub fn of(order: &Order) -> Result<Self> {
        let note = postcard::from_bytes(&order.note);
        note.map_err(|error| Error::io("what is ordered", io::Error::other(error)))
    }

    /// As an order has it.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let note = postcard::to_stdvec(self);
        note.map_err(|error| Error::io("an order", io::Error::other(error)))
    }
}

/// What a member says of its image, when that is written.
#[derive(Debug, Serialize, Deserialize)]
pub struct Report {
    /// The image.
    pub image: store::Member,
    /// The round that it builds on.
    pub parent: Option<u64>,
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_is_said_later_counts_and_the_rest_stays() {
        let dir = tempfile::tempdir().unwrap();
        let job = Job::open_or_create(&dir.path().join("job")).unwrap();
        assert_eq!(job.settings().unwrap(), Settings::default());
        let every = Schedule::Every(Duration::from_millis(1500));
        let first = Settings {
            schedule: Some(every),
            mode: Some(Mode::Incremental),
            ..Settings::default()
        };
        job.set(first).unwrap();
        job.set(Settings::default()).unwrap();
        let second = Settings {
            mode: Some(Mode::Background),
            keep: Some(3),
            ..Settings::default()
        };
        job.set(second).unwrap();
        let settings = Settings {
            schedule: Some(every),
            ..second
        };
        assert_eq!(job.settings().unwrap(), settings);
    }
}
