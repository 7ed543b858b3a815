//! A campaign: a range of seeds, in chunks, on several threads. Each finished chunk is a file, so
//! that a campaign that was killed goes on where it was, and shards are merged by their files. What
//! runs a plan is a [`Runner`]: the simulator, or real rigs.
//!
//! ```text
//!  DIR/campaign.json        what it is a campaign of
//!  DIR/chunks/START.json    what came of the seeds from START on
//!  DIR/failures/SEED/       plan.json, trace.json, timeline.html, repro.txt
//! ```

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    ops::Range,
    path::{Path, PathBuf},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use snaprig_sim::{Plan, Trace, shrink::shrink};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::{
    Canary,
    check::{self, Broken, check},
    draw::draw,
    model, report, run, scif, system, verbs,
};

/// Seeds by which every canary is found many times over.
const CANARY_SEEDS: u64 = 20_000;
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
    pub broken: Option<(Class, Broken)>,
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

/// Runs plans in simulation.
#[derive(Clone, Debug, Default)]
pub struct Simulator {
    /// Which scenarios are drawn; none: all.
    pub scenarios: Vec<&'static str>,
    /// The planted bug.
    pub canary: Option<Canary>,
    /// Whether states are counted.
    pub counting: bool,
}

impl Runner for Simulator {
    fn name(&self) -> String {
        let canary = self.canary.map(Canary::name);
        let words = ["simulator"].into_iter().chain(canary);
        let words: Vec<_> = words.chain(self.scenarios.iter().copied()).collect();
        words.join(" ")
    }

    fn chunk(&self) -> u64 {
        500
    }

    fn draw(&self, seed: u64) -> Plan {
        draw(seed, &self.scenarios)
    }

    fn run(&self, plan: &Plan) -> Ran {
        let run = match self.counting {
            true => system::run_counting,
            false => run,
        };
        let outcome = run(plan, Trace::default(), self.canary);
        Ran {
            broken: check(&outcome).map(|broken| (class(&broken), broken)),
            events: outcome.trace.events(),
            faults: outcome.faults,
            trace_hash: outcome.trace.hash(),
            reached: outcome.reached,
            states: outcome.states,
        }
    }

    fn shrink(&self, plan: &Plan, broken: &Broken) -> Plan {
        shrink(plan, |plan| {
            let found = fails(plan, self.canary);
            found.is_some_and(|(_, found)| found.invariant == broken.invariant)
        })
    }

    fn report(&self, folder: &Path, found: &Found) -> io::Result<()> {
        report::write(folder, found, self.canary)
    }
}

/// What kind of failure it is: the exit code of a campaign.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// An invariant does not hold.
    Wrong,
    /// Somebody waits for ever.
    Hang,
    /// The code under test panicked.
    Crash,
}

impl Class {
    /// The exit code.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Wrong => 1,
            Self::Hang => 3,
            Self::Crash => 4,
        }
    }
}

/// A plan whose run broke an invariant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// The seed that drew it, or its number in the list.
    pub number: u64,
    /// What kind of failure.
    pub class: Class,
    /// The invariant.
    pub invariant: String,
    /// How it is broken.
    pub how: String,
    /// The smallest plan that breaks it.
    pub plan: Plan,
}

/// What came of some seeds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Results {
    /// Runs.
    pub runs: u64,
    /// Events of all runs.
    pub events: u64,
    /// Faults that happened.
    pub faults: u64,
    /// Hash of all traces, whatever their order.
    pub trace_hash: u64,
    /// Fault points: how often each was reached, and how often something happened there.
    pub reached: BTreeMap<String, (u64, u64)>,
    /// States that the system was in, if they were counted: hashes of them.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub states: BTreeSet<u64>,
    /// Runs that broke an invariant.
    pub failures: u64,
    /// The first of them.
    pub found: Vec<Found>,
}

impl Results {
    /// Takes others in.
    pub fn add(&mut self, other: Self) {
        self.runs += other.runs;
        self.events += other.events;
        self.faults += other.faults;
        self.trace_hash = self.trace_hash.wrapping_add(other.trace_hash);
        for (name, (times, faults)) in other.reached {
            let reached = self.reached.entry(name).or_default();
            *reached = (reached.0 + times, reached.1 + faults);
        }
        self.states.extend(other.states);
        self.failures += other.failures;
        self.found.extend(other.found);
        self.found.sort_by_key(|found| found.number);
    }
}

/// What a directory is the report of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Identity {
    version: u32,
    runner: String,
    plans: u64,
}

/// Why a campaign cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum CampaignError {
    /// The report's directory.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It belongs to another campaign.
    #[error("{path} is the report of another campaign; choose another directory")]
    Another {
        /// The directory.
        path: PathBuf,
    },
    /// It makes no sense.
    #[error("{path} is no report: {why}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// There is no such shard.
    #[error("shard {index}/{count}: shards are 0/{count} to {last}/{count}", last = count.saturating_sub(1))]
    Shard {
        /// Which.
        index: u64,
        /// Of how many.
        count: u64,
    },
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> CampaignError + '_ {
    move |source| CampaignError::Io {
        path: path.to_owned(),
        source,
    }
}

/// The canaries that no seed finds: a campaign with these checks and faults would prove nothing.
pub fn unheard_canaries() -> Vec<Canary> {
    let unheard = |canary: &Canary| !(0..CANARY_SEEDS).any(|seed| finds(seed, *canary));
    Canary::ALL.into_iter().filter(unheard).collect()
}

fn finds(seed: u64, canary: Canary) -> bool {
    let scenarios = match canary.of_the_hca() {
        Some(_) => &[verbs::SCENARIO][..],
        None if canary.is_of_scif() => &[scif::SCENARIO],
        None => &model::SCENARIOS,
    };
    fails(&draw(seed, scenarios), Some(canary)).is_some()
}

/// Runs a campaign; `progress` is told how many runs of how many are done.
pub fn campaign(
    runner: &dyn Runner,
    options: &Options,
    progress: &(dyn Fn(u64, u64) + Sync),
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
                            progress(all.runs, total);
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

/// The reports of shards as one.
pub fn merge(directories: &[PathBuf]) -> Result<Results, CampaignError> {
    let mut chunks = BTreeMap::new();
    let mut first: Option<Identity> = None;
    for directory in directories {
        let identity = read_json::<Identity>(&directory.join(IDENTITY))?;
        if *first.get_or_insert_with(|| identity.clone()) != identity {
            return Err(CampaignError::Another {
                path: directory.clone(),
            });
        }
        let folder = directory.join("chunks");
        for entry in fs::read_dir(&folder).map_err(io_error(&folder))? {
            let path = entry.map_err(io_error(&folder))?.path();
            if path
                .extension()
                .is_some_and(|extension| extension == "json")
            {
                let name = path.file_name().map(ToOwned::to_owned);
                chunks.insert(name, read_json::<Results>(&path)?);
            }
        }
    }
    let mut all = Results::default();
    chunks.into_values().for_each(|chunk| all.add(chunk));
    Ok(all)
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
        let Some((class, broken)) = ran.broken else {
            continue;
        };
        results.failures += 1;
        if results.found.len() < FAILURES_MAX {
            let found = describe(runner, number, &plan, class, &broken);
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

/// What kind of failure a broken invariant is.
pub fn class(broken: &Broken) -> Class {
    match broken.invariant {
        check::progress::NAME => Class::Hang,
        check::panic::NAME => Class::Crash,
        _ => Class::Wrong,
    }
}

/// How a plan fails, if it does.
pub fn fails(plan: &Plan, canary: Option<Canary>) -> Option<(Class, Broken)> {
    let broken = check(&run(plan, Trace::default(), canary))?;
    Some((class(&broken), broken))
}

/// Shrinks a failing plan, keeping only what breaks the same invariant.
fn describe(runner: &dyn Runner, number: u64, plan: &Plan, class: Class, broken: &Broken) -> Found {
    let small = runner.shrink(plan, broken);
    let how = match small == *plan {
        true => None,
        false => runner.run(&small).broken.map(|(_, found)| found.how),
    };
    Found {
        number,
        class,
        invariant: broken.invariant.into(),
        how: how.unwrap_or_else(|| broken.how.clone()),
        plan: small,
    }
}

/// A report's directory.
struct Report(PathBuf);

impl Report {
    fn open(path: &Path, runner: &dyn Runner, options: &Options) -> Result<Self, CampaignError> {
        let identity = Identity {
            version: 1,
            runner: runner.name(),
            plans: options.plans.identity(),
        };
        for folder in [path.join("chunks"), path.join("failures")] {
            fs::create_dir_all(&folder).map_err(io_error(&folder))?;
        }
        let file = path.join(IDENTITY);
        match file.exists() {
            true if read_json::<Identity>(&file)? != identity => {
                return Err(CampaignError::Another {
                    path: path.to_owned(),
                });
            }
            true => {}
            false => write_json(&file, &identity)?,
        }
        Ok(Self(path.to_owned()))
    }

    fn chunk_path(&self, seeds: &Range<u64>) -> PathBuf {
        let name = format!("{}-{}.json", seeds.start, seeds.end);
        self.0.join("chunks").join(name)
    }

    /// What an earlier run of the campaign has done. What it has done badly is done again.
    fn chunk(&self, seeds: &Range<u64>) -> Option<Results> {
        read_json(&self.chunk_path(seeds)).ok()
    }

    fn save(&self, seeds: &Range<u64>, results: &Results) -> Result<(), CampaignError> {
        write_json(&self.chunk_path(seeds), results)
    }

    fn failure(&self, runner: &dyn Runner, found: &Found) -> Result<(), CampaignError> {
        let folder = self.0.join("failures").join(found.number.to_string());
        runner.report(&folder, found).map_err(io_error(&folder))
    }
}

fn read_json<T: for<'a> Deserialize<'a>>(path: &Path) -> Result<T, CampaignError> {
    let text = fs::read_to_string(path).map_err(io_error(path))?;
    serde_json::from_str(&text).map_err(|error| CampaignError::Damaged {
        path: path.to_owned(),
        why: error.to_string(),
    })
}

/// Under its name only when it is whole.
fn write_json<T: Serialize>(path: &Path, value: &T) -> Result<(), CampaignError> {
    let text = serde_json::to_vec_pretty(value).map_err(|error| CampaignError::Damaged {
        path: path.to_owned(),
        why: error.to_string(),
    })?;
    report::write_file(path, &text).map_err(io_error(path))
}
