//! Whether a move is to be: a file that says so, for all members, for good.
//!
//! ```text
//! coordinator:           all are connected  --> "for it", if nobody was against it
//! a member in doubt:     it has lost the coordinator when that may have been --> "against it", if it is not decided
//! ```
//! Whoever is first has decided. The file gets its name when its contents are on the disk (link(2), which replaces
//! nothing), and so does the name (fsync(2) of its directory) before anybody acts on it. It stays: somebody may be in doubt
//! for long. Old ones are removed when another move begins.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use snaprig_ckpt_image::store::Store;
use snaprig_resources::error::{Error, Result};

const FOR: &[u8] = b"for it\n";
const AGAINST: &[u8] = b"against it\n";
/// A directory beside checkpoints.
const DIRECTORY: &str = "moves";
/// Nobody is in doubt for so long.
const OLD: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// A decision, by the name that its move's order has for it.
pub struct Decision(PathBuf);

impl Decision {
    /// The decision of this name in a job whose checkpoints are there.
    pub fn of(store: &Store, name: &str) -> Result<Self> {
        let is_plain = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !is_plain {
            return Err(super::nonsense("a decision without a name"));
        }
        Ok(Self(store.dir().join(DIRECTORY).join(name)))
    }

    /// Decides for it; an error: somebody was against it, or it may or may not be decided.
    pub fn decide(&self) -> Result<()> {
        match self.settle(FOR)? {
            true => Ok(()),
            false => Err(Error::Job {
                what: "a member has given the move up".into(),
            }),
        }
    }

    /// Whether it is decided: if it is not, it never will be.
    pub fn is_for_it(&self) -> Result<bool> {
        self.settle(AGAINST)
    }

    fn settle(&self, ours: &[u8]) -> Result<bool> {
        let settled = || -> io::Result<bool> {
            let directory = self.0.parent().unwrap_or(Path::new("."));
            fs::create_dir_all(directory)?;
            let mut new = tempfile::NamedTempFile::new_in(directory)?;
            new.write_all(ours)?;
            new.as_file().sync_all()?;
            match fs::hard_link(new.path(), &self.0) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
            File::open(directory)?.sync_all()?;
            Ok(fs::read(&self.0)? == FOR)
        };
        settled().map_err(|source| Error::io(self.0.display().to_string(), source))
    }
}

/// Removes decisions that nobody asks for any more.
pub fn sweep(store: &Store) {
    let entries = fs::read_dir(store.dir().join(DIRECTORY));
    for entry in entries.into_iter().flatten().flatten() {
        let changed = entry.metadata().and_then(|metadata| metadata.modified());
        let age = changed.map(|changed| SystemTime::now().duration_since(changed));
        if matches!(age, Ok(Ok(age)) if age > OLD) {
            // What stays takes a few bytes.
            let _ = fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_is_first_has_decided_for_good() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path()).unwrap();
        let one = Decision::of(&store, "0a").unwrap();
        one.decide().unwrap();
        assert!(one.is_for_it().unwrap());
        one.decide().unwrap();
        let other = Decision::of(&store, "0b").unwrap();
        assert!(!other.is_for_it().unwrap());
        assert!(other.decide().is_err());
        sweep(&store);
        assert!(one.is_for_it().unwrap() && store.rounds().unwrap().is_empty());
        assert!(Decision::of(&store, "../x").is_err() && Decision::of(&store, "").is_err());
    }
}
