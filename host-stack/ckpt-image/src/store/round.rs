//! A round that is being made.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
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
    /// The directory, locked (flock(2)): what a dead leader left is told from what a living one makes.
    lock: File,
}

/// A round that members' images are written to.
#[derive(Clone, Debug)]
pub struct Joined {
    round: u64,
    dir: PathBuf,
}

/// A round that is whole. Dropped before it is published, nothing of it remains; if its process
/// dies before, it is found by [`Store::prepared`].
pub struct Prepared {
    store: Store,
    round: u64,
    remove: Remove,
    _lock: File,
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
        let lock = File::open(&dir).map_err(io_error(&dir))?;
        lock_dir(&lock).map_err(io_error(&dir))?;
        Ok(Round {
            store: self.clone(),
            joined: Joined { round, dir },
            remove,
            lock,
        })
    }

    /// Joins a round that another process has begun.
    pub fn join(&self, round: u64) -> Result<Joined, StoreError> {
        let dir = self.path(round, Some(TMP));
        fs::metadata(&dir).map_err(io_error(&dir))?;
        Ok(Joined { round, dir })
    }

    /// Removes what dead processes have left.
    fn tidy(&self) -> Result<(), StoreError> {
        for round in self.named(Some(OLD))? {
            let path = self.path(round, Some(OLD));
            fs::remove_dir_all(&path).map_err(io_error(&path))?;
        }
        for round in self.named(Some(TMP))? {
            let path = self.path(round, Some(TMP));
            let lock = File::open(&path).map_err(io_error(&path))?;
            if lock_dir(&lock).is_ok() {
                fs::remove_dir_all(&path).map_err(io_error(&path))?;
            }
        }
        Ok(())
    }
}

fn lock_dir(dir: &File) -> io::Result<()> {
    Ok(flock(dir, FlockOperation::NonBlockingLockExclusive)?)
}

impl Joined {
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
        let Joined { round, dir } = &self.joined;
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
            _lock: self.lock,
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
        }
    }
}
