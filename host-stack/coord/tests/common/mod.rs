//! A job in a temporary directory, and agents that do nothing but take part.

#![allow(dead_code, reason = "not every test uses all of it")]

use std::{collections::BTreeMap, io, path::Path, sync::Arc, time::Duration};

use snaprig_coord::{
    auth::Token,
    coordinator::Config,
    driver::{Address, Control, Coordinator, Keeper, Listener, Locator, Member},
    job::JobDir,
    manifest::{Checkpoints, Manifest},
    member::Event,
    phase::Phase,
};

/// Longer than anything takes here.
pub const LONG: Duration = Duration::from_secs(60);

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
        let checkpoints = Checkpoints::open(&job.path("checkpoints")).expect("checkpoints");
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
            first_round: self.checkpoints.next_round().expect("a number"),
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
        _: &[u8],
        reports: &BTreeMap<String, String>,
    ) -> Result<(), String> {
        let manifest = Manifest {
            job: "job".into(),
            round,
            members: reports.clone(),
        };
        let committed = self.checkpoints.commit(&manifest);
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
