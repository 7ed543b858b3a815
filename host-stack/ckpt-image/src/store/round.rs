//! A round that is being made.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use rustix::fs::{FlockOperation, flock};

use super::{
    Checkpoint, Manifest, Member, OLD, Store, StoreError, TMP, available, io_error,
    manifest::{check_name, image_name},
    sync,
};
use crate::image::{FileSink, Header, Options, Writer};

/// A round that this process leads. Dropped before it is published, nothing of it remains.
pub struct Round {
    store: Store,
    joined: Joined,
    /// Where it is, until it is prepared and somebody else's.
    remove: Remove,
}

/// A round that members' images are written to.
#[derive(Clone, Debug)]
pub struct Joined {
    round: u64,
    dir: PathBuf,
    /// The directory, locked by all who are in the round (flock(2)): what the dead left is told from what the living
    /// make.
    lock: Arc<File>,
}

/// A round that is whole. Dropped before it is published, nothing of it remains; if its process
/// dies before, it is found by [`Store::prepared`].
pub struct Prepared {
    store: Store,
    round: u64,
    remove: Remove,
    _lock: Arc<File>,
}

/// A directory that goes when this is dropped.
struct Remove(Option<PathBuf>);

impl Drop for Remove {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            // What cannot be removed now is removed when the next round begins.
            let _ = fs::remove_dir_all(path);
        }
    }
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
        fs::create_dir(&dir).map_err(|source| match source.kind() {
            io::ErrorKind::AlreadyExists => StoreError::Busy { path: dir.clone() },
            _ => io_error(&dir)(source),
        })?;
        let remove = Remove(Some(dir.clone()));
        let joined = Joined::open(round, dir)?;
        Ok(Round {
            store: self.clone(),
            joined,
            remove,
        })
    }

    /// Joins a round. Whose members are on their own until all of them have written is begun by the first, and led by
    /// [`Store::lead`] then.
    pub fn join(&self, round: u64) -> Result<Joined, StoreError> {
        let _lock = self.lock()?;
        let path = self.path(round, None);
        if path.exists() {
            return Err(StoreError::Exists { path });
        }
        let dir = self.path(round, Some(TMP));
        match fs::create_dir(&dir) {
            Err(source) if source.kind() != io::ErrorKind::AlreadyExists => {
                Err(io_error(&dir)(source))
            }
            _ => Joined::open(round, dir),
        }
    }

    /// Leads a round that members have joined and written, to be committed.
    pub fn lead(&self, round: u64) -> Result<Round, StoreError> {
        let _lock = self.lock()?;
        let dir = self.path(round, Some(TMP));
        let joined = Joined::open(round, dir.clone())?;
        self.tidy()?;
        Ok(Round {
            store: self.clone(),
            joined,
            remove: Remove(Some(dir)),
        })
    }

    /// Takes a round away for good, whether it is published, or was about to be.
    pub fn retract(&self, round: u64) -> Result<(), StoreError> {
        let _lock = self.lock()?;
        self.tidy()?;
        let (path, old) = (self.path(round, None), self.path(round, Some(OLD)));
        if path.exists() {
            fs::rename(&path, &old).map_err(io_error(&path))?;
        }
        sync(&self.dir)?;
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
            let path = self.path(round, Some(TMP));
            let lock = File::open(&path).map_err(io_error(&path))?;
            if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok() {
                fs::remove_dir_all(&path).map_err(io_error(&path))?;
            }
        }
        Ok(())
    }
}

impl Joined {
    fn open(round: u64, dir: PathBuf) -> Result<Self, StoreError> {
        let lock = File::open(&dir).map_err(io_error(&dir))?;
        let locked = flock(&lock, FlockOperation::NonBlockingLockShared);
        locked.map_err(|errno| io_error(&dir)(errno.into()))?;
        let lock = Arc::new(lock);
        Ok(Self { round, dir, lock })
    }

    /// The round is not to be, or not with this member: removes its image, and the directory with the last one.
    pub fn discard(self, member: &str) -> Result<(), StoreError> {
        check_name(member)?;
        let path = self.dir.join(image_name(member));
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(io_error(&path)(error));
            }
            _ => {}
        }
        // Others' images may be in it still.
        let _ = fs::remove_dir(&self.dir);
        Ok(())
    }

    /// Which it is.
    pub fn round(&self) -> u64 {
        self.round
    }

    /// Where its files are until it is published.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Starts the image of a member. Of its summary comes a [`Member`] for the manifest.
    pub fn image(
        &self,
        member: &str,
        header: &Header,
        options: Options,
    ) -> Result<Writer<FileSink>, StoreError> {
        check_name(member)?;
        let path = self.dir.join(image_name(member));
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
        let Joined { round, dir, lock } = &self.joined;
        let manifest = Manifest {
            round: *round,
            ..manifest
        };
        manifest.write(dir)?;
        self.store.check(dir, *round)?;
        sync(dir)?;
        Ok(Prepared {
            store: self.store,
            round: *round,
            remove: self.remove,
            _lock: lock.clone(),
        })
    }

    /// Prepares and publishes it: for a job whose members are all in it.
    pub fn commit(self, manifest: Manifest) -> Result<Checkpoint, StoreError> {
        self.prepare(manifest)?.publish()
    }
}

impl Prepared {
    /// From now on it is offered.
    pub fn publish(mut self) -> Result<Checkpoint, StoreError> {
        let published = self.store.publish(self.round)?;
        self.remove.0 = None;
        Ok(published)
    }

    /// Leaves it prepared, to be published by [`Store::publish`].
    pub fn keep(mut self) {
        self.remove.0 = None;
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
