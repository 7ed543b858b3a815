//! What a plugin is given in a phase: the checkpoint's files, and the others of its name.

use std::{
    ffi::{OsStr, OsString},
    fs, io,
    os::{
        fd::RawFd,
        unix::ffi::{OsStrExt, OsStringExt},
    },
    path::PathBuf,
};

use crate::{
    connection::describe,
    message::{Answer, BATCH_BYTES, Descriptor, ENTRY_BYTES, Entry, KEY_MAX, Question, VALUE_MAX},
    phase::{Part, Phase, Span},
};

/// How a question gets to the supervisor and back.
pub(crate) type Ask<'a> = &'a dyn Fn(Question) -> Result<Answer, String>;

/// What a plugin is told of a phase.
pub(crate) struct Round {
    pub phase: Phase,
    /// The checkpoint's directory.
    pub checkpoint: PathBuf,
    pub participants: u32,
    pub part: Part,
    pub span: Span,
}

/// A phase of a round, as a plugin sees it.
pub struct Event<'a> {
    phase: Phase,
    /// The checkpoint's directory.
    checkpoint: PathBuf,
    name: String,
    participants: u32,
    part: Part,
    span: Span,
    pub(crate) finishes_later: bool,
    ask: Ask<'a>,
    pub(crate) descriptors: Vec<Descriptor>,
    pub(crate) regions: Vec<(u64, u64)>,
    /// What goes to the board with the end of the phase.
    pub(crate) published: Vec<Entry>,
}

impl<'a> Event<'a> {
    pub(crate) fn new(round: &Round, name: String, ask: Ask<'a>) -> Self {
        Self {
            phase: round.phase,
            checkpoint: round.checkpoint.clone(),
            name,
            participants: round.participants,
            part: round.part,
            span: round.span,
            finishes_later: false,
            ask,
            descriptors: Vec::new(),
            regions: Vec::new(),
            published: Vec::new(),
        }
    }

    /// Which phase it is.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// What the round is for this process: in a move, whether it stays.
    pub fn part(&self) -> Part {
        self.part
    }

    /// How many plugins of this name go through the phases of this round, this one included: in all processes of all
    /// members of the job.
    pub fn participants(&self) -> u32 {
        self.participants
    }

    /// A directory of this plugin and process that is part of the checkpoint: there is either both or none. In
    /// [`Phase::Save`] it is made; what is put there must be on the disk (fsync(2)) before this plugin returns, or if it
    /// finishes later, before that has ended. In a
    /// restart its name is another one. Not in [`Phase::Resume`] and [`Phase::Go`].
    pub fn directory(&self) -> io::Result<PathBuf> {
        if self.checkpoint.as_os_str().is_empty() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let own = format!("{}-{}", self.name, std::process::id());
        let path = self.checkpoint.join(own);
        if !self.phase.is_ascending() {
            return Ok(path);
        }
        match fs::create_dir(&path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(path),
        }
    }

    /// In [`Phase::Save`]: what the plugin saves will be whole only later, while the program runs on
    /// ([`Plugin::finish`](crate::Plugin::finish)). False: it does not run on, and all must be saved when this phase ends.
    pub fn finish_later(&mut self) -> bool {
        self.finishes_later = self.span >= Span::SaveToResume && self.phase == Phase::Save;
        self.finishes_later
    }

    /// In [`Phase::Quiesce`]: whether what the plugin saves is to be copied now, as far as it can be while the program works, so
    /// that it stands still for less.
    pub fn is_to_copy_ahead(&self) -> bool {
        self.span == Span::QuiesceToResume && self.phase == Phase::Quiesce
    }

    /// In [`Phase::Save`]: a descriptor that belongs to this plugin. One that is not open is passed over.
    pub fn own_descriptor(&mut self, fd: RawFd) {
        self.descriptors.extend(describe(fd));
    }

    /// In [`Phase::Save`]: memory that belongs to this plugin, all pages of it.
    pub fn own_region(&mut self, start: usize, bytes: usize) {
        const PAGE: u64 = 4096;
        let end = (start as u64).saturating_add(bytes as u64);
        let end = end.checked_next_multiple_of(PAGE).unwrap_or(end);
        self.regions.push((start as u64 / PAGE * PAGE, end));
    }

    /// A variable of the environment that the supervisor was started in: the program's own is that of its beginning.
    pub fn variable(&self, name: impl AsRef<OsStr>) -> Option<OsString> {
        let name = name.as_ref().as_bytes().to_vec();
        match (self.ask)(Question::Variable(name)) {
            Ok(Answer::Variable(value)) => value.map(OsString::from_vec),
            _ => None,
        }
    }

    /// Puts an entry on the board: at most 128 bytes of key, 32 KiB of value. What this plugin has published under the
    /// key before is replaced; a key of another one's is an error.
    pub fn publish(&self, key: &[u8], value: &[u8]) -> Result<(), String> {
        self.publish_all(&[(key.to_vec(), value.to_vec())])
    }

    /// The same, of many.
    pub fn publish_all(&self, entries: &[Entry]) -> Result<(), String> {
        entries.iter().try_for_each(fits)?;
        for batch in batches(entries, bytes) {
            (self.ask)(Question::Publish(batch.to_vec()))?;
        }
        Ok(())
    }

    /// Puts an entry on the board with the end of this phase, if the plugin does not refuse: before anybody is in the next phase
    /// it is there, and nobody waits for that but the supervisor. If it cannot be, the round fails.
    pub fn publish_last(&mut self, key: &[u8], value: &[u8]) -> Result<(), String> {
        let entry = (key.to_vec(), value.to_vec());
        fits(&entry)?;
        let before: usize = self.published.iter().map(bytes).sum();
        if before + bytes(&entry) > BATCH_BYTES {
            let before = std::mem::take(&mut self.published);
            self.publish_all(&before)?;
        }
        self.published.push(entry);
        Ok(())
    }

    /// What is published under a key: waits until it is there.
    pub fn lookup(&self, key: &[u8]) -> Result<Vec<u8>, String> {
        let mut values = self.lookup_all(&[key.to_vec()])?;
        values.pop().ok_or_else(|| unexpected("no value"))
    }

    /// What is published under all of these keys, in their order.
    pub fn lookup_all(&self, keys: &[Vec<u8>]) -> Result<Vec<Vec<u8>>, String> {
        let mut all = Vec::with_capacity(keys.len());
        for key in keys {
            key_fits(key)?;
            // Each by itself: together their values may not fit into a message.
            match (self.ask)(Question::Lookup(vec![key.clone()]))? {
                Answer::Values(values) if values.len() == 1 => all.extend(values),
                other => return Err(unexpected(&format!("{other:?}"))),
            }
        }
        Ok(all)
    }

    /// Entries that are there now whose keys begin so, in the order of their keys. What was published in an earlier
    /// phase is all there.
    pub fn collect(&self, prefix: &[u8]) -> Result<Vec<Entry>, String> {
        key_fits(prefix)?;
        let mut all: Vec<Entry> = Vec::new();
        loop {
            let after = all.last().map(|(key, _)| key.clone()).unwrap_or_default();
            let prefix = prefix.to_vec();
            match (self.ask)(Question::Collect { prefix, after })? {
                Answer::Entries { entries, is_all } => {
                    all.extend(entries);
                    if is_all {
                        return Ok(all);
                    }
                }
                other => return Err(unexpected(&format!("{other:?}"))),
            }
        }
    }

    /// Waits until so many plugins of this name are at the barrier of this name: [`Event::participants`], if it is for
    /// all.
    pub fn barrier(&self, name: &str, count: u32) -> Result<(), String> {
        key_fits(name.as_bytes())?;
        let name = name.as_bytes().to_vec();
        (self.ask)(Question::Barrier { name, count }).map(drop)
    }
}

fn key_fits(key: &[u8]) -> Result<(), String> {
    match key.len() {
        ..=KEY_MAX => Ok(()),
        _ => Err(format!("a key of more than {KEY_MAX} bytes")),
    }
}

fn fits((key, value): &Entry) -> Result<(), String> {
    key_fits(key)?;
    match value.len() {
        ..=VALUE_MAX => Ok(()),
        _ => Err(format!("a value of more than {VALUE_MAX} bytes")),
    }
}

/// What an entry takes of a message, at most.
fn bytes((key, value): &Entry) -> usize {
    key.len() + value.len() + ENTRY_BYTES
}

fn unexpected(what: &str) -> String {
    format!("the supervisor answers {what}")
}

/// Portions that fit into one message each.
fn batches<T>(mut all: &[T], bytes: impl Fn(&T) -> usize) -> Vec<&[T]> {
    let mut batches = Vec::new();
    while !all.is_empty() {
        let mut sum = 0;
        let fits = all.iter().take_while(|one| {
            sum += bytes(one);
            sum <= BATCH_BYTES
        });
        let (batch, rest) = all.split_at(fits.count().max(1));
        batches.push(batch);
        all = rest;
    }
    batches
}
