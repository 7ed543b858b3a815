//! A campaign: a range of seeds, in chunks, on several threads. Each finished chunk is a file, so
//! that a campaign that was killed goes on where it was, and shards are merged by their files. What
//! runs a plan is a [`Runner`]: the simulator, or real rigs.
//!
//! ```text
//!  DIR/campaign.json        what it is a campaign of
//!  DIR/chunks/START.json    what came of the seeds from START on
//!  DIR/failures/SEED/       plan.json, trace.json, timeline.html, repro.txt
//! ```

mod files;
mod results;
mod simulator;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    ops::{ControlFlow, Range},
    path::{Path, PathBuf},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use snaprig_sim::Plan;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::{
    report,
    scenario::{Broken, Class},
};

use self::files::Report;
pub use self::{
    files::{CampaignError, merge},
    results::{Found, Results},
    simulator::{Simulator, unheard_canaries},
};

/// The file of a report that says what it is a campaign of.
const IDENTITY: &str = "campaign.json";
/// Failures that one chunk describes; the others are counted.
const FAILURES_MAX: usize = 8;

/// Which plans a campaign runs.
#[derive(Clone, Debug)]
pub enum Plans {
    /// Those that the runner draws from these seeds.
    Drawn(Range<u64>),
    /// These.
    Listed(Vec<Plan>),
}

impl Plans {
    fn range(&self) -> Range<u64> {
        match self {
            Self::Drawn(seeds) => seeds.clone(),
            Self::Listed(plans) => 0..plans.len() as u64,
        }
    }

    fn get(&self, runner: &dyn Runner, number: u64) -> Option<Plan> {
        match self {
            Self::Drawn(_) => Some(runner.draw(number)),
            Self::Listed(plans) => plans.get(number as usize).cloned(),
        }
    }

    /// What tells them from the plans of another campaign.
    fn identity(&self) -> u64 {
        match self {
            Self::Drawn(..) => 0,
            Self::Listed(plans) => plans.iter().fold(1, |hash, plan| {
                xxh3_64_with_seed(plan.to_text().as_bytes(), hash)
            }),
        }
    }
}

/// What a campaign is to do.
#[derive(Clone, Debug)]
pub struct Options {
    /// The plans.
    pub plans: Plans,
    /// Which part of them, of how many: `(0, 1)` is all.
    pub shard: (u64, u64),
    /// Threads.
    pub jobs: usize,
    /// No new chunk is begun after this.
    pub time: Option<Duration>,
    /// Where the report goes.
    pub report: Option<PathBuf>,
}

/// What came of one run.
#[derive(Debug, Default)]
pub struct Ran {
    /// Events of it.
    pub events: u64,
    /// Faults that happened.
    pub faults: u64,
    /// Hash of its trace; 0 if it has none that would be the same again.
    pub trace_hash: u64,
    /// Fault points: how often each was reached, and how often something happened there.
    pub reached: Vec<(&'static str, u64, u64)>,
    /// States that the system was in, if they are counted.
    pub states: BTreeSet<u64>,
    /// The invariant that it broke.
    pub broken: Option<Broken>,
}

/// What runs plans.
pub trait Runner: Sync {
    /// What tells its reports from those of others.
    fn name(&self) -> String;
    /// Plans that are done together, and again if the campaign is killed meanwhile.
    fn chunk(&self) -> u64;
    /// The plan of a seed.
    fn draw(&self, seed: u64) -> Plan;
    /// Runs a plan.
    fn run(&self, plan: &Plan) -> Ran;
    /// The smallest plan that breaks the same invariant.
    fn shrink(&self, plan: &Plan, broken: &Broken) -> Plan;
    /// Describes a failure in a directory.
    fn report(&self, folder: &Path, found: &Found) -> io::Result<()>;
}

/// Runs a campaign; `progress` is told how many runs of how many are done, and may have nothing more begun.
pub fn campaign(
    runner: &dyn Runner,
    options: &Options,
    progress: &(dyn Fn(u64, u64) -> ControlFlow<()> + Sync),
) -> Result<Results, CampaignError> {
    let (index, count) = options.shard;
    if index >= count {
        return Err(CampaignError::Shard { index, count });
    }
    let report = options
        .report
        .as_deref()
        .map(|path| Report::open(path, runner, options))
        .transpose()?;
    let share = Share {
        range: options.plans.range(),
        size: runner.chunk(),
        shard: options.shard,
    };
    let total = share.total();
    let (next, stopped) = (AtomicU64::new(0), AtomicBool::new(false));
    let all: Mutex<Result<Results, CampaignError>> = Mutex::new(Ok(Results::default()));
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..options.jobs.max(1) {
            scope.spawn(|| {
                while let Some(chunk) = share.chunk(next.fetch_add(1, Ordering::SeqCst)) {
                    let late = options.time.is_some_and(|time| begun.elapsed() >= time);
                    if late || stopped.load(Ordering::SeqCst) {
                        return;
                    }
                    let done = match report.as_ref().and_then(|report| report.chunk(&chunk)) {
                        Some(done) => Ok(done),
                        None => run_chunk(runner, chunk.clone(), options, report.as_ref()),
                    };
                    let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
                    match (&mut *all, done) {
                        (Ok(all), Ok(done)) => {
                            all.add(done);
                            if progress(all.runs, total).is_break() {
                                stopped.store(true, Ordering::SeqCst);
                            }
                        }
                        (all, Err(error)) => {
                            stopped.store(true, Ordering::SeqCst);
                            *all = Err(error);
                        }
                        (Err(_), _) => {}
                    }
                }
            });
        }
    });
    all.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// A shard's chunks of a range: one in `count`, from `index` on.
struct Share {
    range: Range<u64>,
    size: u64,
    shard: (u64, u64),
}

impl Share {
    /// The nth of them, from 0.
    fn chunk(&self, nth: u64) -> Option<Range<u64>> {
        let (index, count) = self.shard;
        let number = nth.checked_mul(count)?.checked_add(index)?;
        let start = number
            .checked_mul(self.size)?
            .checked_add(self.range.start)?;
        let end = start.saturating_add(self.size).min(self.range.end);
        (start < end).then_some(start..end)
    }

    /// Runs in all of them.
    fn total(&self) -> u64 {
        let (index, count) = self.shard;
        let chunks = (self.range.end - self.range.start).div_ceil(self.size);
        let mine = chunks.saturating_sub(index).div_ceil(count);
        let last = mine.checked_sub(1).and_then(|last| self.chunk(last));
        last.map_or(0, |last| (mine - 1) * self.size + (last.end - last.start))
    }
}
fn run_chunk(
    runner: &dyn Runner,
    numbers: Range<u64>,
    options: &Options,
    report: Option<&Report>,
) -> Result<Results, CampaignError> {
    let mut results = Results::default();
    for number in numbers.clone() {
        let Some(plan) = options.plans.get(runner, number) else {
            continue;
        };
        results.runs += 1;
        let ran = runner.run(&plan);
        results.events += ran.events;
        results.faults += ran.faults;
        if ran.trace_hash != 0 {
            let mixed = xxh3_64_with_seed(&ran.trace_hash.to_le_bytes(), number);
            results.trace_hash = results.trace_hash.wrapping_add(mixed);
        }
        for (name, times, faults) in &ran.reached {
            let reached = results.reached.entry((*name).into()).or_default();
            *reached = (reached.0 + times, reached.1 + faults);
        }
        results.states.extend(ran.states);
        let Some(broken) = ran.broken else {
            continue;
        };
        results.failures += 1;
        if results.found.len() < FAILURES_MAX {
            let found = describe(runner, number, &plan, &broken);
            if let Some(report) = report {
                report.failure(runner, &found)?;
            }
            results.found.push(found);
        }
    }
    if let Some(report) = report {
        report.save(&numbers, &results)?;
    }
    Ok(results)
}

/// Shrinks a failing plan, keeping only what breaks the same invariant.
fn describe(runner: &dyn Runner, number: u64, plan: &Plan, broken: &Broken) -> Found {
    let small = runner.shrink(plan, broken);
    let how = match small == *plan {
        true => None,
        false => runner.run(&small).broken.map(|found| found.how),
    };
    Found {
        number,
        class: broken.class,
        invariant: broken.invariant.into(),
        how: how.unwrap_or_else(|| broken.how.clone()),
        plan: small,
    }
}
