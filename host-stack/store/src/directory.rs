//! A directory that is made beside its place.
//!
//! All who write to it have it locked (flock(2), shared): nobody else's lock means that its writers are dead, and it can
//! be removed by whoever gets an exclusive one. A lock counts only if its directory still has its name.

use std::{
    fs::{self, File},
    io,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::fs::MetadataExt,
    },
    path::{Path, PathBuf},
    sync::Arc,
};

use rustix::fs::{CWD, FlockOperation, RenameFlags, flock, renameat_with};

use crate::{CommitError, error::io_error};

/// How often a directory is made that others remove as soon as it is there.
const ATTEMPTS: usize = 100;

/// A directory that is being made, by whoever has this.
#[derive(Clone, Debug)]
pub struct Draft {
    path: PathBuf,
    lock: Arc<File>,
}

/// A draft that goes when this is dropped: its writer has begun it, or leads those who write to it.
#[derive(Debug)]
pub struct Leading {
    draft: Draft,
    is_kept: bool,
}

/// What becomes of a directory that has the place of the one that is published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// It stays, and there is an error.
    Refuse,
    /// It is there until the very moment that the new one is; then it is removed. What is no directory stays, and there is
    /// an error.
    Replace,
}

impl Draft {
    /// Begins a directory at `path`, in one that exists. What dead writers left there is removed.
    pub fn begin(path: &Path) -> Result<Leading, CommitError> {
        for _ in 0..ATTEMPTS {
            let busy = || CommitError::Busy {
                path: path.to_owned(),
            };
            if !remove_dead(path)? {
                return Err(busy());
            }
            match fs::create_dir(path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Err(busy()),
                made => made.map_err(io_error(path))?,
            }
            if let Some(draft) = Self::locked(path, true)? {
                return Ok(draft.lead());
            }
        }
        Err(CommitError::Busy {
            path: path.to_owned(),
        })
    }

    /// Writes to a directory together with others. Whoever is first begins it.
    pub fn join(path: &Path) -> Result<Self, CommitError> {
        for _ in 0..ATTEMPTS {
            match fs::create_dir(path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                made => made.map_err(io_error(path))?,
            }
            if let Some(draft) = Self::locked(path, false)? {
                return Ok(draft);
            }
        }
        Err(CommitError::Busy {
            path: path.to_owned(),
        })
    }

    /// A directory that others have begun, and may have left.
    pub fn open(path: &Path) -> Result<Self, CommitError> {
        let locked = Self::locked(path, false)?;
        locked.ok_or_else(|| io_error(path)(io::ErrorKind::NotFound.into()))
    }

    /// From now on it goes unless it is published.
    pub fn lead(self) -> Leading {
        Leading {
            draft: self,
            is_kept: false,
        }
    }

    /// Where it is until it is published.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What keeps it locked.
    pub fn lock(&self) -> BorrowedFd<'_> {
        self.lock.as_fd()
    }

    /// Locks it. None: somebody has removed it before it was locked, or, if it is to be `alone`, has it locked, too.
    fn locked(path: &Path, alone: bool) -> Result<Option<Self>, CommitError> {
        let lock = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(io_error(path))?,
        };
        // Of all who have made it, or have found it made, one has it alone. Then others may share it.
        if alone && !lock_alone(&lock, path)? {
            return Ok(None);
        }
        // Whoever has it alone now removes it, or has opened it when it had another name, and soon knows.
        rustix::io::retry_on_intr(|| flock(&lock, FlockOperation::LockShared))
            .map_err(|errno| io_error(path)(errno.into()))?;
        let draft = Self {
            path: path.to_owned(),
            lock: Arc::new(lock),
        };
        Ok(is_named(&draft.lock, path).then_some(draft))
    }
}

impl Leading {
    /// What others share.
    pub fn draft(&self) -> &Draft {
        &self.draft
    }

    /// Where it is until it is published.
    pub fn path(&self) -> &Path {
        &self.draft.path
    }

    /// Publishes it at `place`, beside where it is. All that is in it is on the disk: files have been synced, and
    /// [`sync_tree`] was called. On an error it is removed.
    pub fn publish(mut self, place: &Path, existing: Existing) -> Result<(), CommitError> {
        publish(&self.draft.path, place, existing)?;
        self.is_kept = true;
        Ok(())
    }

    /// It stays where it is, for somebody else to [`publish`], or until the next one begins.
    pub fn keep(mut self) {
        self.is_kept = true;
    }
}

impl Drop for Leading {
    fn drop(&mut self) {
        if !self.is_kept {
            // What cannot be removed now is removed when the next one begins.
            let _ = fs::remove_dir_all(&self.draft.path);
        }
    }
}

/// Gives the directory at `from` the name `place`, for good. On an error it is still at `from`, and at `place` is what
/// was there.
pub fn publish(from: &Path, place: &Path, existing: Existing) -> Result<(), CommitError> {
    let path = place.to_owned();
    let replaced = match place.exists() {
        false => None,
        true if existing == Existing::Refuse || !place.is_dir() => {
            return Err(CommitError::Exists { path });
        }
        // It has the name of a draft until it is gone. Locked, nobody takes it for one that a dead writer left, and begins
        // another under that name, which would go with it.
        true => Some(Draft::locked(place, false)?.ok_or(CommitError::Busy { path })?),
    };
    let exchanged = match replaced {
        Some(_) => RenameFlags::EXCHANGE,
        None => RenameFlags::empty(),
    };
    let rename = |from, to| renameat_with(CWD, from, CWD, to, exchanged);
    rename(from, place).map_err(|errno| io_error(place)(errno.into()))?;
    // It has its name, and nobody knows for how long: who is told that it failed must find it gone.
    let parent = parent_of(place);
    match sync(parent) {
        Err(error) if rename(place, from).is_ok() => return Err(error),
        _ => {}
    }
    if replaced.is_some() {
        // What cannot be removed now is removed when the next one begins.
        let _ = fs::remove_dir_all(from);
    }
    Ok(())
}

/// Removes a directory whose writers are dead, if there is one. False: they live.
pub fn remove_dead(path: &Path) -> Result<bool, CommitError> {
    let lock = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
        opened => opened.map_err(io_error(path))?,
    };
    if !lock_alone(&lock, path)? {
        return Ok(false);
    }
    if !is_named(&lock, path) {
        // Somebody else has removed it, and perhaps another has begun.
        return Ok(!path.exists());
    }
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        removed => removed.map(|()| true).map_err(io_error(path)),
    }
}

/// Locks what is open unless others have it locked.
fn lock_alone(open: &File, path: &Path) -> Result<bool, CommitError> {
    match flock(open, FlockOperation::NonBlockingLockExclusive) {
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
        locked => locked
            .map(|()| true)
            .map_err(|errno| io_error(path)(errno.into())),
    }
}

/// What is in a directory is named there also after a crash.
pub fn sync(directory: &Path) -> Result<(), CommitError> {
    let synced = File::open(directory).and_then(|directory| directory.sync_all());
    synced.map_err(io_error(directory))
}

/// The same of a directory and all directories in it.
pub fn sync_tree(directory: &Path) -> Result<(), CommitError> {
    for entry in fs::read_dir(directory).map_err(io_error(directory))? {
        let entry = entry.map_err(io_error(directory))?;
        if entry.file_type().map_err(io_error(directory))?.is_dir() {
            sync_tree(&entry.path())?;
        }
    }
    sync(directory)
}

/// The directory that a path is in.
pub(crate) fn parent_of(path: &Path) -> &Path {
    let parent = path.parent().filter(|parent| *parent != Path::new(""));
    parent.unwrap_or(Path::new("."))
}

/// Whether what is open still has this name.
pub(crate) fn is_named(open: &File, path: &Path) -> bool {
    match (open.metadata(), fs::symlink_metadata(path)) {
        (Ok(open), Ok(named)) => (open.dev(), open.ino()) == (named.dev(), named.ino()),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    }

    #[test]
    fn a_directory_is_whole_or_the_earlier_one() {
        let directory = tempfile::tempdir().unwrap();
        let (draft, place) = (directory.path().join("a.tmp"), directory.path().join("a"));
        let one = Draft::begin(&draft).unwrap();
        fs::write(one.path().join("file"), "one").unwrap();
        assert!(matches!(
            Draft::begin(&draft),
            Err(CommitError::Busy { .. })
        ));
        one.publish(&place, Existing::Refuse).unwrap();
        let two = Draft::begin(&draft).unwrap();
        fs::write(two.path().join("file"), "two").unwrap();
        let refused = two.publish(&place, Existing::Refuse);
        assert!(matches!(refused, Err(CommitError::Exists { .. })));
        assert_eq!(names(directory.path()), ["a"]);
        assert_eq!(fs::read(place.join("file")).unwrap(), b"one");
        let three = Draft::begin(&draft).unwrap();
        fs::write(three.path().join("file"), "three").unwrap();
        three.publish(&place, Existing::Replace).unwrap();
        assert_eq!(names(directory.path()), ["a"]);
        assert_eq!(fs::read(place.join("file")).unwrap(), b"three");
        let file = directory.path().join("file");
        fs::write(&file, "somebody's").unwrap();
        let refused = Draft::begin(&draft)
            .unwrap()
            .publish(&file, Existing::Replace);
        assert!(matches!(refused, Err(CommitError::Exists { .. })));
        assert_eq!(fs::read(&file).unwrap(), b"somebody's");
    }

    #[test]
    fn who_replaces_a_directory_takes_nobody_elses_draft_away() {
        let directory = tempfile::tempdir().unwrap();
        let (draft, place) = (directory.path().join("a.tmp"), directory.path().join("a"));
        let publish = || {
            let mut published = 0;
            while published < 100 {
                let Ok(one) = Draft::begin(&draft) else {
                    std::thread::yield_now();
                    continue;
                };
                for file in ["one", "two", "three"] {
                    fs::write(one.path().join(file), file).unwrap();
                }
                one.publish(&place, Existing::Replace).unwrap();
                published += 1;
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(publish);
            }
        });
        assert_eq!(names(&place), ["one", "three", "two"]);
        assert_eq!(names(directory.path()), ["a"]);
    }

    #[test]
    fn what_the_dead_leave_goes_and_what_the_living_make_stays() {
        let directory = tempfile::tempdir().unwrap();
        let draft = directory.path().join("a.tmp");
        fs::create_dir_all(draft.join("left/by/the/dead")).unwrap();
        let living = Draft::begin(&draft).unwrap();
        assert!(names(&draft).is_empty());
        assert!(!remove_dead(&draft).unwrap());
        // Others write to it, too; it is theirs as long as one of them lives.
        let other = Draft::join(&draft).unwrap();
        living.keep();
        assert!(!remove_dead(&draft).unwrap());
        drop(other);
        assert!(remove_dead(&draft).unwrap());
        assert!(names(directory.path()).is_empty() && remove_dead(&draft).unwrap());
        assert!(Draft::open(&draft).is_err());
        drop(Draft::join(&draft).unwrap().lead());
        assert!(names(directory.path()).is_empty());
    }

    #[test]
    fn of_many_who_begin_at_once_one_does() {
        let directory = tempfile::tempdir().unwrap();
        let draft = directory.path().join("a.tmp");
        for _ in 0..500 {
            fs::create_dir(&draft).unwrap();
            let begun: Vec<_> = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..4)
                    .map(|_| scope.spawn(|| Draft::begin(&draft)))
                    .collect();
                threads
                    .into_iter()
                    .map(|thread| thread.join().unwrap())
                    .collect()
            });
            let (made, refused): (Vec<_>, Vec<_>) = begun.into_iter().partition(Result::is_ok);
            assert!(made.len() <= 1, "only one is the writer");
            let is_busy = |error: &Result<_, _>| matches!(error, Err(CommitError::Busy { .. }));
            assert!(refused.iter().all(is_busy));
            drop(made);
            assert!(remove_dead(&draft).unwrap());
        }
    }
}
