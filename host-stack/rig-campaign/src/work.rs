//! The directory of one run. A campaign or demo that is killed cannot remove it; the next one does.

use std::{
    env,
    fs::{self, File},
    io,
    path::Path,
};

use rustix::fs::{FlockOperation, flock};
use tempfile::TempDir;

const PREFIX: &str = "snaprig-run-";
/// Locked for as long as the run goes on.
const LOCK: &str = "lock";

/// A directory, removed when it is dropped.
pub struct Work {
    directory: TempDir,
    _lock: File,
}

impl Work {
    /// A new one.
    pub fn new() -> io::Result<Self> {
        let directory = tempfile::Builder::new().prefix(PREFIX).tempdir()?;
        // Under its name only when it is locked: a sweep must not come in between.
        let unlocked = directory.path().join("lock.new");
        let lock = File::create(&unlocked)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        fs::rename(unlocked, directory.path().join(LOCK))?;
        Ok(Self {
            directory,
            _lock: lock,
        })
    }

    /// Leaves it behind.
    pub fn keep(&mut self) {
        self.directory.disable_cleanup(true);
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }
}

/// Removes the directories of campaigns that were killed.
pub fn sweep() {
    let Ok(entries) = fs::read_dir(env::temp_dir()) else {
        return;
    };
    for entry in entries.flatten() {
        let is_ours = entry.file_name().to_string_lossy().starts_with(PREFIX);
        if is_ours && is_abandoned(&entry.path()) {
            // Somebody else may be doing the same.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

fn is_abandoned(directory: &Path) -> bool {
    let lock = File::open(directory.join(LOCK));
    lock.is_ok_and(|lock| flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_abandoned_directories_are_swept() {
        let (alive, abandoned) = (Work::new().unwrap(), Work::new().unwrap());
        let left = abandoned.directory.keep();
        // Not closed: a process that another test forks has the same lock until it executes its program.
        flock(&abandoned._lock, FlockOperation::Unlock).unwrap();
        sweep();
        assert!(alive.path().exists());
        assert!(!left.exists());
    }
}
