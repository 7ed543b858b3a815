//! A job in a temporary directory, and agents that do nothing but take part.

#![allow(dead_code, reason = "not every test uses all of it")]

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use snaprig_coord::{
    coordinator::Config,
    driver::{Control, Coordinator, Keeper, Locator, Member},
    job::JobDir,
    member::Event,
    phase::{Order, Phase},
};
use snaprig_peers::{Address, Listener, Token};

/// Longer than anything takes here.
pub const LONG: Duration = Duration::from_secs(60);

/// A checkpoint: its round, and by member what it said.
#[derive(Debug, PartialEq, Eq)]
pub struct Manifest {
    pub round: u64,
    pub members: BTreeMap<String, String>,
}

/// Checkpoints that are complete when a manifest has its name.
pub struct Checkpoints(PathBuf);

impl Checkpoints {
    /// Where members write.
    pub fn round(&self, round: u64) -> PathBuf {
        self.0.join(format!("{round:04}"))
    }

    fn rounds(&self) -> Vec<u64> {
        let entries = fs::read_dir(&self.0).expect("a directory");
        let names = entries.map(|entry| entry.expect("an entry").file_name());
        let mut rounds: Vec<u64> = names
            .map(|name| name.to_str().expect("a name").parse().expect("a number"))
            .collect();
        rounds.sort_unstable();
        rounds
    }

    fn commit(&self, round: u64, members: &BTreeMap<String, String>) -> io::Result<()> {
        fs::create_dir_all(self.round(round))?;
        let (new, path) = (
            self.round(round).join("new"),
            self.round(round).join("manifest"),
        );
        fs::write(&new, serde_json::to_vec(members)?)?;
        fs::rename(new, path)
    }

    /// Those that are complete.
    pub fn complete(&self) -> Vec<u64> {
        let is_complete = |round: &u64| self.round(*round).join("manifest").exists();
        self.rounds().into_iter().filter(is_complete).collect()
    }

    /// The last one that is.
    pub fn last(&self) -> Option<Manifest> {
        let read = |round| {
            let text = fs::read(self.round(round).join("manifest")).ok()?;
            let members = serde_json::from_slice(&text).expect("a manifest is whole");
            Some(Manifest { round, members })
        };
        self.rounds().into_iter().rev().find_map(read)
    }
}

/// A job's directory as a coordinator keeps it.
pub struct Disk {
    pub job: JobDir,
    pub checkpoints: Checkpoints,
}

impl Disk {
    pub fn create(directory: &Path) -> Self {
        let job = JobDir::create(&directory.join("job"), "job").expect("a job");
        Self::of(job)
    }

    pub fn open(directory: &Path) -> Self {
        Self::of(JobDir::open(&directory.join("job")).expect("a job"))
    }

    fn of(job: JobDir) -> Self {
        let checkpoints = Checkpoints(job.path("checkpoints"));
        fs::create_dir_all(&checkpoints.0).expect("a directory");
        Self { job, checkpoints }
    }

    pub fn token(&self) -> Token {
        self.job.token().expect("a token")
    }

    pub fn locator(&self) -> Locator {
        Locator::Job(self.job.clone())
    }

    pub fn config(&self) -> Config {
        Config {
            job: "job".into(),
            token: self.token(),
            members: self.job.members().expect("members"),
            first_round: self.checkpoints.rounds().last().map_or(1, |last| last + 1),
        }
    }

    /// Listens at this address, and says so.
    pub fn listen(&self, address: &Address) -> Listener {
        let listener = Listener::bind(address).expect("a listener");
        let address = listener.address().expect("an address");
        let written = self.job.write_address(&address, std::process::id());
        written.expect("an address is written");
        listener
    }

    /// A coordinator in this process.
    pub fn coordinate(self: &Arc<Self>, address: &Address) -> Coordinator {
        let listener = self.listen(address);
        Coordinator::start(listener, self.config(), self.clone()).expect("a coordinator")
    }

    pub fn socket(&self) -> Address {
        Address::Unix(self.job.path("socket"))
    }

    pub fn join(&self, name: &str) -> Member {
        Member::connect(self.locator(), "job", self.token(), name, LONG).expect("a member")
    }

    pub fn control(&self) -> Control {
        Control::connect(self.locator(), "job", self.token()).expect("a control")
    }
}

impl Keeper for Disk {
    fn members(&self, members: &[String]) -> io::Result<()> {
        self.job.write_members(members).map_err(io::Error::other)
    }

    fn commit(
        &self,
        round: u64,
        _: &Order,
        reports: &BTreeMap<String, String>,
    ) -> Result<(), String> {
        let committed = self.checkpoints.commit(round, reports);
        committed.map_err(|error| error.to_string())
    }
}

/// The next event that is not about the connection.
pub fn next(member: &Member) -> Event {
    next_of(member, LONG)
}

/// The same, within this time.
pub fn next_of(member: &Member, patience: Duration) -> Event {
    loop {
        match member.next_event(Some(patience)).expect("an event in time") {
            Event::Joined | Event::Apart { .. } => {}
            event => return event,
        }
    }
}

/// Takes part until a round ends; the phases that it was told of.
pub fn take_part(member: &Member) -> Vec<Phase> {
    let mut phases = Vec::new();
    loop {
        match next(member) {
            Event::Begin { round, phase, .. } => {
                phases.push(phase);
                member.done(round, phase, Ok("an image".into()));
            }
            Event::Undo {
                round, in_doubt, ..
            } => {
                assert!(!in_doubt);
                phases.push(Phase::Undo);
                member.done(round, Phase::Undo, Ok(String::new()));
            }
            Event::Finished { .. } => return phases,
            other => panic!("{other:?}"),
        }
    }
}
