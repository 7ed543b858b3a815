//! Programs in a fabric, supervised or not.

use std::{
    fs,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process_group};
use serde::Deserialize;
use snaprig_fabric::place::DIRECTORY_ENV;

use super::RANKS;
use crate::AnyError;

const PROGRAM: &str = include_str!("../../../../../fixtures/bench/verbs.c");
/// How long programs may take to be at work.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long programs have worked before they are checkpointed.
const WORKS: Duration = Duration::from_millis(300);
/// How often it is looked whether something is there.
const LOOK_INTERVAL: Duration = Duration::from_millis(2);

/// What an MPI job sends its messages over.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    Verbs,
    /// There is nothing of verbs in its checkpoints.
    SharedMemory,
}

impl Transport {
    /// Words of Open MPI.
    fn words(self) -> &'static str {
        match self {
            Self::Verbs => "--mca pml ucx --mca osc ucx -x UCX_TLS=rc,self",
            Self::SharedMemory => "--mca pml ob1 --mca btl vader,self",
        }
    }
}

/// What `ckpt dump --json` says.
#[derive(Deserialize)]
pub struct Dumped {
    pub bytes: u64,
    pub plugins_ms: f64,
    pub took_ms: f64,
}

/// What `ckpt move --json` says.
#[derive(Deserialize)]
struct Moved {
    blackout_ms: f64,
}

/// Where programs run.
pub struct Scene {
    snaprig: PathBuf,
    directory: PathBuf,
    program: PathBuf,
    /// What runs are shortened by.
    pub scale: f64,
}

/// Programs that end with the benchmark.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // They may have ended.
        if let Some(group) = Pid::from_raw(self.0.id() as i32) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.0.wait();
    }
}

/// Milliseconds since then.
fn since(begun: Instant) -> f64 {
    begun.elapsed().as_secs_f64() * 1e3
}

/// Waits until something is so.
fn wait_until(what: &str, is: impl Fn() -> bool) -> Result<(), AnyError> {
    let begun = Instant::now();
    while !is() {
        if begun.elapsed() > PATIENCE {
            return Err(format!("{what} takes longer than {PATIENCE:?}").into());
        }
        thread::sleep(LOOK_INTERVAL);
    }
    Ok(())
}

/// What a program printed, if it ended well.
fn printed(output: &Output) -> Result<String, AnyError> {
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => {
            // Libraries below MPI complain on the one or on the other.
            let [out, err] =
                [&output.stdout, &output.stderr].map(|said| String::from_utf8_lossy(said));
            Err(format!("{}: {out}{err}", output.status).into())
        }
    }
}

impl Scene {
    /// In a directory that is the benchmark's.
    pub fn new(directory: &Path, scale: f64) -> Result<Self, AnyError> {
        let (source, program) = (directory.join("verbs.c"), directory.join("verbs"));
        fs::write(&source, PROGRAM)?;
        let mut gcc = Command::new("gcc");
        gcc.args(["-O2", "-o"])
            .args([&program, &source])
            .arg("-libverbs");
        let output = gcc
            .output()
            .map_err(|error| format!("gcc: {error}; ci/setup installs it"))?;
        printed(&output)?;
        Ok(Self {
            snaprig: std::env::current_exe()?,
            directory: directory.into(),
            program,
            scale,
        })
    }

    fn checkpoints(&self) -> PathBuf {
        self.directory.join("checkpoints")
    }

    fn ready(&self) -> PathBuf {
        self.directory.join("ready")
    }

    fn stop(&self) -> PathBuf {
        self.directory.join("stop")
    }

    /// Words of a shell, in a fabric: supervised, with `--verbs`, or not.
    fn shell(&self, words: &str, is_supervised: bool) -> Command {
        let flags: Option<&[&str]> = is_supervised.then_some(&["--verbs"]);
        self.shell_with(words, flags)
    }

    fn shell_with(&self, words: &str, supervised: Option<&[&str]>) -> Command {
        let mut command = self.in_fabric();
        if let Some(flags) = supervised {
            let _ = fs::remove_dir_all(self.checkpoints());
            command.arg(&self.snaprig).args(["ckpt", "launch", "--dir"]);
            command.arg(self.checkpoints()).args(flags).arg("--");
        }
        command.args(["sh", "-c", words]);
        command
    }

    fn in_fabric(&self) -> Command {
        let mut command = Command::new(&self.snaprig);
        command
            .args(["verbs", "--"])
            .env(DIRECTORY_ENV, &self.directory)
            .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
            .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
            .stdin(Stdio::null());
        command
    }

    fn ckpt(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.snaprig);
        command.arg("ckpt").args(words).arg("--dir");
        command.arg(self.checkpoints()).stdin(Stdio::null());
        command
    }

    /// A program of which nobody reads what it prints.
    fn spawn(mut command: Command) -> Result<Running, AnyError> {
        command.stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Running(command.process_group(0).spawn()?))
    }

    /// Nanoseconds of a step.
    pub fn steps(&self, kind: &str, is_supervised: bool) -> Result<f64, AnyError> {
        let rounds = (200.0 * self.scale).max(5.0) as u64;
        let words = format!("exec {} posts {kind} 5000 {rounds}", self.program.display());
        let said = printed(&self.shell(&words, is_supervised).output()?)?;
        Ok(said.trim().parse()?)
    }

    /// A figure of perftest's.
    pub fn perftest(
        &self,
        program: &str,
        column: usize,
        is_supervised: bool,
    ) -> Result<f64, AnyError> {
        let words = format!(
            "{program} > /dev/null & until {program} 127.0.0.1 2> /dev/null; do sleep 0.02; done; wait"
        );
        let said = printed(&self.shell(&words, is_supervised).output()?)?;
        figure_of(&said, column)
            .ok_or_else(|| format!("{program} said nothing to measure: {said}").into())
    }

    /// Milliseconds of a kernel of an MPI job.
    pub fn kernel(
        &self,
        program: &str,
        iterations: u64,
        is_supervised: bool,
    ) -> Result<f64, AnyError> {
        let transport = Transport::Verbs.words();
        let words = format!(
            "exec mpirun --oversubscribe -n 2 {transport} {program} --iterations {iterations}"
        );
        let begun = Instant::now();
        printed(&self.shell(&words, is_supervised).output()?)?;
        Ok(since(begun))
    }

    /// Pairs of processes with so many queue pairs each, once all are at work.
    fn pairs(&self, pairs: u32, qps: u32, is_supervised: bool) -> Result<Running, AnyError> {
        for file in [self.ready(), self.stop()] {
            let _ = fs::remove_file(file);
        }
        let words = format!(
            "exec {} pairs {pairs} {qps} {} {}",
            self.program.display(),
            self.ready().display(),
            self.stop().display()
        );
        let running = Self::spawn(self.shell(&words, is_supervised))?;
        wait_until("getting to work", || self.ready().exists())?;
        Ok(running)
    }

    /// Milliseconds until pairs with a queue pair each are at work.
    pub fn start(&self, pairs: u32, is_supervised: bool) -> Result<f64, AnyError> {
        let begun = Instant::now();
        let mut running = self.pairs(pairs, 1, is_supervised)?;
        let took = since(begun);
        fs::write(self.stop(), "")?;
        running.0.wait()?;
        Ok(took)
    }

    /// Milliseconds until pairs at work have come to rest.
    pub fn rest(&self, pairs: u32, qps: u32) -> Result<f64, AnyError> {
        let mut running = self.pairs(pairs, qps, true)?;
        thread::sleep(WORKS);
        let dumped = self.dump()?;
        running.0.wait()?;
        Ok(dumped.plugins_ms)
    }

    /// Milliseconds that a member of a job stands still while it moves, with so much memory of a kind.
    pub fn moved(&self, kind: &str, mib: u64) -> Result<f64, AnyError> {
        let (job, moved) = (self.directory.join("job"), self.directory.join("moved"));
        let (stop, ready) = (self.stop(), self.ready());
        for file in [&stop, &ready, &moved] {
            let _ = fs::remove_file(file);
        }
        let _ = fs::remove_dir_all(&job);
        let words = format!(
            "{snaprig} ckpt launch --job {job} --name one --verbs -- {program} pairs 1 1 {ready} {stop} {kind} {mib} &
            until [ -e {ready} ]; do kill -0 $! || exit; sleep 0.01; done
            sleep {works}
            {snaprig} ckpt move --job {job} one --json > {moved} &
            until [ -s {moved} ]; do kill -0 $! || break; sleep 0.01; done
            touch {stop}
            wait && cat {moved}",
            job = job.display(),
            program = self.program.display(),
            ready = ready.display(),
            stop = stop.display(),
            moved = moved.display(),
            works = WORKS.as_secs_f64(),
            snaprig = self.snaprig.display(),
        );
        let output = self.shell_with(&words, None).output()?;
        let said = printed(&output)?;
        let moved: Moved = serde_json::from_str(&said)
            .map_err(|_| String::from_utf8_lossy(&output.stderr).into_owned())?;
        Ok(moved.blackout_ms)
    }

    /// Takes a checkpoint, after which nothing runs any more.
    fn dump(&self) -> Result<Dumped, AnyError> {
        let mut dump = self.ckpt(&["dump", "--kill", "--json"]);
        Ok(serde_json::from_str(&printed(&dump.output()?)?)?)
    }

    /// How many processes of its program there are.
    fn count(&self, program: &str) -> usize {
        let Ok(output) = self.ckpt(&["status"]).output() else {
            return 0;
        };
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let name = program.rsplit('/').next().unwrap_or(program);
        said.lines().filter(|line| line.ends_with(name)).count()
    }

    /// A checkpoint of an MPI kernel, and the milliseconds after which it runs again.
    pub fn checkpoint(
        &self,
        program: &str,
        transport: Transport,
    ) -> Result<(Dumped, f64), AnyError> {
        let words = format!(
            "exec mpirun --oversubscribe -n {RANKS} {} {program} --iterations 1000000000",
            transport.words()
        );
        let flags: &[&str] = match transport {
            Transport::Verbs => &["--verbs"],
            Transport::SharedMemory => &[],
        };
        let mut running = Self::spawn(self.shell_with(&words, Some(flags)))?;
        wait_until("getting to work", || self.count(program) == RANKS as usize)?;
        thread::sleep(3 * WORKS);
        let dumped = self.dump()?;
        running.0.wait()?;
        let mut restart = self.in_fabric();
        restart.arg(&self.snaprig).args(["ckpt", "restart"]);
        restart.arg(self.checkpoints());
        let begun = Instant::now();
        let mut running = Self::spawn(restart)?;
        wait_until("a restart", || self.count(program) == RANKS as usize)?;
        let took = since(begun);
        self.dump()?;
        running.0.wait()?;
        Ok((dumped, took))
    }
}

/// The number in a column of the last line that is of numbers alone.
fn figure_of(said: &str, column: usize) -> Option<f64> {
    let numbers = |line: &str| {
        let all: Option<Vec<f64>> = line
            .split_whitespace()
            .map(|word| word.parse().ok())
            .collect();
        all.filter(|all| all.len() > column)
    };
    let last = said.lines().filter_map(numbers).next_back()?;
    last.get(column).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_of_the_last_line_of_figures() {
        let said = " #bytes #iterations t_min[usec]\n 8  1000  0.41  14.73  0.51\n---\n";
        assert_eq!(figure_of(said, 4), Some(0.51));
        assert_eq!(figure_of(said, 5), None);
    }
}
