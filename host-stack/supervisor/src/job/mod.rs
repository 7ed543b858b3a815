//! Jobs: trees of processes that are checkpointed at the same moment, on however many machines, and restarted together.
//!
//! ```text
//! JOB/job.json, token, coordinator.json, members.json, lock     who belongs to it, where its coordinator is (coord)
//! JOB/how.json                                                  how it is checkpointed
//! JOB/coordinator.log                                           what that says, if it was started by the first launch
//! JOB/members/NAME/control                                      a tree's supervisor, for those of its machine
//! JOB/checkpoints/0007/                                         a complete checkpoint: an image of each member
//! ```
//! A checkpoint, as each supervisor does it (`member.rs`); what all of them do, the coordinator says:
//!
//! ```text
//! phase    tree        supervisor
//! Look     runs        refuses what it can see now, processes outside too; in the background, copies memory,
//!                      and what was written to meanwhile when all have done so
//! Stop     stopped     described (sockets of connections to others as far as this end knows them)
//! Drain                finds the other ends on the board, and what is on its way
//! Freeze               memory goes into buffers, and on to the disk
//! Resume   runs on     what was taken out of connections is given back
//! Write                the image is on the disk
//! COMMIT               the coordinator checks the images and renames the directory
//! ```
//! With `--kill`, trees stand still until the commit, and end then. A round that fails is undone: trees run on.
//!
//! Machines that a job runs on share its directory.

mod coordinator;
mod due;
mod how;
mod order;

use std::{
    io,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use snaprig_ckpt_image::store::Store;
use snaprig_coord::{
    driver::{Control, Locator, Member},
    job::JobDir,
    message::is_name,
};
use snaprig_peers::Address;

pub use self::{
    coordinator::{coordinate, ensure},
    how::{Note, Report, Settings},
    order::{
        JobDump, JobDumped, JobMember, JobStatus, Moved, conduct, dump_job, forget, job_status,
        move_member,
    },
};
use snaprig_resources::error::{Error, Result};
use snaprig_resources::event::Reporter;

/// How long a coordinator may take to answer.
const JOINING: Duration = Duration::from_secs(10);
/// How long who makes a job's directory may take.
const MAKING: Duration = Duration::from_secs(2);

/// A job on this machine.
#[derive(Clone, Debug)]
pub struct Job {
    directory: JobDir,
    /// Who is told what happens.
    pub reporter: Reporter,
}

impl Job {
    /// The job in this directory.
    pub fn open(directory: &Path) -> Result<Self> {
        let directory = std::path::absolute(directory)
            .map_err(|source| Error::io(directory.display().to_string(), source))?;
        let directory = JobDir::open(&directory)?;
        Ok(Self {
            directory,
            reporter: Reporter::default(),
        })
    }

    /// The same, with somebody who is told what happens.
    pub fn told_to(self, reporter: &Reporter) -> Self {
        Self {
            reporter: reporter.clone(),
            ..self
        }
    }

    /// The same; it is made if it is not there.
    pub fn open_or_create(directory: &Path) -> Result<Self> {
        let name = directory.file_name().and_then(|name| name.to_str());
        let name = name.filter(|name| is_name(name)).unwrap_or("job");
        let begun = Instant::now();
        loop {
            let failed = match Self::open(directory) {
                Ok(job) => return Ok(job),
                Err(_) if JobDir::create(directory, name).is_ok() => continue,
                Err(failed) => failed,
            };
            // Somebody else is making it, or nobody can.
            if begun.elapsed() > MAKING {
                return Err(failed);
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Its checkpoints.
    pub fn store(&self) -> Result<Store> {
        Ok(Store::open(self.directory.path("checkpoints"))?)
    }

    /// Members of its newest checkpoint; none: there is no checkpoint.
    pub fn last_members(&self) -> Result<Vec<String>> {
        let store = self.store()?;
        let Some(newest) = store.rounds()?.pop() else {
            return Ok(Vec::new());
        };
        let checkpoint = store.checkpoint(newest)?;
        let members = checkpoint.manifest().members.iter();
        Ok(members.map(|member| member.name.clone()).collect())
    }

    /// What the supervisor of a member has.
    pub fn of_member(&self, name: &str) -> PathBuf {
        self.directory.path("members").join(name)
    }

    /// Joins as a member.
    pub fn join(&self, name: &str) -> Result<Member> {
        let (job, token) = (self.directory.name(), self.directory.token()?);
        let locator = Locator::Job(self.directory.clone());
        Ok(Member::connect(locator, job, token, name, JOINING)?)
    }

    /// Comes as one to whom a member's tree is to move.
    pub fn inherit(&self, name: &str) -> Result<Member> {
        let (job, token) = (self.directory.name(), self.directory.token()?);
        let locator = Locator::Job(self.directory.clone());
        Ok(Member::inherit(locator, job, token, name, JOINING)?)
    }

    /// Connects to its coordinator, as one who orders and asks.
    pub fn control(&self) -> Result<Control> {
        let (job, token) = (self.directory.name(), self.directory.token()?);
        // Said before it is tried: where it is not known, there is none.
        self.directory.address()?;
        let locator = Locator::Job(self.directory.clone());
        Ok(Control::connect(locator, job, token)?)
    }

    /// Where a coordinator listens that is not told otherwise: where the last one did.
    fn address(&self) -> Address {
        let here = || Address::Unix(self.directory.path("coordinator.sock"));
        self.directory.address().unwrap_or_else(|_| here())
    }
}

/// A name for a member, from that of its program.
pub fn name_of(program: &Path) -> String {
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let name: String = name.chars().filter(|c| plain(*c)).take(80).collect();
    let name = name.trim_start_matches('.');
    format!(
        "{}-{}",
        if name.is_empty() { "tree" } else { name },
        std::process::id()
    )
}

fn none(what: impl Into<String>) -> Error {
    Error::Job { what: what.into() }
}

fn input(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what.to_owned())
}
