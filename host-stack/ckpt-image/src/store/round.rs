//! A round that is being made.

use std::{
    fs::{self, File},
    io,
    path::Path,
};

use snaprig_store::directory::{self, Draft, Leading};

use super::{
    Checkpoint, Manifest, Member, OLD, Store, StoreError, TMP, available, io_error,
    manifest::{check_name, image_name},
};
use crate::image::{FileSink, Header, Options, Writer};

/// A round that this process leads. Dropped before it is published, nothing of it remains.
pub struct Round {
    store: Store,
    joined: Joined,
    leading: Leading,
}

/// A round that members' images are written to.
#[derive(Clone, Debug)]
pub struct Joined {
    round: u64,
    draft: Draft,
}

/// A round that is whole. Dropped before it is published, nothing of it remains; if its process
/// dies before, it is found by [`Store::prepared`].
pub struct Prepared {
    store: Store,
    round: u64,
    pub(super) leading: Leading,
}

impl Store {
    /// Begins a round, as its leader. It takes about `expected` bytes here, if that is not 0. What dead
    /// leaders left is removed, also if it is prepared.
    pub fn begin(&self, round: u64, expected: u64) -> Result<Round, StoreError> {
        let path = self.path(round, None);
        if path.exists() {
            return Err(StoreError::Exists { path });
        }
        self.make(round, expected)
    }

    /// Begins a round, also where there is one.
    pub(super) fn make(&self, round: u64, expected: u64) -> Result<Round, StoreError> {
        let dir = self.path(round, Some(TMP));
        let _lock = self.lock()?;
        self.tidy()?;
        let needed = expected;
        let available = available(&self.dir).map_err(io_error(&self.dir))?;
        if needed > available {
            return Err(StoreError::Full {
                path: self.dir.clone(),
                needed,
                available,
            });
        }
        Ok(self.led(round, Draft::begin(&dir)?))
    }

    fn led(&self, round: u64, leading: Leading) -> Round {
        let draft = leading.draft().clone();
        Round {
            store: self.clone(),
            joined: Joined { round, draft },
            leading,
        }
    }

    /// Joins a round. Whose members are on their own until all of them have written is begun by the first, and led by
    /// [`Store::lead`] then.
    pub fn join(&self, round: u64) -> Result<Joined, StoreError> {
        let _lock = self.lock()?;
        let path = self.path(round, None);
        if path.exists() {
            return Err(StoreError::Exists { path });
        }
        let draft = Draft::join(&self.path(round, Some(TMP)))?;
        Ok(Joined { round, draft })
    }

    /// Leads a round that members have joined and written, to be committed.
    pub fn lead(&self, round: u64) -> Result<Round, StoreError> {
        let _lock = self.lock()?;
        let draft = Draft::open(&self.path(round, Some(TMP)))?;
        self.tidy()?;
        Ok(self.led(round, draft.lead()))
    }

    /// Takes a round away for good, whether it is published, or was about to be.
    pub fn retract(&self, round: u64) -> Result<(), StoreError> {
        let _lock = self.lock()?;
        self.tidy()?;
        let (path, old) = (self.path(round, None), self.path(round, Some(OLD)));
        if path.exists() {
            fs::rename(&path, &old).map_err(io_error(&path))?;
        }
        directory::sync(&self.dir)?;
        self.tidy()
    }

    /// A number for the next round: no directory of an earlier one has it, whole or not.
    pub fn next_round(&self) -> Result<u64, StoreError> {
        let mut last = 0;
        for extension in [None, Some(TMP), Some(OLD)] {
            last = self.named(extension)?.into_iter().fold(last, u64::max);
        }
        Ok(last.saturating_add(1))
    }

    /// Removes what dead processes have left, also if it is prepared.
    pub fn sweep(&self) -> Result<(), StoreError> {
        let _lock = self.lock()?;
        self.tidy()
    }

    fn tidy(&self) -> Result<(), StoreError> {
        for round in self.named(Some(OLD))? {
            let path = self.path(round, Some(OLD));
            fs::remove_dir_all(&path).map_err(io_error(&path))?;
        }
        for round in self.named(Some(TMP))? {
            directory::remove_dead(&self.path(round, Some(TMP)))?;
        }
        Ok(())
    }
}

impl Joined {
    /// The round is not to be, or not with this member: removes its image, and the directory with the last one.
    pub fn discard(self, member: &str) -> Result<(), StoreError> {
        check_name(member)?;
        let path = self.dir().join(image_name(member));
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(io_error(&path)(error));
            }
            _ => {}
        }
        // Others' images may be in it still.
        let _ = fs::remove_dir(self.dir());
        Ok(())
    }

    /// Which it is.
    pub fn round(&self) -> u64 {
        self.round
    }

    /// Where its files are until it is published.
    pub fn dir(&self) -> &Path {
        self.draft.path()
    }

    /// Starts the image of a member. Of its summary comes a [`Member`] for the manifest.
    pub fn image(
        &self,
        member: &str,
        header: &Header,
        options: Options,
    ) -> Result<Writer<FileSink>, StoreError> {
        check_name(member)?;
        let path = self.dir().join(image_name(member));
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path);
        let sink = FileSink::new(file.map_err(io_error(&path))?).map_err(io_error(&path))?;
        let name = path.display().to_string();
        Ok(Writer::new(sink, header, Options { name, ..options })?)
    }
}

impl Round {
    /// The round, to write members' images to.
    pub fn joined(&self) -> &Joined {
        &self.joined
    }

    /// All images have been written: checks that they are those that the manifest names, and writes
    /// the manifest. Its round is this one.
    pub fn prepare(self, manifest: Manifest) -> Result<Prepared, StoreError> {
        let (round, dir) = (self.joined.round, self.joined.dir());
        let manifest = Manifest { round, ..manifest };
        manifest.write(dir)?;
        self.store.check(dir, round)?;
        directory::sync_tree(dir)?;
        Ok(Prepared {
            store: self.store,
            round,
            leading: self.leading,
        })
    }

    /// Prepares and publishes it: for a job whose members are all in it.
    pub fn commit(self, manifest: Manifest) -> Result<Checkpoint, StoreError> {
        self.prepare(manifest)?.publish()
    }
}

impl Prepared {
    /// From now on it is offered.
    pub fn publish(self) -> Result<Checkpoint, StoreError> {
        let published = self.store.publish(self.round)?;
        self.leading.keep();
        Ok(published)
    }

    /// Leaves it prepared, to be published by [`Store::publish`].
    pub fn keep(self) {
        self.leading.keep();
    }
}

impl Manifest {
    /// That of members, which have been written now, by the clock.
    pub fn now(command: Vec<String>, parent: Option<u64>, members: Vec<Member>) -> Self {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Self {
            round: 0,
            parent,
            command,
            time_unix_ms: now.map_or(0, |now| now.as_millis() as u64),
            members,
            arrivals: Vec::new(),
        }
    }
}
