//! Kernels of MPI jobs that are migrated while they compute, from their first line to their last.

use std::{
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use snaprig_fixtures::mpi::KERNELS;

use super::{
    here::Here,
    job::{Job, Strategy, Wanted},
};
use crate::AnyError;

/// As many points a side: so much memory that iterations take milliseconds.
const SIZE: u64 = 64;
/// Iterations that show how long one takes.
const TRIED: u64 = 10;
/// Least and usual time of a run: three migrations are to be a small part of it, as they are of the paper's.
const RUNS_MIN_S: f64 = 6.0;
const RUNS_S: f64 = 30.0;
/// How often it is migrated.
const MIGRATIONS: u32 = 3;

/// A kernel, compiled, that runs so many iterations.
pub struct Running {
    program: PathBuf,
    iterations: u64,
}

impl Running {
    /// Compiles it into a directory, and tries how long it takes.
    pub fn new(name: &str, directory: &Path, here: &Here, scale: f64) -> Result<Self, AnyError> {
        let mut all = KERNELS.iter();
        let kernel = all.find(|kernel| kernel.name == name);
        let program = kernel
            .ok_or("no such kernel")?
            .compile("mpicc", directory)?;
        let mut running = Self {
            program,
            iterations: TRIED,
        };
        let tried_ms = running.run(None, here, 0.0)?;
        let wanted_ms = (RUNS_S * scale).max(RUNS_MIN_S) * 1e3;
        running.iterations = (wanted_ms / tried_ms * TRIED as f64).max(1.0) as u64;
        Ok(running)
    }

    /// Milliseconds of a run; by which strategy it is migrated, where it runs for about so long without.
    pub fn run(
        &self,
        strategy: Option<Strategy>,
        here: &Here,
        about_ms: f64,
    ) -> Result<f64, AnyError> {
        let directory = here.directory()?;
        let wanted = Wanted {
            nodes: 5,
            hosts: "node1:2,node2:2,node3:2,node4:2".into(),
            ranks: 8,
            link: here.link,
            program: &self.program,
            arguments: self.arguments(),
            shared: here.shared.as_ref(),
        };
        let mut job = Job::start(&wanted, directory.path(), "node1")?;
        let begun = Instant::now();
        for number in 1..=MIGRATIONS {
            let Some(strategy) = strategy else { break };
            let share = f64::from(number) / f64::from(MIGRATIONS + 1);
            let due = Duration::from_secs_f64(about_ms / 1e3 * share);
            thread::sleep(due.saturating_sub(begun.elapsed()));
            job.migrate(strategy, here.transport)?;
        }
        job.wait()?;
        Ok(begun.elapsed().as_secs_f64() * 1e3)
    }

    fn arguments(&self) -> Vec<String> {
        let all = self.iterations.to_string();
        let size = SIZE.to_string();
        ["--size", &size, "--iterations", &all, "--report", &all]
            .map(str::to_owned)
            .into()
    }
}
