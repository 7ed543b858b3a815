//! Migrations of an MPI job's processes by each strategy of `snaprig ppmr migrate`, side by side in one job (the paper's section
//! V-C and V-D).
//!
//! | rows | what is measured |
//! |---|---|
//! | migration 320M | 8 processes of a node with 320 MiB in all go to a spare node: in all, and step by step (Figures 3 and 9). Files and scp go over a link of 1 Gbit/s; chunks of a pipeline by RDMA, as in the paper |
//! | blackout | how long they run nowhere, most of their memory being copied before, or following them |
//! | N processes | the same memory, in fewer processes (Figure 11) |
//! | migration 3472M | ten times the memory (Table I) |
//! | lu, bt, sp | kernels that compute, migrated three times in a run (Figure 10) |
//!
//! Of one run, all that is compared comes from jobs that run one after the other; of one job, strategies take turns. Each job has
//! processes at another node, too, which wait for those that migrate. `yardstick` is the longest of a capture, a copy and a restore
//! of as much memory, each alone. Before each of these, memory for it is there ([`have_memory`]).

mod figures;
mod here;
mod job;
mod kernels;
mod lines;
mod paper;
mod shared;
mod yardstick;

use std::{collections::BTreeMap, fs, path::PathBuf, process::Command};

use self::{
    here::Here,
    job::{Job, Migrated, Strategy, Wanted, stop},
    kernels::Running,
    lines::{LINES, Line, Of, Part},
    yardstick::Yardstick,
};
use super::{Found, Samples};
use crate::{AnyError, options::Chosen, progress, table::Unit};

/// Processes of the node that is left, in most of this, and their memory in MiB.
const PROCESSES: u32 = 8;
const USUAL_MIB: u32 = 320;
const LARGE_MIB: u32 = 3472;
/// What processes write to in a second, in percent of their memory.
const DIRTY_PERCENT: u32 = 1;
/// As much memory is to be free as there are copies of it: at both ends, on the way, and in the page cache.
const COPIES: u64 = 4;

const MIGRATED: &str = include_str!("../../../../../../fixtures/bench/migrated.c");
const CAPTURED: &str = include_str!("../../../../../../fixtures/bench/ckpt.c");

/// A kind of migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Case {
    /// With what else it is measured.
    part: Part,
    strategy: Strategy,
    processes: u32,
    mib: u32,
}

/// All that is measured, in the order of runs; none where it failed.
#[derive(Default)]
struct Measured {
    migrations: BTreeMap<Case, Vec<Option<Migrated>>>,
    yardsticks: Vec<f64>,
    /// Milliseconds of kernels, and by what they are migrated.
    kernels: BTreeMap<(&'static str, Option<Strategy>), Vec<Option<f64>>>,
}

/// Measures all of which lines are chosen.
pub fn measure(chosen: &Chosen) -> Result<Found, AnyError> {
    let mut lines = LINES.iter();
    let lines: Vec<&Line> = lines
        .by_ref()
        .filter(|line| line.measure.contains(&*chosen.only))
        .collect();
    if lines.is_empty() {
        return Ok(Found::default());
    }
    let here = match Here::new() {
        Ok(here) => here,
        Err(why) => {
            let left_out = vec![format!("migrations are left out: {why}")];
            return Ok(Found {
                left_out,
                ..Found::default()
            });
        }
    };
    let mut scene = Scene::new(here, chosen.common.scale)?;
    let mut parts: Vec<Part> = lines.iter().map(|line| line.part).collect();
    parts.dedup();
    let bar = progress::bar(usize::from(chosen.common.runs) * parts.len());
    for run in 0..chosen.common.runs {
        for part in &parts {
            bar.set_message(format!("{part:?}"));
            scene.measure(*part, run.into())?;
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    Ok(scene.found(&lines))
}

/// Where jobs run.
struct Scene {
    here: Here,
    scale: f64,
    migrated: PathBuf,
    captured: PathBuf,
    kernels: BTreeMap<&'static str, Running>,
    measured: Measured,
}

impl Scene {
    fn new(here: Here, scale: f64) -> Result<Self, AnyError> {
        let compile = |compiler: &str, name: &str, text: &str| -> Result<PathBuf, AnyError> {
            let program = here.programs().join(name);
            let source = program.with_extension("c");
            fs::write(&source, text)?;
            let mut command = Command::new(compiler);
            let output = command
                .args(["-O2", "-pthread", "-o"])
                .args([&program, &source])
                .output()?;
            match output.status.success() {
                true => Ok(program),
                false => Err(String::from_utf8_lossy(&output.stderr).into()),
            }
        };
        Ok(Self {
            migrated: compile("mpicc", "migrated", MIGRATED)?,
            captured: compile("gcc", "captured", CAPTURED)?,
            here,
            scale,
            kernels: BTreeMap::new(),
            measured: Measured::default(),
        })
    }

    fn measure(&mut self, part: Part, run: usize) -> Result<(), AnyError> {
        use Strategy::{Local, PostCopy, Ppmr, PreCopy, RdmaLocal, Shared};
        let of = |processes, mib| Case {
            part,
            strategy: Ppmr,
            processes,
            mib,
        };
        // Who comes first finds the job as it was started: they take turns.
        let turned = |mut ways: Vec<Strategy>| {
            let first = run % ways.len();
            ways.rotate_left(first);
            ways
        };
        match part {
            Part::Ways => {
                let ways = turned(vec![Ppmr, PreCopy, PostCopy, RdmaLocal, Local, Shared]);
                self.migrate(of(PROCESSES, USUAL_MIB), &ways)?;
                let mib = self.mib(USUAL_MIB);
                have_memory(mib);
                let yardstick = Yardstick::measure(&self.captured, PROCESSES, mib)?;
                self.measured.yardsticks.push(yardstick.slowest_ms());
            }
            Part::Unlimited => {
                self.migrate(of(PROCESSES, USUAL_MIB), &turned(vec![Ppmr, Local]))?;
            }
            Part::Processes => {
                for processes in lines::COUNTS {
                    self.migrate(of(processes, USUAL_MIB), &[Ppmr])?;
                }
            }
            Part::Large if has_room(self.mib(LARGE_MIB)) => {
                self.migrate(of(PROCESSES, LARGE_MIB), &turned(vec![Ppmr, Shared]))?;
            }
            Part::Large => {
                let why = format!(
                    "migrations of {LARGE_MIB} MiB are left out: there is too little memory"
                );
                if !self.here.left_out.contains(&why) {
                    self.here.left_out.push(why);
                }
            }
            Part::Kernel(name) => self.kernel(name)?,
        }
        Ok(())
    }

    /// MiB of what is usually so many.
    fn mib(&self, usual: u32) -> u64 {
        ((f64::from(usual) * self.scale) as u64).max(PROCESSES.into())
    }

    /// One migration by each of these ways, of one job.
    fn migrate(&mut self, case: Case, ways: &[Strategy]) -> Result<(), AnyError> {
        let processes = case.processes;
        let directory = self.here.directory()?;
        let stop = stop(directory.path()).display().to_string();
        let memory = self.mib(case.mib).to_string();
        let (holders, dirty) = (processes.to_string(), DIRTY_PERCENT.to_string());
        let wanted = Wanted {
            nodes: 3,
            hosts: format!("node1:{processes},node2:2"),
            ranks: processes + 2,
            link: self.here.link.filter(|_| case.part.has_links()),
            program: &self.migrated,
            arguments: vec![holders, memory, dirty, stop],
            shared: self.here.shared.as_ref(),
        };
        let job = Job::start(&wanted, directory.path(), "node1")?;
        for strategy in ways {
            if !self.here.has(*strategy) {
                continue;
            }
            have_memory(self.mib(case.mib));
            let mut migrated = job.migrate(*strategy, self.here.transport);
            if let (Err(why), "rdma", true) = (
                &migrated,
                self.here.transport,
                self.measured.migrations.is_empty(),
            ) {
                self.here.without_rdma(why);
                migrated = job.migrate(*strategy, self.here.transport);
            }
            let migrated = match (strategy, migrated) {
                (_, Ok(migrated)) => Some(migrated),
                (Strategy::Ppmr | Strategy::PreCopy | Strategy::PostCopy, Err(error)) => {
                    return Err(error);
                }
                // What it is compared with may fail.
                (_, Err(error)) => {
                    eprintln!("{error}");
                    None
                }
            };
            let case = Case {
                strategy: *strategy,
                ..case
            };
            self.measured
                .migrations
                .entry(case)
                .or_default()
                .push(migrated);
        }
        Ok(())
    }

    fn kernel(&mut self, name: &'static str) -> Result<(), AnyError> {
        if !self.kernels.contains_key(name) {
            let running = Running::new(name, self.here.programs(), &self.here, self.scale)?;
            self.kernels.insert(name, running);
        }
        let Some(running) = self.kernels.get(name) else {
            return Ok(());
        };
        let samples = &mut self.measured.kernels;
        let alone_ms = running.run(None, &self.here)?;
        let alone = samples.entry((name, None)).or_default();
        alone.push(Some(alone_ms));
        for strategy in lines::ways_of(name) {
            if self.here.has(strategy) {
                let took = running.run(Some(strategy), &self.here);
                let took = took.map_err(|why| {
                    // It may have ended before the third migration, by a strategy that is slow to begin.
                    let left_out = format!("a run of {name} with {strategy:?} is left out: {why}");
                    self.here.left_out.push(left_out);
                });
                let samples = samples.entry((name, Some(strategy))).or_default();
                samples.push(took.ok());
            }
        }
        Ok(())
    }

    fn found(self, lines: &[&Line]) -> Found {
        let rows = lines.iter().filter_map(|line| line.row(&self.measured));
        Found {
            rows: rows.collect(),
            figures: figures::of(&self.measured),
            samples: self.measured.samples(),
            left_out: self.here.left_out,
        }
    }
}

/// Has memory for two copies of so much at hand. A virtual machine's host takes back what is free in it (free page reporting, Linux's
/// mm/page_reporting.c), and who is the next to touch that waits for the host: longer than a migration takes.
fn have_memory(mib: u64) {
    if has_room(mib) {
        drop(std::hint::black_box(vec![1_u8; (2 * mib as usize) << 20]));
    }
}

/// Whether there is memory for all copies of so much.
fn has_room(mib: u64) -> bool {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.is_some_and(|kib| kib >> 10 >= COPIES * mib)
}

impl Measured {
    /// Samples of something, in the order of runs; none: it is not there.
    fn of(&self, of: Of) -> Option<Vec<Option<f64>>> {
        let migrations = |case: Case, ms: fn(&Migrated) -> f64| {
            let all = self.migrations.get(&case)?.iter();
            Some(all.map(|one| one.as_ref().map(ms)).collect())
        };
        match of {
            Of::Took(case) => migrations(case, |migrated| migrated.took_ms),
            Of::Blackout(case) => migrations(case, |migrated| migrated.blackout_ms),
            Of::Kernel(name, strategy) => self.kernels.get(&(name, strategy)).cloned(),
            Of::Yardstick if self.yardsticks.is_empty() => None,
            Of::Yardstick => Some(self.yardsticks.iter().copied().map(Some).collect()),
            Of::Milliseconds(ms) => {
                let runs = self.migrations.values().map(Vec::len).max()?;
                Some(vec![Some(ms); runs])
            }
        }
    }

    /// Each migration, and each step of it.
    fn samples(&self) -> Vec<Samples> {
        let mut all = Vec::new();
        for (case, migrated) in &self.migrations {
            let there: Vec<_> = migrated.iter().flatten().collect();
            let Some(first) = there.first() else { continue };
            let link = if case.part.has_links() {
                ", links limited"
            } else {
                ""
            };
            let (mib, processes) = (case.mib, case.processes);
            let name = format!(
                "{mib} MiB, {processes} processes, {}{link}",
                case.name(first)
            );
            let mut take = |what: &str, ms: &dyn Fn(&Migrated) -> f64| {
                all.push(Samples {
                    measure: format!("{name}: {what}"),
                    unit: Unit::Milliseconds,
                    samples: there.iter().map(|migrated| ms(migrated)).collect(),
                });
            };
            take("total", &|migrated| migrated.took_ms);
            take("blackout", &|migrated| migrated.blackout_ms);
            for step in figures::STEPS {
                take(step, &|migrated| migrated.step_ms(step));
            }
        }
        all
    }
}

impl Case {
    /// The way that it takes, with the file system by which it leads.
    fn name(&self, migrated: &Migrated) -> String {
        match self.strategy {
            Strategy::PreCopy => "ppmr --pre-copy".to_owned(),
            Strategy::PostCopy => "ppmr --post-copy".to_owned(),
            _ => migrated.strategy.clone(),
        }
    }
}
