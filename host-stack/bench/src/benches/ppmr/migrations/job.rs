//! An MPI job on nodes, of which all that one node has migrates.

use std::{
    cell::RefCell,
    ffi::OsString,
    fs,
    io::{BufRead, BufReader, Lines},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{
    Pid, Signal, kill_process, kill_process_group, set_parent_process_death_signal,
};
use serde::{Deserialize, Serialize};

use super::shared::Shared;
use crate::AnyError;

/// How long a job works before and between migrations: it uses its queue pairs, and its counts are not those of a moment before.
const WORKS: Duration = Duration::from_millis(300);
/// How long a job that is to end may take.
const ENDS_MAX: Duration = Duration::from_secs(20);
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// How long a step of a migration may take: a few GB go over a link of 1 Gbit/s.
const PATIENCE_S: &str = "300";
/// Over HCAs alone; a job that hangs ends; and ranks that wait let others run: there are more than processors.
const MPIRUN: &str = "--timeout 1200 --oversubscribe --mca pml ucx --mca osc ucx --mca mpi_yield_when_idle 1 -x UCX_TLS=rc,self";

/// The ways of `snaprig ppmr migrate`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Strategy {
    Ppmr,
    /// Most of the memory goes before the processes stand still.
    PreCopy,
    /// Most of it follows them.
    PostCopy,
    RdmaLocal,
    Local,
    Shared,
}

impl Strategy {
    pub fn name(self) -> &'static str {
        match self {
            Self::Ppmr => "ppmr",
            Self::PreCopy => "pre-copy",
            Self::PostCopy => "post-copy",
            Self::RdmaLocal => "rdma-local",
            Self::Local => "local",
            Self::Shared => "shared",
        }
    }

    fn words(self) -> &'static [&'static str] {
        match self {
            Self::Ppmr => &["ppmr"],
            Self::PreCopy => &["ppmr", "--pre-copy"],
            Self::PostCopy => &["ppmr", "--post-copy"],
            Self::RdmaLocal => &["rdma-local"],
            Self::Local => &["local"],
            Self::Shared => &["shared"],
        }
    }
}

/// What `ppmr migrate --json` says.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Migrated {
    #[serde(skip_serializing)]
    to: String,
    /// The way, and the file system by which it leads.
    pub strategy: String,
    pub blackout_ms: f64,
    pub took_ms: f64,
    members: Vec<Member>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
struct Member {
    steps_ms: Vec<(String, f64)>,
}

impl Migrated {
    /// How long a step took, of all members together.
    pub fn step_ms(&self, step: &str) -> f64 {
        let all = self.members.iter().flat_map(|member| &member.steps_ms);
        all.filter(|(name, _)| name == step).map(|(_, ms)| ms).sum()
    }
}

/// What a job is to be.
pub struct Wanted<'a> {
    /// How many nodes there are.
    pub nodes: u32,
    /// As mpirun has them: which node has how many ranks.
    pub hosts: String,
    pub ranks: u32,
    /// Of each node's link.
    pub link: Option<&'a str>,
    pub program: &'a Path,
    pub arguments: Vec<String>,
    pub shared: Option<&'a Shared>,
}

/// A job that runs. It ends when this is dropped.
pub struct Job {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    directory: PathBuf,
    /// Where `shared` has its files.
    shared: Option<PathBuf>,
    /// Which node has the processes that migrate.
    at: RefCell<String>,
}

impl Job {
    /// Starts it in an empty directory, where it ends if there is a file [`stop`], and waits for the first line that it prints.
    pub fn start(wanted: &Wanted, directory: &Path, from: &str) -> Result<Self, AnyError> {
        let snaprig = std::env::current_exe()?;
        let mut command = match wanted.shared {
            Some(shared) => shared.command(&snaprig),
            None => Command::new(&snaprig),
        };
        command.args(["nodes", &wanted.nodes.to_string()]);
        if let Some(rate) = wanted.link {
            command.args(["--link", rate]);
        }
        command.arg("--job").arg(directory.join("job"));
        command.args(["--", "mpirun", "-n", &wanted.ranks.to_string()]);
        command.args(["-host", &wanted.hosts]);
        command.args(MPIRUN.split(' ')).arg(wanted.program);
        command
            .args(&wanted.arguments)
            .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
            .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(fs::File::create(directory.join("stderr"))?);
        command.process_group(0);
        // SAFETY: between fork(2) and exec(2) the closure makes one system call, prctl(2), with a number; it neither allocates nor
        // takes a lock.
        unsafe {
            // Whoever ends the benchmark has the job end.
            command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::TERM))?));
        }
        let mut child = command.spawn()?;
        let lines = child.stdout.take().ok_or("a pipe")?;
        let mut job = Self {
            child,
            lines: BufReader::new(lines).lines(),
            directory: directory.to_owned(),
            shared: wanted.shared.map(Shared::directory),
            at: RefCell::new(from.to_owned()),
        };
        job.line()?;
        Ok(job)
    }

    /// Waits for the next line that it prints.
    pub fn line(&mut self) -> Result<(), AnyError> {
        match self.lines.next() {
            Some(Ok(_)) => Ok(()),
            _ => Err(self.failed()),
        }
    }

    /// Its processes of a node go on at a spare one.
    pub fn migrate(&self, strategy: Strategy, transport: &str) -> Result<Migrated, AnyError> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["ppmr", "migrate", "--json", "--job"]);
        command.arg(self.directory.join("job"));
        command.args(["--patience", PATIENCE_S]);
        command.args(["--from", &self.at.borrow(), "--strategy"]);
        command.args(strategy.words());
        command.args(["--transport", transport]);
        command.arg("--files").arg(self.files(strategy)?);
        thread::sleep(WORKS);
        let output = command.stdin(Stdio::null()).output()?;
        if !output.status.success() {
            let why = String::from_utf8_lossy(&output.stderr);
            return Err(format!("a migration by {}: {why}", strategy.name()).into());
        }
        let migrated: Migrated = serde_json::from_slice(&output.stdout)?;
        self.at.replace(migrated.to.clone());
        Ok(migrated)
    }

    fn files(&self, strategy: Strategy) -> Result<OsString, AnyError> {
        Ok(match (strategy, &self.shared) {
            (Strategy::Shared, Some(shared)) => shared.clone().into(),
            (Strategy::Shared, None) => return Err("there is no shared file system".into()),
            _ => self.directory.clone().into(),
        })
    }

    /// Whether it ends in time.
    fn ends(&mut self) -> bool {
        let until = Instant::now() + ENDS_MAX;
        while matches!(self.child.try_wait(), Ok(None)) {
            if Instant::now() > until {
                return false;
            }
            thread::sleep(LOOK_EVERY);
        }
        true
    }

    /// Waits for its end.
    pub fn wait(&mut self) -> Result<(), AnyError> {
        for line in self.lines.by_ref() {
            line?;
        }
        match self.child.wait()?.success() {
            true => Ok(()),
            false => Err(self.failed()),
        }
    }

    fn failed(&self) -> AnyError {
        let said = fs::read_to_string(self.directory.join("stderr")).unwrap_or_default();
        format!("an MPI job fails: {}", said.trim()).into()
    }
}

/// The file whose presence ends a job.
pub fn stop(directory: &Path) -> PathBuf {
    directory.join("stop")
}

impl Drop for Job {
    fn drop(&mut self) {
        // It need not listen to that, and may have ended.
        let _ = fs::write(stop(&self.directory), "");
        if self.ends() {
            return;
        }
        let group = Pid::from_child(&self.child);
        // What is on nodes ends when the nodes do.
        let _ = kill_process(group, Signal::TERM);
        if !self.ends() {
            let _ = kill_process_group(group, Signal::KILL);
            let _ = self.child.wait();
        }
    }
}
