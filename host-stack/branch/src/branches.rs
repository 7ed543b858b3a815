//! What is branched, and how: the undisturbed branch first, then all others, several at a time.

use std::{
    fs, io,
    ops::{ControlFlow, Range},
    path::{Path, PathBuf},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use serde::Serialize;
use snaprig_fabric::place::HCAS_MAX;
use snaprig_sim::{Plan, PlanError};
use snaprig_verbs::daemon::{LiveError, check_plan};
use tempfile::TempDir;

use crate::{
    draw::{Extent, draw},
    process::Task,
    run::{self, Seen},
    source::{Source, What},
    verdict::{Branch, Verdict, compare},
};

/// How long the undisturbed branch may take, if nobody says.
const UNDISTURBED_MAX: Duration = Duration::from_secs(600);
/// How many times as long as that one others may take, and at least how long.
const TIMES: u32 = 10;
const LEAST: Duration = Duration::from_secs(10);

/// Why there are no branches, or not all.
#[derive(Debug, thiserror::Error)]
pub enum BranchError {
    /// It is no checkpoint that can be branched.
    #[error("{directory}: {why}")]
    Source {
        /// The directory.
        directory: PathBuf,
        /// Why.
        why: String,
    },
    /// A plan cannot be read.
    #[error(transparent)]
    Unread(#[from] PlanError),
    /// A plan cannot be carried out.
    #[error("{path}: {source}")]
    Plan {
        /// Its file.
        path: PathBuf,
        /// Why.
        source: LiveError,
    },
    /// The report's directory has something in it.
    #[error("{0}: there is something in it already; choose another directory for the report")]
    Report(PathBuf),
    /// The checkpoint is not to be changed.
    #[error("{0}: it is inside the checkpoint; choose another directory for the report")]
    Inside(PathBuf),
    /// A file, or the process of a branch.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Without faults it must survive: then the checkpoint, or this machine, is at fault, or a deadline is too short.
    #[error("the branch without faults did not survive: {how}{kept}")]
    Undisturbed {
        /// How it ended.
        how: String,
        /// Where more is said, if it was kept.
        kept: String,
    },
    /// Who wanted them does so no more.
    #[error("stopped before all branches had ended")]
    Stopped,
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> BranchError + '_ {
    move |source| BranchError::Io {
        path: path.to_owned(),
        source,
    }
}

/// The output that a branch is to have.
#[derive(Clone, Debug, Default)]
pub enum Output {
    /// That of the branch without faults.
    #[default]
    Same,
    /// These bytes.
    Exactly(Vec<u8>),
    /// Any.
    Any,
}

/// What became of all branches.
#[derive(Clone, Debug, Serialize)]
pub struct Results {
    /// The checkpoint's directory.
    pub directory: PathBuf,
    /// Which checkpoint.
    pub round: u64,
    /// The branch without faults.
    pub undisturbed: Branch,
    /// One for each plan, in their order.
    pub branches: Vec<Branch>,
}

impl Results {
    /// How many have survived.
    pub fn survived(&self) -> usize {
        let of = self.branches.iter();
        of.filter(|branch| branch.verdict == Verdict::Survived)
            .count()
    }
}

/// A checkpoint, and what is to go wrong after it.
///
/// ```no_run
/// use snaprig_branch::{CkptBranch as _, Verdict};
/// use snaprig_supervisor::Ckpt;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let results = Ckpt::branch("checkpoints").seeds(0..20).run()?;
/// assert!(results.branches.iter().all(|branch| branch.verdict != Verdict::Hung));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Branches {
    exe: PathBuf,
    directory: PathBuf,
    round: Option<u64>,
    plans: Vec<(Option<PathBuf>, Plan)>,
    seeds: Range<u64>,
    hcas: u32,
    nodes: Option<u32>,
    models: String,
    output: Output,
    ignored: Vec<String>,
    time: Option<Duration>,
    jobs: Option<usize>,
    report: Option<PathBuf>,
}

impl Branches {
    /// Of the newest checkpoint in a directory: of a tree of processes (`ckpt launch --dir`), or of a job.
    pub fn of(directory: impl Into<PathBuf>) -> Self {
        Self {
            exe: snaprig_sdk::program::default(),
            directory: directory.into(),
            round: None,
            plans: Vec::new(),
            seeds: 0..0,
            hcas: 1,
            nodes: None,
            models: "A".into(),
            output: Output::Same,
            ignored: Vec::new(),
            time: None,
            jobs: None,
            report: None,
        }
    }

    /// The `snaprig` program (default: [`snaprig_sdk::program::default`]). A job needs the whole one.
    pub fn exe(mut self, exe: impl Into<PathBuf>) -> Self {
        self.exe = exe.into();
        self
    }

    /// This checkpoint, and not the newest.
    pub fn round(mut self, round: Option<u64>) -> Self {
        self.round = round;
        self
    }

    /// A branch with this plan, of scenario "verbs".
    pub fn plan(mut self, plan: Plan) -> Self {
        self.plans.push((None, plan));
        self
    }

    /// A branch with the plan in this file.
    pub fn plan_file(mut self, file: &Path) -> Result<Self, BranchError> {
        self.plans.push((Some(file.to_owned()), Plan::read(file)?));
        Ok(self)
    }

    /// A branch with a plan that is drawn, for each of these seeds.
    pub fn seeds(mut self, seeds: Range<u64>) -> Self {
        self.seeds = seeds;
        self
    }

    /// HCAs of a branch's fabric, or of each node (1 to 64; default 1).
    pub fn hcas(mut self, hcas: u32) -> Self {
        self.hcas = hcas;
        self
    }

    /// Nodes of a job that has nodes (default: as many as it had).
    pub fn nodes(mut self, nodes: Option<u32>) -> Self {
        self.nodes = nodes;
        self
    }

    /// A letter for the model of each HCA; the last one holds for all further HCAs (default: A).
    pub fn models(mut self, letters: impl Into<String>) -> Self {
        self.models = letters.into();
        self
    }

    /// What who has survived has printed.
    pub fn output(mut self, output: Output) -> Self {
        self.output = output;
        self
    }

    /// Lines of the output that have any of these texts in them do not count: what libraries say of faults.
    pub fn ignore(mut self, texts: impl IntoIterator<Item = String>) -> Self {
        self.ignored.extend(texts);
        self
    }

    /// How long a branch may take (default: ten times as long as the one without faults, and at least 10 s).
    pub fn time(mut self, time: Option<Duration>) -> Self {
        self.time = time;
        self
    }

    /// How many run at once (default: as many as there are processors for their processes).
    pub fn jobs(mut self, jobs: Option<usize>) -> Self {
        self.jobs = jobs;
        self
    }

    /// A directory for each branch's plan, output and standard error: empty, or not there yet.
    pub fn report(mut self, directory: Option<PathBuf>) -> Self {
        self.report = directory;
        self
    }

    /// Runs all of them.
    pub fn run(&self) -> Result<Results, BranchError> {
        self.run_watched(&|_, _| ControlFlow::Continue(()))
    }

    /// The same; who watches is told, often, how many of how many have ended, and may stop it: then all that runs ends.
    pub fn run_watched(
        &self,
        watch: &(dyn Fn(usize, usize) -> ControlFlow<()> + Sync),
    ) -> Result<Results, BranchError> {
        let source = Source::open(&self.directory, self.round)?;
        self.check(&source)?;
        let place = Files::make(self.report.as_deref(), &source)?;
        let exe = snaprig_sdk::program::find(&self.exe).map_err(io_error(&self.exe))?;
        let task = Task {
            directory: source.directory.clone(),
            what: self.what(&source),
            round: source.round,
            writes: source.writes.iter().cloned().collect(),
            scratch: PathBuf::new(),
            exe,
            hcas: self.hcas,
            models: self.models.clone(),
            plan: None,
        };
        let done = AtomicUsize::new(0);
        let total =
            1 + self.plans.len() + (self.seeds.end.saturating_sub(self.seeds.start)) as usize;
        let running = Running {
            task: &task,
            files: &place,
            is_stopped: AtomicBool::new(false),
            watch: &|| watch(done.load(Ordering::Relaxed), total),
        };
        let time = self.time.unwrap_or(UNDISTURBED_MAX);
        let plan = Plan::new(0, "verbs").with(&serde_json::json!({ "cards": self.hcas }));
        let (mut undisturbed, seen) = running.one(0, None, plan, time)?;
        done.fetch_add(1, Ordering::Relaxed);
        let folder = place.folder(0);
        let said = read(&folder.join("stdout"))?;
        if let Output::Exactly(expected) = &self.output
            && undisturbed.verdict == Verdict::Survived
            && let Some(wrong) = compare(&said, expected, &self.ignored)
        {
            undisturbed.verdict = wrong;
        }
        if undisturbed.verdict != Verdict::Survived {
            let (name, how) = (undisturbed.verdict.name(), &undisturbed.verdict);
            return Err(BranchError::Undisturbed {
                how: format!("{name}, {how}"),
                kept: self.report.as_ref().map_or(String::new(), |_| {
                    format!(" (its output and errors are in {})", folder.display())
                }),
            });
        }
        let plans = self.all_plans(&seen);
        for (file, plan) in &plans {
            check_as(plan, seen.going, file.as_deref())?;
        }
        let time = self.time.unwrap_or(LEAST.max(seen.took * TIMES));
        let expected = match &self.output {
            Output::Same => Some(said),
            Output::Exactly(bytes) => Some(bytes.clone()),
            Output::Any => None,
        };
        let one = |index: usize| {
            let (file, plan) = plans[index].clone();
            let number = index + 1;
            let (mut branch, _) = running.one(number, file, plan, time)?;
            if let (Verdict::Survived, Some(expected)) = (&branch.verdict, &expected) {
                let is = read(&place.folder(number).join("stdout"))?;
                branch.verdict = compare(&is, expected, &self.ignored).unwrap_or(Verdict::Survived);
            }
            done.fetch_add(1, Ordering::Relaxed);
            Ok(branch)
        };
        let jobs = self.jobs.unwrap_or_else(|| fitting(&seen));
        let branches = several(plans.len(), jobs, &running.is_stopped, &one)?;
        Ok(Results {
            directory: self.directory.clone(),
            round: source.round,
            undisturbed,
            branches,
        })
    }

    /// What can be said to be wrong before anything runs.
    fn check(&self, source: &Source) -> Result<(), BranchError> {
        let hcas = match self.what(source) {
            What::Nodes(count) => count.saturating_mul(self.hcas),
            What::Tree | What::Job(_) => self.hcas,
        };
        let is_there = (1..=HCAS_MAX as u32).contains(&hcas);
        if !is_there {
            let why = format!("branches with {hcas} HCAs: a fabric has 1 to {HCAS_MAX}");
            let directory = self.directory.clone();
            return Err(BranchError::Source { directory, why });
        }
        for (file, plan) in &self.plans {
            check_as(plan, Some((hcas, 0)), file.as_deref())?;
        }
        Ok(())
    }

    fn what(&self, source: &Source) -> What {
        match (&source.what, self.nodes) {
            (What::Nodes(_), Some(count)) => What::Nodes(count),
            (what, _) => what.clone(),
        }
    }

    fn all_plans(&self, seen: &Seen) -> Vec<(Option<PathBuf>, Plan)> {
        let (hcas, processes) = seen.going.unwrap_or((self.hcas, 0));
        let extent = Extent {
            hcas,
            processes,
            runs_ns: seen.ran.as_nanos() as u64,
        };
        let drawn = self.seeds.clone().map(|seed| (None, draw(seed, extent)));
        self.plans.iter().cloned().chain(drawn).collect()
    }
}

fn check_as(
    plan: &Plan,
    going: Option<(u32, u32)>,
    file: Option<&Path>,
) -> Result<(), BranchError> {
    let hcas = going.map_or(HCAS_MAX, |(hcas, _)| hcas as usize);
    check_plan(plan, hcas).map_err(|source| BranchError::Plan {
        path: file.unwrap_or(Path::new("plan")).to_owned(),
        source,
    })
}

/// How many branches there are processors for: programs that use HCAs never wait.
fn fitting(seen: &Seen) -> usize {
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let processes = seen
        .going
        .map_or(1, |(_, processes)| processes.max(1) as usize);
    (processors / processes).max(1)
}

fn read(path: &Path) -> Result<Vec<u8>, BranchError> {
    fs::read(path).map_err(io_error(path))
}

/// Does something with each of so many numbers, in several threads; in their order, or the first error.
fn several(
    count: usize,
    jobs: usize,
    is_stopped: &AtomicBool,
    one: &(dyn Fn(usize) -> Result<Branch, BranchError> + Sync),
) -> Result<Vec<Branch>, BranchError> {
    let (next, results) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        while !is_stopped.load(Ordering::Relaxed) {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= count {
                return;
            }
            let result = one(index);
            // Others need not begin.
            is_stopped.fetch_or(result.is_err(), Ordering::Relaxed);
            let mut results = results.lock().unwrap_or_else(PoisonError::into_inner);
            results.push((index, result));
        }
    };
    thread::scope(|scope| {
        for _ in 0..jobs.min(count) {
            scope.spawn(work);
        }
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

/// Where files of branches are.
struct Files {
    directory: PathBuf,
    _temporary: Option<TempDir>,
}

impl Files {
    fn make(report: Option<&Path>, source: &Source) -> Result<Self, BranchError> {
        let Some(report) = report else {
            let made = TempDir::with_prefix("snaprig-branches-");
            let made = made.map_err(io_error(&std::env::temp_dir()))?;
            let directory = made.path().to_owned();
            return Ok(Self {
                directory,
                _temporary: Some(made),
            });
        };
        let absolute = std::path::absolute(report).map_err(io_error(report))?;
        if absolute.starts_with(&source.directory) {
            return Err(BranchError::Inside(report.to_owned()));
        }
        fs::create_dir_all(&absolute).map_err(io_error(report))?;
        if fs::read_dir(&absolute)
            .map_err(io_error(report))?
            .next()
            .is_some()
        {
            return Err(BranchError::Report(report.to_owned()));
        }
        Ok(Self {
            directory: absolute,
            _temporary: None,
        })
    }

    fn folder(&self, number: usize) -> PathBuf {
        self.directory.join(folder_name(number))
    }
}

/// The name of a branch's directory in a report.
pub fn folder_name(number: usize) -> String {
    format!("branch-{number:02}")
}

/// What all branches have in common.
struct Running<'a> {
    task: &'a Task,
    files: &'a Files,
    is_stopped: AtomicBool,
    watch: &'a (dyn Fn() -> ControlFlow<()> + Sync),
}

impl Running<'_> {
    fn is_wanted(&self) -> bool {
        if (self.watch)().is_break() {
            self.is_stopped.store(true, Ordering::Relaxed);
        }
        !self.is_stopped.load(Ordering::Relaxed)
    }

    /// Runs a branch, without a look at its output.
    fn one(
        &self,
        number: usize,
        file: Option<PathBuf>,
        plan: Plan,
        time: Duration,
    ) -> Result<(Branch, Seen), BranchError> {
        let folder = self.files.folder(number);
        let run = || -> io::Result<Option<(Seen, Verdict)>> {
            fs::create_dir_all(&folder)?;
            let written = folder.join("plan.json");
            fs::write(&written, plan.to_text())?;
            // Of a short name, for there are sockets in it.
            let scratch = TempDir::with_prefix("snaprig-branch-")?;
            let task = Task {
                scratch: scratch.path().to_owned(),
                plan: (!plan.faults.is_empty()).then_some(written),
                ..self.task.clone()
            };
            let Some(seen) = run::run(&task, &folder, time, &|| self.is_wanted())? else {
                return Ok(None);
            };
            let verdict = run::verdict(&seen, &folder)?;
            Ok(Some((seen, verdict)))
        };
        let ran = run().map_err(io_error(&folder))?;
        let (seen, verdict) = ran.ok_or(BranchError::Stopped)?;
        let branch = Branch {
            number,
            plan,
            file,
            verdict,
            has_run: seen.going.is_some(),
            faults: seen.faults,
            seconds: seen.took.as_secs_f64(),
        };
        Ok((branch, seen))
    }
}
