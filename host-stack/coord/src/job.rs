//! A job's directory, for all who take part in it on this machine.
//!
//! | file | what it is |
//! |---|---|
//! | `job.json` | the job's name |
//! | `token` | what all of the job know ([`snaprig_peers::token`]) |
//! | `lock` | held by the coordinator: there is one at most |
//! | `coordinator.json` | where it is, and its process |
//! | `members.json` | who belongs to the job: whoever takes over as coordinator starts with them |
//!
//! The directory is its owner's alone. A member on another machine needs a directory like it, with the
//! same name and token and the address of the coordinator ([`JobDir::write_address`]).

use std::{
    fs::{self, DirBuilder, File},
    io::{self, Write},
    os::{fd::OwnedFd, unix::fs::DirBuilderExt},
    path::{Path, PathBuf},
};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use snaprig_peers::{Address, Token, TokenError};

use crate::message::is_name;

/// Version of the files; others are refused.
const VERSION: u32 = 1;
/// More bytes than this are no such file.
const BYTES_MAX: u64 = 4 << 20;

/// Why a job's directory is no good.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// A file of it cannot be used.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file of it is not what it should be.
    #[error("{}: {why}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// The token.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// That is no name.
    #[error("a job cannot be named {0:?}")]
    Name(String),
    /// There is a coordinator already.
    #[error("{}: the job has a coordinator already: process {pid}", path.display())]
    Claimed {
        /// The lock.
        path: PathBuf,
        /// Its process, as far as is known; 0 if it is not.
        pid: u32,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct JobFile {
    version: u32,
    name: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CoordinatorFile {
    version: u32,
    address: Address,
    pid: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct MembersFile {
    version: u32,
    members: Vec<String>,
}

/// A job's directory.
#[derive(Clone, Debug)]
pub struct JobDir {
    directory: PathBuf,
    name: String,
}

/// Makes a file new at once, or not at all: it has its name when all of it is on the disk, and for good when this
/// returns. After an error, either may be found.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let parent = path.parent().unwrap_or(Path::new("."));
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    let mut file = File::create(&temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    File::open(parent)?.sync_all()
}

/// A file that is not longer than it may be.
pub(crate) fn read_short(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    use io::Read;
    let mut bytes = Vec::new();
    File::open(path)?.take(most + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > most {
        true => Err(io::ErrorKind::FileTooLarge.into()),
        false => Ok(bytes),
    }
}

impl JobDir {
    /// A new job's, with a new token. The directory may be there, if it is empty.
    pub fn create(directory: &Path, name: &str) -> Result<Self, JobError> {
        if !is_name(name) {
            return Err(JobError::Name(name.into()));
        }
        let job = Self {
            directory: directory.into(),
            name: name.into(),
        };
        let made = DirBuilder::new().mode(0o700).create(directory);
        match made {
            Err(source) if source.kind() != io::ErrorKind::AlreadyExists => {
                let path = directory.into();
                return Err(JobError::Io { path, source });
            }
            _ => {}
        }
        // Fails if there is one: it is that of a job.
        Token::create(&job.path("token"))?;
        let file = JobFile {
            version: VERSION,
            name: name.into(),
        };
        job.write_file("job.json", &file)?;
        Ok(job)
    }

    /// A job's that is there.
    pub fn open(directory: &Path) -> Result<Self, JobError> {
        let mut job = Self {
            directory: directory.into(),
            name: String::new(),
        };
        let file: JobFile = job.read_file("job.json")?;
        job.check_version("job.json", file.version)?;
        if !is_name(&file.name) {
            return Err(JobError::Name(file.name));
        }
        job.name = file.name;
        Ok(job)
    }

    /// The job's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where it is.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Its token.
    pub fn token(&self) -> Result<Token, JobError> {
        Ok(Token::read(&self.path("token"))?)
    }

    /// Where its coordinator is, or was.
    pub fn address(&self) -> Result<Address, JobError> {
        let file: CoordinatorFile = self.read_file("coordinator.json")?;
        self.check_version("coordinator.json", file.version)?;
        Ok(file.address)
    }

    /// Says where its coordinator is, which has this process id.
    pub fn write_address(&self, address: &Address, pid: u32) -> Result<(), JobError> {
        let file = CoordinatorFile {
            version: VERSION,
            address: address.clone(),
            pid,
        };
        self.write_file("coordinator.json", &file)
    }

    /// Its members, as its last coordinator has left them; none if there was none.
    pub fn members(&self) -> Result<Vec<String>, JobError> {
        if !self.path("members.json").exists() {
            return Ok(Vec::new());
        }
        let file: MembersFile = self.read_file("members.json")?;
        self.check_version("members.json", file.version)?;
        Ok(file.members)
    }

    /// Keeps who its members are.
    pub fn write_members(&self, members: &[String]) -> Result<(), JobError> {
        let file = MembersFile {
            version: VERSION,
            members: members.to_vec(),
        };
        self.write_file("members.json", &file)
    }

    /// Becomes the job's coordinator: until the lock is dropped, or its process ends, nobody else
    /// does. Of a coordinator that is stopped, the lock stays.
    pub fn claim(&self) -> Result<OwnedFd, JobError> {
        let path = self.path("lock");
        let mut options = File::options();
        let file = options.write(true).create(true).truncate(false).open(&path);
        let io = |source| JobError::Io {
            path: path.clone(),
            source,
        };
        let file = file.map_err(io)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(file.into()),
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let known: Result<CoordinatorFile, _> = self.read_file("coordinator.json");
                let pid = known.map_or(0, |file| file.pid);
                Err(JobError::Claimed {
                    path: path.clone(),
                    pid,
                })
            }
            Err(error) => Err(io(error.into())),
        }
    }

    /// A path in it: of the coordinator's socket, for one.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn check_version(&self, name: &str, found: u32) -> Result<(), JobError> {
        match found {
            VERSION => Ok(()),
            _ => Err(JobError::Malformed {
                path: self.path(name),
                why: format!("version {found}; this snaprig reads version {VERSION}"),
            }),
        }
    }

    /// What is in a file of it, as JSON.
    pub fn read_file<T: DeserializeOwned>(&self, name: &str) -> Result<T, JobError> {
        let path = self.path(name);
        let bytes = read_short(&path, BYTES_MAX);
        let bytes = bytes.map_err(|source| JobError::Io {
            path: path.clone(),
            source,
        })?;
        serde_json::from_slice(&bytes).map_err(|error| JobError::Malformed {
            path,
            why: error.to_string(),
        })
    }

    /// Puts that into a file of it, at once.
    pub fn write_file<T: Serialize>(&self, name: &str, file: &T) -> Result<(), JobError> {
        let path = self.path(name);
        let malformed = |error: serde_json::Error| JobError::Malformed {
            path: path.clone(),
            why: error.to_string(),
        };
        let bytes = serde_json::to_vec_pretty(file).map_err(malformed)?;
        replace(&path, &bytes).map_err(|source| JobError::Io { path, source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_made_once_and_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("job");
        JobDir::create(&path, "lulesh").unwrap();
        assert!(JobDir::create(&path, "lulesh").is_err());
        assert!(matches!(
            JobDir::create(&path, "a/b"),
            Err(JobError::Name(_))
        ));
        let job = JobDir::open(&path).unwrap();
        assert_eq!(job.name(), "lulesh");
        job.token().unwrap();
        assert_eq!(job.members().unwrap(), Vec::<String>::new());
        job.write_members(&["0".into(), "1".into()]).unwrap();
        assert_eq!(job.members().unwrap(), ["0", "1"]);
        assert!(job.address().is_err());
        let address = Address::Tcp("localhost:7000".into());
        job.write_address(&address, 7).unwrap();
        assert_eq!(job.address().unwrap(), address);
    }

    #[test]
    fn there_is_one_coordinator_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let job = JobDir::create(&dir.path().join("job"), "job").unwrap();
        let address = Address::Tcp("localhost:7000".into());
        let lock = job.claim().unwrap();
        job.write_address(&address, 7).unwrap();
        assert!(matches!(job.claim(), Err(JobError::Claimed { pid: 7, .. })));
        drop(lock);
        job.claim().unwrap();
    }

    #[test]
    fn files_of_another_version_and_damaged_ones_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("job");
        JobDir::create(&path, "job").unwrap();
        for text in ["", "{}", r#"{"version": 2, "name": "job"}"#] {
            fs::write(path.join("job.json"), text).unwrap();
            let error = JobDir::open(&path).unwrap_err().to_string();
            assert!(error.contains("job.json: "), "{error}");
        }
    }
}
