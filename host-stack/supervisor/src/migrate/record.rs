//! What is written down in a directory of checkpoints: where its tree went, for the time after its supervisor has died;
//! which target the directory is; and which migrations have come to it.
//!
//! ```text
//! DIR/migration           the source's record, a sealed file: Going or Gone, where to, and after which checkpoint
//! DIR/site                who answers for the migrations that have come here
//! DIR/0003/manifest.json  names those whose sources may still ask
//! ```
//! What must stay true: what is written here is on the disk before anything is done because of it, and so is what is
//! found here.

use std::{
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use snaprig_ckpt_image::store::{Arrival, Store, sealed};
use snaprig_coord::{
    job::replace,
    migration::{Id, Record, SiteId},
};
use snaprig_peers::token::random;
use snaprig_resources::error::{Error, Result};

use super::Target;

/// Version of these files.
const VERSION: u32 = 1;
/// Most bytes of one of them.
const BYTES_MAX: u64 = 64 << 10;
const MIGRATION: &str = "migration";
const SITE: &str = "site";

/// Where the tree of a directory went, or may have gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Departure {
    /// How far it is.
    pub record: Record,
    /// Where to.
    pub to: Target,
    /// The newest checkpoint at that time: later ones are of another tree, or of this one when it had come back.
    pub last: Option<u64>,
    /// Where an earlier tree of the directory is gone to.
    pub before: Option<Box<Departure>>,
}

impl Departure {
    /// All that is of interest when another tree leaves.
    pub fn without_earlier(self) -> Self {
        Self {
            before: None,
            ..self
        }
    }

    /// Whether a checkpoint is of the tree that went.
    pub fn is_of(&self, round: u64) -> bool {
        Some(round) <= self.last
    }

    /// The error of who wants what is gone.
    pub fn refusal(&self, directory: &Path) -> Error {
        Error::Refusal {
            what: format!(
                "the program has migrated to {}, and goes on there; what is here is from before. To run that \
                 nevertheless, which makes two of it, remove {}",
                self.to,
                path(directory).display()
            ),
        }
    }
}

/// The file of a directory's departure.
pub fn path(directory: &Path) -> PathBuf {
    directory.join(MIGRATION)
}

/// What a directory says of its tree's departure.
pub fn departure(directory: &Path) -> Result<Option<Departure>> {
    let found = read(&path(directory))?;
    if found.is_some() {
        settle(directory, MIGRATION)?;
    }
    Ok(found)
}

/// The departure that a directory tells of; an error if it is not known whether its tree is gone.
pub fn settled_departure(directory: &Path) -> Result<Option<Departure>> {
    match departure(directory)? {
        Some(Departure {
            record: Record::Going(..),
            to,
            ..
        }) => Err(Error::Refusal {
            what: format!(
                "a program was on its way from here to {to} when its supervisor died; `snaprig ckpt restart {}` finds out \
                 where it is",
                directory.display()
            ),
        }),
        other => Ok(other),
    }
}

/// Writes a departure down, or takes it away.
pub fn set_departure(directory: &Path, departure: Option<&Departure>) -> io::Result<()> {
    match departure {
        Some(departure) => write(&path(directory), departure),
        None => {
            fs::remove_file(path(directory))?;
            File::open(directory)?.sync_all()
        }
    }
}

/// Which target a directory is, from the first time that anybody wants to know.
pub fn site(directory: &Path) -> Result<SiteId> {
    let path = directory.join(SITE);
    if let Some(site) = read(&path)? {
        settle(directory, SITE)?;
        return Ok(site);
    }
    let new = random().map(SiteId);
    let written = new.and_then(|site| write(&path, &site).map(|()| site));
    written.map_err(|source| Error::io(path.display().to_string(), source))
}

/// Migrations that have come to a directory, and whose sources may still ask.
pub fn arrivals(store: &Store) -> Result<Vec<Arrival>> {
    let mut arrivals: Vec<Arrival> = Vec::new();
    for round in store.rounds()? {
        for arrival in store.manifest(round)?.arrivals {
            if arrivals.iter().all(|it| it.migration != arrival.migration) {
                arrivals.push(arrival);
            }
        }
    }
    Ok(arrivals)
}

/// A migration that comes to a target, as a manifest has it.
pub fn arrival(Id(migration): Id, at: &Target) -> Arrival {
    Arrival {
        migration,
        address: at.address().to_string(),
        token: at.token_file().map(Into::into),
    }
}

fn write<M: Serialize>(path: &Path, manifest: &M) -> io::Result<()> {
    let text = sealed::to_text(VERSION, manifest)?;
    replace(path, &text)
}

fn read<M: Serialize + DeserializeOwned>(path: &Path) -> Result<Option<M>> {
    let failed = |source| Error::io(path.display().to_string(), source);
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(failed)?,
    };
    let mut text = Vec::new();
    file.take(BYTES_MAX)
        .read_to_end(&mut text)
        .map_err(failed)?;
    let read = sealed::of_text(&text, VERSION).map_err(|error| Error::File {
        path: path.to_owned(),
        what: error.to_string(),
    });
    read.map(Some)
}

/// What was found is to stay there, also if the machine crashes.
fn settle(directory: &Path, name: &str) -> Result<()> {
    let synced = File::open(directory.join(name)).and_then(|file| {
        file.sync_all()?;
        File::open(directory)?.sync_all()
    });
    synced.map_err(|source| Error::io(directory.join(name).display().to_string(), source))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_departure_is_read_as_it_was_written_or_refused() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        assert_eq!(departure(directory).unwrap(), None);
        let gone = Departure {
            record: Record::Gone(Id([1; 16])),
            to: Target::tcp("host:7000", "/token"),
            last: Some(3),
            before: None,
        };
        set_departure(directory, Some(&gone)).unwrap();
        assert_eq!(settled_departure(directory).unwrap().as_ref(), Some(&gone));
        assert!(gone.is_of(3) && !gone.is_of(4));
        let going = Departure {
            record: Record::Going(Id([1; 16]), SiteId([2; 16])),
            last: None,
            ..gone
        };
        set_departure(directory, Some(&going)).unwrap();
        assert!(settled_departure(directory).is_err() && !going.is_of(0));
        let text = fs::read_to_string(path(directory)).unwrap();
        fs::write(path(directory), text.replace("7000", "7001")).unwrap();
        assert!(matches!(departure(directory), Err(Error::File { .. })));
        set_departure(directory, None).unwrap();
        assert_eq!(departure(directory).unwrap(), None);
    }

    #[test]
    fn a_directory_is_the_same_target_each_time() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let first = site(one.path()).unwrap();
        assert_eq!(site(one.path()).unwrap(), first);
        assert_ne!(site(other.path()).unwrap(), first);
    }
}
