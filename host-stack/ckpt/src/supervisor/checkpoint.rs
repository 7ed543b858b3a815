//! One checkpoint of a tree, step by step.
//!
//! ```text
//! stop:     look --> freeze --> describe       (a tree that is where it cannot be saved runs on for a moment)
//! save:     state and pages into the image     (the tree stands still)
//! let go:   the tree runs on; the disk may lag
//! finish:   trailer, fsync                     (of all members; then their round is committed)
//! ```
//! What must stay true: dropped at any step, the tree runs on as it was.

use std::{
    thread,
    time::{Duration, Instant},
};

use libc::pid_t;
use snaprig_ckpt_image::{
    image::{FileSink, Header, Options as WriteOptions, Writer},
    store::{Joined, Member},
};

use crate::{
    dump::{self, Before, Described, Named},
    error::{Error, Result},
    freeze::{Calls, Frozen},
    steps::{self, Step},
};

/// How often a tree is looked at again that is where it cannot be saved for a moment, and how long it runs in between.
const TRIES_MAX: u32 = 200;
const BETWEEN_TRIES: Duration = Duration::from_millis(2);
/// Buffers of 4 MiB that are filled before the disk has to keep up.
const BUFFERS: usize = 64;

/// What is kept from one checkpoint of a tree to the next.
#[derive(Default)]
pub struct Known {
    named: Named,
    calls: Calls,
}

/// A tree that stands still, and is described.
pub struct Stopped {
    since: Instant,
    frozen: Frozen,
    described: Described,
}

impl Stopped {
    /// Stops the descendants of this process, of which `root` is the first.
    pub fn stop(root: pid_t, known: &mut Known) -> Result<Self> {
        // SAFETY: no preconditions.
        let me = unsafe { libc::getpid() };
        let mut tries = 0;
        let before = loop {
            match Before::look(me, &mut known.named) {
                Err(Error::NotNow(_)) if tries < TRIES_MAX => tries += 1,
                looked => break looked?,
            }
            thread::sleep(BETWEEN_TRIES);
        };
        loop {
            let since = Instant::now();
            let mut frozen = Frozen::freeze(me, &mut known.calls)?;
            match dump::describe(&mut frozen, root, &before, &mut known.named) {
                Ok(described) => {
                    steps::reached(Step::Described);
                    return Ok(Self {
                        since,
                        frozen,
                        described,
                    });
                }
                // The tree runs on for a moment, and gets past what is in the way.
                Err(Error::NotNow(_)) if tries < TRIES_MAX => frozen.let_go()?,
                // What is left of the tree is a tree as well.
                Err(_) if tries < TRIES_MAX && frozen.lost().is_some() => frozen.let_go()?,
                Err(error) => return Err(error),
            }
            tries += 1;
            thread::sleep(BETWEEN_TRIES);
        }
    }

    /// Writes state and pages as the image of a member of a round. All bytes have been read when it returns: who goes
    /// on need not wait for the disk.
    pub fn save(&self, round: &Joined, member: &str) -> Result<Saved> {
        let header = Header {
            kernel: rustix::system::uname()
                .release()
                .to_string_lossy()
                .into_owned(),
            page_bytes: 4096,
            round: round.round(),
            ..Header::default()
        };
        let options = WriteOptions {
            buffers: BUFFERS,
            ..WriteOptions::new(member)
        };
        let mut writer = round.image(member, &header, options)?;
        let written = dump::write(&self.described, &self.frozen, &mut writer);
        written.map_err(|error| match self.frozen.lost() {
            Some(pid) => Error::Killed { pid },
            None => error,
        })?;
        steps::reached(Step::Written);
        Ok(Saved {
            member: member.to_owned(),
            writer,
        })
    }

    /// The tree runs on; how long it has stood still.
    pub fn let_go(self) -> Result<Duration> {
        // What was taken out of connections is put back first.
        drop(self.described);
        self.frozen.let_go()?;
        Ok(self.since.elapsed())
    }

    /// The tree ends, for its checkpoint is complete; how long it has stood still.
    pub fn end(mut self) -> Duration {
        self.described.abandon();
        // Copies of descriptors would keep connections until they are closed.
        self.frozen.kill();
        drop(self.described);
        self.since.elapsed()
    }
}

/// An image whose bytes may still be on their way to the disk.
pub struct Saved {
    member: String,
    writer: Writer<FileSink>,
}

impl Saved {
    /// Waits until all of it is on the disk; the image, and how many bytes it has.
    pub fn finish(self) -> Result<(Member, u64)> {
        let (_, summary) = self.writer.finish()?;
        Ok((
            Member::new(&self.member, &summary),
            summary.totals.file_bytes,
        ))
    }
}
