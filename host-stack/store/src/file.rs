//! A file that is made beside its place.
//!
//! ```text
//! NAME.partial-PID-NUMBER   locked (flock(2)) by whoever writes it, removed if it is dropped
//! NAME                      by rename, when all of it is on the disk
//! ```
//! What dead writers left goes with the directory, if that is a draft; elsewhere [`remove_dead`] removes it.

use std::{
    ffi::OsStr,
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};

use crate::{
    CommitError,
    directory::{is_named, parent_of, sync},
    error::io_error,
};

/// A file that is being made.
#[derive(Debug)]
pub struct NewFile {
    place: PathBuf,
    partial: PathBuf,
    file: File,
    is_placed: bool,
}

impl NewFile {
    /// Begins a file that will be at `place`, in a directory that exists.
    pub fn create(place: &Path) -> Result<Self, CommitError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let mut name = place.as_os_str().to_owned();
            name.push(format!(".partial-{}-{number}", std::process::id()));
            let partial = PathBuf::from(name);
            let mut options = File::options();
            let opened = options
                .read(true)
                .write(true)
                .create_new(true)
                .open(&partial);
            let file = match opened {
                // Of a process that had our id before us.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                opened => opened.map_err(io_error(&partial))?,
            };
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) if is_named(&file, &partial) => {
                    return Ok(Self {
                        place: place.to_owned(),
                        partial,
                        file,
                        is_placed: false,
                    });
                }
                // Somebody took it for a dead one's before it was locked.
                Ok(()) | Err(Errno::WOULDBLOCK) => {}
                Err(errno) => {
                    // It is in nobody's way if it cannot be removed either.
                    let _ = fs::remove_file(&partial);
                    return Err(io_error(&partial)(errno.into()));
                }
            }
        }
    }

    /// The file, to write.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Waits until it is on the disk.
    fn sync(&self) -> Result<(), CommitError> {
        self.file.sync_all().map_err(io_error(&self.place))
    }

    /// Gives it its name, in place of an earlier one. The directory is not synced: its caller does that when all files
    /// are in it.
    pub fn rename(self) -> Result<(), CommitError> {
        self.sync()?;
        self.rename_unsynced()
    }

    /// The same, for who does not need it after a crash of the machine.
    pub fn rename_unsynced(mut self) -> Result<(), CommitError> {
        fs::rename(&self.partial, &self.place).map_err(io_error(&self.place))?;
        self.is_placed = true;
        Ok(())
    }

    /// Gives it its name, in place of an earlier one, for good.
    pub fn commit(self) -> Result<(), CommitError> {
        let parent = parent_of(&self.place).to_owned();
        self.rename()?;
        sync(&parent)
    }
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if !self.is_placed {
            // What cannot be removed now is what a dead writer leaves.
            let _ = fs::remove_file(&self.partial);
        }
    }
}

/// Removes what dead writers of the file at `place` left. It looks at all that is in the directory.
pub fn remove_dead(place: &Path) -> Result<(), CommitError> {
    let parent = parent_of(place);
    let mut prefix = place.file_name().unwrap_or(OsStr::new("")).to_owned();
    prefix.push(".partial-");
    for entry in fs::read_dir(parent).map_err(io_error(parent))? {
        let entry = entry.map_err(io_error(parent))?;
        let name = entry.file_name();
        if !name
            .as_encoded_bytes()
            .starts_with(prefix.as_encoded_bytes())
        {
            continue;
        }
        let path = entry.path();
        let is_dead = |file: &File| {
            let lock = FlockOperation::NonBlockingLockExclusive;
            flock(file, lock).is_ok() && is_named(file, &path)
        };
        // Removed while it is locked: a writer that is only just beginning sees that it is gone. What cannot be removed
        // is in nobody's way.
        if let Ok(file) = File::open(&path)
            && is_dead(&file)
        {
            let _ = fs::remove_file(&path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_whole_or_the_earlier_one() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("file");
        let mut one = NewFile::create(&place).unwrap();
        one.write_all(b"one").unwrap();
        assert!(!place.exists());
        one.commit().unwrap();
        let mut two = NewFile::create(&place).unwrap();
        two.write_all(b"tw").unwrap();
        drop(two);
        assert_eq!(fs::read(&place).unwrap(), b"one");
        fs::write(
            directory.path().join("file.partial-1-7"),
            "left by the dead",
        )
        .unwrap();
        remove_dead(&place).unwrap();
        let mut three = NewFile::create(&place).unwrap();
        let four = NewFile::create(&place).unwrap();
        remove_dead(&place).unwrap();
        three.write_all(b"three").unwrap();
        three.rename().unwrap();
        drop(four);
        assert_eq!(fs::read(&place).unwrap(), b"three");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }
}
