//! Kernels of MPI jobs that are migrated while they compute, from their first line to their last.

use std::{
    path::{Path, PathBuf},
    time::Instant,
};

use snaprig_fixtures::mpi::KERNELS;

use super::{
    here::Here,
    job::{Job, Strategy, Wanted},
};
use crate::AnyError;

/// As many points a side: so much memory that iterations take milliseconds.
const SIZE: u64 = 64;
/// Iterations that show how long one takes, or so many times as many: what takes less is mostly the start and the end of a job.
const TRIED: u64 = 10;
const TRIED_TIMES: u64 = 4;
const TRIED_MIN_S: f64 = 4.0;
/// Least and usual time of a run: three migrations are to be a small part of it, as they are of the paper's.
const RUNS_MIN_S: f64 = 6.0;
const RUNS_S: f64 = 30.0;
/// How often it is migrated.
const MIGRATIONS: u64 = 3;

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
        let runs_s = (RUNS_S * scale).max(RUNS_MIN_S);
        let mut tried_s = running.run(None, here)? / 1e3;
        while tried_s < TRIED_MIN_S.min(runs_s) {
            running.iterations *= TRIED_TIMES;
            tried_s = running.run(None, here)? / 1e3;
        }
        let all = running.iterations as f64 * runs_s / tried_s;
        running.iterations = all.max(1.0) as u64;
        Ok(running)
    }

    /// Milliseconds of a run; by which strategy it is migrated, each time that it has done its next part.
    pub fn run(&self, strategy: Option<Strategy>, here: &Here) -> Result<f64, AnyError> {
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
        for _ in 0..MIGRATIONS {
            let Some(strategy) = strategy else { break };
            job.line()?;
            job.migrate(strategy, here.transport)?;
        }
        job.wait()?;
        Ok(begun.elapsed().as_secs_f64() * 1e3)
    }

    fn arguments(&self) -> Vec<String> {
        let part = self.iterations.div_ceil(MIGRATIONS + 1);
        let [size, all, part] = [SIZE, self.iterations, part].map(|number| number.to_string());
        ["--size", &size, "--iterations", &all, "--report", &part]
            .map(str::to_owned)
            .into()
    }
}
