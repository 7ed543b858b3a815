//! Coordinator and agents as processes of their own, ended by SIGKILL at every step: the last complete
//! checkpoint is whole, a half one is none, everybody else runs on, and the next checkpoint is complete.

mod common;

use std::{
    env, fs,
    io::{BufRead, BufReader, Lines, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::Arc,
    thread,
    time::Duration,
};

use common::{Disk, Manifest};
use snaprig_coord::{
    driver::{Control, Coordinator, Keeper},
    member::Event,
    message::{Outcome, Summary},
    phase::{Kind, Order, Phase},
};
use xxhash_rust::xxh3::xxh3_64;

const ROLE: &str = "COORD_TEST_ROLE";
const DIRECTORY: &str = "COORD_TEST_DIRECTORY";
/// Of an agent: the phase in which it waits for a line. Of a coordinator: where it kills itself.
const AT: &str = "COORD_TEST_AT";

/// Not a test by itself: what this executable is when a test below starts it.
#[test]
fn role() {
    let Ok(role) = env::var(ROLE) else {
        return;
    };
    let directory = PathBuf::from(env::var_os(DIRECTORY).expect("a directory"));
    let at = env::var(AT).unwrap_or_default();
    match role.as_str() {
        "coordinator" => coordinator(&directory, at),
        name => agent(&directory, name, &at),
    }
    std::process::exit(0);
}

fn kill_self() -> ! {
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    unreachable!("SIGKILL cannot be ignored");
}

/// Kills itself before or after a manifest gets its name.
struct Suicidal {
    disk: Disk,
    at: String,
}

impl Keeper for Suicidal {
    fn members(&self, members: &[String]) -> std::io::Result<()> {
        self.disk.members(members)
    }

    fn commit(
        &self,
        round: u64,
        order: &Order,
        reports: &std::collections::BTreeMap<String, String>,
    ) -> Result<(), String> {
        if self.at == "before" {
            kill_self();
        }
        self.disk.commit(round, order, reports)?;
        if self.at == "after" {
            kill_self();
        }
        Ok(())
    }
}

fn coordinator(directory: &Path, at: String) {
    let disk = Disk::open(directory);
    let _lock = disk.job.claim().expect("there is no other coordinator");
    let listener = disk.listen(&disk.socket());
    let config = disk.config();
    let keeper = Arc::new(Suicidal { disk, at });
    let _coordinator = Coordinator::start(listener, config, keeper).expect("a coordinator");
    println!("\nready");
    // Until the test ends, however it does.
    let _ = std::io::stdin().lines().count();
}

fn agent(directory: &Path, name: &str, hold: &str) {
    let disk = Disk::open(directory);
    let member = disk.join(name);
    println!("\nready");
    let image = |round| disk.checkpoints.round(round).join(format!("{name}.image"));
    thread::spawn({
        let hold = hold.to_owned();
        move || {
            if hold.is_empty() {
                let _ = std::io::stdin().lines().count();
                std::process::exit(0);
            }
        }
    });
    loop {
        match common::next_of(&member, Duration::from_secs(3600)) {
            Event::Begin { round, phase, .. } => {
                println!("\n{}", phase.name());
                if phase.name() == hold && std::io::stdin().lines().next().is_none() {
                    return;
                }
                if phase == Phase::Write {
                    let path = image(round);
                    fs::create_dir_all(disk.checkpoints.round(round)).expect("a directory");
                    let bytes = name.repeat(1000);
                    fs::write(&path, &bytes).expect("an image");
                    let sum = format!("{:016x}", xxh3_64(bytes.as_bytes()));
                    member.done(round, phase, Ok(sum));
                } else {
                    member.done(round, phase, Ok(String::new()));
                }
            }
            Event::Undo {
                round, in_doubt, ..
            } => {
                if !in_doubt {
                    let _ = fs::remove_file(image(round));
                }
                println!("\n{}", if in_doubt { "doubt" } else { "undo" });
                member.done(round, Phase::Undo, Ok(String::new()));
            }
            Event::Finished { .. } => println!("\nfinished"),
            other => panic!("{other:?}"),
        }
    }
}

/// A process of a role; it ends with the test.
struct Process {
    child: Child,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Process {
    fn start(directory: &Path, role: &str, at: &str) -> Self {
        let mut command = Command::new(env::current_exe().expect("an executable"));
        command.args(["--exact", "role", "--nocapture", "--test-threads=1"]);
        command
            .envs([(ROLE, role), (AT, at)])
            .env(DIRECTORY, directory);
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("a process");
        let stdin = child.stdin.take().expect("its input");
        let lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        let mut process = Self {
            child,
            stdin,
            lines,
        };
        process.until("ready");
        process
    }

    /// Reads what it says, until it says this.
    fn until(&mut self, what: &str) {
        self.until_any(&[what]);
    }

    fn until_any(&mut self, what: &[&str]) {
        let mut lines = self.lines.by_ref().map(|line| line.expect("a line"));
        let found = lines.any(|line| what.contains(&line.as_str()));
        assert!(found, "it ended without saying any of {what:?}");
    }

    fn go(&mut self) {
        self.stdin.write_all(b"go\n").expect("it reads");
    }

    fn kill(&mut self) {
        self.child.kill().expect("it is there");
        self.child.wait().expect("it ends");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A job of three agents; the first waits in a phase.
struct Job {
    directory: tempfile::TempDir,
    disk: Disk,
    coordinator: Process,
    agents: Vec<Process>,
}

impl Job {
    fn start(hold: &str, coordinator_at: &str) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let disk = Disk::create(directory.path());
        let coordinator = Process::start(directory.path(), "coordinator", coordinator_at);
        let agents = ["0", "1", "2"].into_iter().zip([hold, "", ""]);
        let agents = agents.map(|(name, hold)| Process::start(directory.path(), name, hold));
        Self {
            agents: agents.collect(),
            coordinator,
            disk,
            directory,
        }
    }

    fn next_coordinator(&mut self) {
        self.coordinator.kill();
        self.coordinator = Process::start(self.directory.path(), "coordinator", "");
    }

    fn checkpoint(&self) -> thread::JoinHandle<Option<Summary>> {
        let control = self.disk.control();
        let order = move || control.order(Order::new(Kind::Checkpoint)).ok();
        thread::spawn(order)
    }

    /// The last checkpoint, every image of which is what its member wrote.
    fn last(&self) -> Option<Manifest> {
        let last = self.disk.checkpoints.last()?;
        let round = self.disk.checkpoints.round(last.round);
        for (name, sum) in &last.members {
            let image = fs::read(round.join(format!("{name}.image"))).expect("an image");
            assert_eq!(format!("{:016x}", xxh3_64(&image)), *sum);
        }
        Some(last)
    }

    fn control(&self) -> Control {
        self.disk.control()
    }

    /// A checkpoint of so many is complete, and the last one.
    fn is_complete(&self, summary: Option<Summary>, members: usize) {
        let summary = summary.expect("an answer");
        assert_eq!(summary.outcome, Outcome::Complete);
        let last = self.last().expect("a checkpoint");
        assert_eq!((last.round, last.members.len()), (summary.round, members));
    }
}

#[test]
fn an_agent_dies_in_each_phase() {
    for phase in ["look", "stop", "drain", "write", "resume"] {
        let mut job = Job::start(phase, "");
        let order = job.checkpoint();
        job.agents[0].until(phase);
        job.agents[0].kill();
        let summary = order.join().expect("a thread").expect("an answer");
        if phase == "resume" {
            // It was complete already.
            assert_eq!(summary.lost.len(), 1, "{summary:?}");
            job.is_complete(Some(summary), 3);
        } else {
            job.agents[1..]
                .iter_mut()
                .for_each(|agent| agent.until("undo"));
            let Outcome::Undone { reason } = summary.outcome else {
                panic!("{phase}: it is complete");
            };
            assert!(
                reason.contains(&format!("0 is gone in {phase}")),
                "{reason}"
            );
            assert_eq!(job.last(), None);
        }
        job.agents[1..]
            .iter_mut()
            .for_each(|agent| agent.until("finished"));
        job.control().forget("0").expect("it is missing");
        let summary = job.checkpoint().join().expect("a thread");
        job.is_complete(summary, 2);
    }
}

#[test]
fn the_coordinator_dies_in_each_phase() {
    for phase in ["look", "stop", "drain", "write", "resume"] {
        let mut job = Job::start(phase, "");
        let order = job.checkpoint();
        job.agents[0].until(phase);
        job.coordinator.kill();
        assert_eq!(order.join().expect("a thread"), None);
        job.agents[0].go();
        let is_decided = phase == "resume";
        if !is_decided {
            // Whether it has heard of the death before it went on, nobody knows.
            job.agents[0].until_any(&["undo", "doubt"]);
        }
        assert_eq!(job.last().is_some(), is_decided);
        job.next_coordinator();
        let order = job.checkpoint();
        job.agents[0].until(phase);
        job.agents[0].go();
        let summary = order.join().expect("a thread");
        job.is_complete(summary, 3);
    }
}

#[test]
fn the_coordinator_dies_at_the_commit() {
    for (at, is_there) in [("before", false), ("after", true)] {
        let mut job = Job::start("", at);
        assert_eq!(job.checkpoint().join().expect("a thread"), None);
        job.agents.iter_mut().for_each(|agent| agent.until("doubt"));
        // All have written; the manifest alone says whether that is a checkpoint.
        assert_eq!(job.last().is_some(), is_there);
        job.next_coordinator();
        let summary = job.checkpoint().join().expect("a thread");
        job.is_complete(summary, 3);
    }
}

#[test]
fn there_is_one_coordinator_and_a_dead_one_leaves_the_job_to_the_next() {
    let mut job = Job::start("", "");
    assert!(job.disk.job.claim().is_err());
    job.coordinator.kill();
    drop(job.disk.job.claim().expect("the lock went with it"));
    job.next_coordinator();
    job.agents.remove(2).kill();
    let control = job.control();
    while control
        .status()
        .expect("a status")
        .members
        .iter()
        .all(|one| one.missing.is_none())
    {}
    control.forget("2").expect("it is missing");
    let summary = job.checkpoint().join().expect("a thread");
    job.is_complete(summary, 2);
}
