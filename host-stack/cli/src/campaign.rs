//! `snaprig campaign`, `snaprig repro`, `snaprig faults`: fault campaigns in the simulator, and on real rigs.

use std::{
    io::IsTerminal,
    ops::ControlFlow,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use snaprig_campaign::{
    campaign::{self, Found, Plans, Results, Runner, Simulator},
    exhaustive,
    report::Failure,
    scenario::{Broken, Canary, Finished, Until, Watch},
};
use snaprig_card_platform::Kind;
use snaprig_rig_campaign::{RigRunner, plan as rig_plans};
use snaprig_sim::{Plan, Point, Trace, trace::Mark};

use crate::AnyError;

/// Failures that are shown; the report has more.
const SHOWN_MAX: usize = 5;
/// Seeds of one campaign: at the best speed, days of a large machine.
const SEEDS_MAX: u64 = 10_000_000_000;
/// What was asked for makes no sense.
const USAGE: u8 = 2;

/// What `campaign` is told.
#[derive(Args)]
pub struct Options {
    /// Seeds: from A up to, but not including, B [default: 0..2000, with --rig 0..60]
    #[arg(long, value_name = "A..B", value_parser = range)]
    seeds: Option<std::ops::Range<u64>>,
    /// Instead of drawn faults: every kind at every occurrence of every fault point
    #[arg(long, conflicts_with = "seeds")]
    exhaustive: bool,
    /// Draw plans of this scenario only; repeat it for several [default: all]
    #[arg(long, value_name = "NAME", value_parser = scenario,
          conflicts_with_all = ["exhaustive", "rig", "plan"])]
    scenario: Vec<&'static str>,
    /// With --exhaustive: every pair of deaths at the steps of Snapify, too
    #[arg(long, requires = "exhaustive")]
    pairs: bool,
    /// In simulation: thousands of runs a second (the default)
    #[arg(long, conflicts_with = "rig")]
    sim: bool,
    /// On real rigs: real processes, real SIGKILL (about one run a second)
    #[arg(long, conflicts_with_all = ["exhaustive", "canary"])]
    rig: bool,
    /// With --rig: kvm or ptrace [default: the best that works here]
    #[arg(long, requires = "rig")]
    platform: Option<Kind>,
    /// Run this plan only
    #[arg(long, value_name = "FILE", conflicts_with_all = ["seeds", "exhaustive"])]
    plan: Option<PathBuf>,
    /// Threads [default: as many as there are processors, with --rig 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    jobs: Option<u16>,
    /// Begin nothing new after so many seconds
    #[arg(long, value_name = "SECONDS")]
    time: Option<u64>,
    /// Run part I of N, counted from 0
    #[arg(long, value_name = "I/N", default_value = "0/1", value_parser = shard)]
    shard: (u64, u64),
    /// Keep results and failures in DIR, and go on where an earlier run was interrupted
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,
    /// Plant a bug, which the campaign must find
    #[arg(long, value_name = "NAME", value_parser = canary)]
    canary: Option<Canary>,
    /// Print one JSON document instead of a table
    #[arg(long)]
    json: bool,
}

/// What `campaign merge` is told.
#[derive(Args)]
pub struct Merge {
    /// The reports of the shards
    #[arg(required = true, value_name = "DIR")]
    reports: Vec<PathBuf>,
    /// Print one JSON document instead of a table
    #[arg(long)]
    json: bool,
}

/// What `repro` is told.
#[derive(Args)]
pub struct Repro {
    /// A plan, or the directory of a failure
    #[arg(value_name = "DIR|plan.json")]
    plan: PathBuf,
    /// On a real rig (a failure's directory knows where it was found)
    #[arg(long, conflicts_with_all = ["canary", "events", "until"])]
    rig: bool,
    /// With --rig: kvm or ptrace [default: the best that works here]
    #[arg(long, requires = "rig")]
    platform: Option<Kind>,
    /// With a planted bug (a failure's directory knows with which it was found)
    #[arg(long, value_name = "NAME", value_parser = canary)]
    canary: Option<Canary>,
    /// Print every event
    #[arg(long)]
    events: bool,
    /// Stop after so many events, or where a fault point is first reached, and print the state of
    /// every machine
    #[arg(long, value_name = "N|POINT", value_parser = until)]
    until: Option<Until>,
}

fn scenario(text: &str) -> Result<&'static str, String> {
    let names: Vec<_> = snaprig_campaign::standard().names().collect();
    let found = names.iter().copied().find(|name| *name == text);
    found.ok_or_else(|| format!("no such scenario; there are {}", names.join(", ")))
}

fn canary(text: &str) -> Result<Canary, String> {
    snaprig_campaign::standard().canary(text)
}

fn until(text: &str) -> Result<Until, String> {
    if let Ok(count) = text.parse() {
        return Ok(Until::Event(count));
    }
    let known = all_points(false).iter().any(|point| point.name == text);
    known
        .then(|| Until::Point(text.into()))
        .ok_or_else(|| format!("{text}: not a number, and no fault point; see `snaprig faults`"))
}

/// What `faults` is told.
#[derive(Args)]
pub struct Faults {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// `A..B`.
pub fn range(text: &str) -> Result<std::ops::Range<u64>, String> {
    let parse = |text: &str| text.parse().ok();
    let range = text
        .split_once("..")
        .and_then(|(start, end)| Some(parse(start)?..parse(end)?));
    let range = range
        .filter(|range| range.start < range.end)
        .ok_or_else(|| format!("{text}: not a range; write 0..2000"))?;
    match range.end - range.start <= SEEDS_MAX {
        true => Ok(range),
        false => Err(format!(
            "{text}: more than {SEEDS_MAX} seeds; run a part of them"
        )),
    }
}

fn shard(text: &str) -> Result<(u64, u64), String> {
    let shard = text
        .split_once('/')
        .and_then(|(index, count)| Some((index.parse().ok()?, count.parse().ok()?)));
    shard
        .filter(|(index, count)| index < count)
        .ok_or_else(|| format!("{text}: not a shard; write 0/4, 1/4, 2/4 or 3/4"))
}

/// Runs a campaign. The exit code says what kind of failure was found, if one was.
pub fn run_campaign(options: &Options) -> Result<ExitCode, AnyError> {
    let plans = match plans(options) {
        Ok(plans) => plans,
        Err(error) => {
            crate::report::error(&*error);
            return Ok(ExitCode::from(USAGE));
        }
    };
    if options.canary.is_none() && !options.rig {
        prove_canaries()?;
    }
    let processors = || Some(std::thread::available_parallelism().ok()?.get());
    let jobs = options
        .jobs
        .map(usize::from)
        .or_else(|| if options.rig { None } else { processors() });
    let campaign_options = campaign::Options {
        plans,
        shard: options.shard,
        jobs: jobs.unwrap_or(1),
        time: options.time.map(Duration::from_secs),
        report: options.report.clone(),
    };
    let rigs;
    let simulator = Simulator {
        scenarios: options.scenario.clone(),
        canary: options.canary,
        counting: options.exhaustive,
        ..Simulator::default()
    };
    let runner: &dyn Runner = match options.rig {
        true => {
            rigs = RigRunner::new(options.platform);
            &rigs
        }
        false => &simulator,
    };
    let bar = progress_bar();
    let begun = std::time::Instant::now();
    let done = campaign::campaign(runner, &campaign_options, &|done, total| {
        bar.set_length(total);
        bar.set_position(done);
        ControlFlow::Continue(())
    });
    bar.finish_and_clear();
    let results = match done {
        Ok(results) => results,
        // Not a failure of what is tested, whose exit codes are others.
        Err(error) => {
            crate::report::error(&error);
            return Ok(ExitCode::from(USAGE));
        }
    };
    let points = match options.rig {
        true => rig_plans::points(),
        false => snaprig_campaign::standard().points(&options.scenario),
    };
    show(&results, &points, options.json, Some(begun.elapsed()))?;
    if let (Some(report), false) = (&options.report, results.found.is_empty()) {
        for found in results.found.iter().take(SHOWN_MAX) {
            let folder = report.join("failures").join(found.number.to_string());
            eprintln!("snaprig repro {}", folder.display());
        }
    }
    Ok(exit(&results))
}

/// A campaign that does not find planted bugs finds nothing.
fn prove_canaries() -> Result<(), AnyError> {
    let unheard = campaign::unheard_canaries(snaprig_campaign::standard());
    let names: Vec<_> = unheard.iter().map(|canary| canary.name).collect();
    match names.is_empty() {
        true => Ok(()),
        false => Err(format!("planted bugs that are not found: {}", names.join(", ")).into()),
    }
}

fn plans(options: &Options) -> Result<Plans, AnyError> {
    if let Some(path) = &options.plan {
        return Ok(Plans::Listed(vec![read(path, options.rig)?]));
    }
    if !options.exhaustive {
        let seeds = if options.rig { 0..60 } else { 0..2000 };
        return Ok(Plans::Drawn(options.seeds.clone().unwrap_or(seeds)));
    }
    let mut plans = exhaustive::single(snaprig_campaign::standard())?;
    if options.pairs {
        plans.extend(exhaustive::pairs(snaprig_campaign::standard()));
    }
    Ok(Plans::Listed(plans))
}

/// A plan from a file, if it makes sense.
fn read(path: &Path, rig: bool) -> Result<Plan, AnyError> {
    let plan = Plan::read(path)?;
    let checked = match rig {
        true => rig_plans::check(&plan),
        false => snaprig_campaign::standard().check(&plan),
    };
    checked.map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(plan)
}

fn all_points(rig: bool) -> Vec<Point> {
    match rig {
        true => rig_plans::points(),
        false => snaprig_campaign::standard().points(&[]),
    }
}

/// Adds up the reports of shards.
pub fn merge(options: &Merge) -> Result<ExitCode, AnyError> {
    let results = match campaign::merge(&options.reports) {
        Ok(results) => results,
        Err(error) => {
            crate::report::error(&error);
            return Ok(ExitCode::from(USAGE));
        }
    };
    let rig = results.trace_hash == 0;
    show(&results, &all_points(rig), options.json, None)?;
    Ok(exit(&results))
}

fn exit(results: &Results) -> ExitCode {
    let worst = results.found.iter().map(|found| found.class).max();
    worst.map_or(ExitCode::SUCCESS, |class| ExitCode::from(class.exit_code()))
}

fn progress_bar() -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} runs, {per_sec}, {eta} left")
        .expect("the template is a constant");
    ProgressBar::new(0).with_style(style)
}

fn show(
    results: &Results,
    points: &[Point],
    json: bool,
    elapsed: Option<Duration>,
) -> Result<(), AnyError> {
    if json {
        let mut shown = serde_json::to_value(results)?;
        if !results.states.is_empty() {
            // Their hashes are of no use to anybody else.
            shown["states"] = results.states.len().into();
        }
        println!("{}", serde_json::to_string_pretty(&shown)?);
        return Ok(());
    }
    print!("{}", table(results, points));
    if let Some(elapsed) = elapsed {
        let rate = results.runs as f64 / elapsed.as_secs_f64();
        println!("{rate:.*} runs a second", usize::from(rate < 10.0));
    }
    Ok(())
}

fn table(results: &Results, points: &[Point]) -> String {
    let mut text = format!(
        "  {:<24} {:>12} {:>8}\n",
        "fault point", "reached", "faults"
    );
    for point in points {
        let (times, faults) = results.reached.get(point.name).copied().unwrap_or_default();
        text += &format!("  {:<24} {times:>12} {faults:>8}\n", point.name);
    }
    let reached = |point: &&Point| !results.reached.contains_key(point.name);
    for point in points.iter().filter(reached) {
        text += &format!("never reached: {}\n", point.name);
    }
    for Found {
        number,
        invariant,
        how,
        plan,
        ..
    } in results.found.iter().take(SHOWN_MAX)
    {
        let faults = plan.faults.len();
        text += &format!("{number}: {invariant}: {how} (shrunk to {faults} faults)\n");
    }
    if !results.states.is_empty() {
        text += &format!(
            "{} states of the protocols' machines\n",
            results.states.len()
        );
    }
    text += &format!(
        "{} runs, {} faults, {} violations",
        results.runs, results.faults, results.failures
    );
    if results.trace_hash != 0 {
        text += &format!(", trace hash {:016x}", results.trace_hash);
    }
    text + "\n"
}

/// Runs a plan again, and says whether it still fails, and the same way.
pub fn repro(options: &Repro) -> Result<ExitCode, AnyError> {
    // A failure's directory knows how it was found.
    let known = match options.plan.is_dir() {
        true => Failure::read(&options.plan).ok(),
        false => None,
    };
    let path = match options.plan.is_dir() {
        true => options.plan.join("plan.json"),
        false => options.plan.clone(),
    };
    let planted = known.as_ref().and_then(|known| known.canary.as_deref());
    let planted = planted.map(|name| snaprig_campaign::standard().canary(name));
    let canary = options.canary.or(planted.transpose()?);
    let rig = options.rig || known.as_ref().is_some_and(|known| known.rig);
    let plan = match read(&path, rig) {
        Ok(plan) => plan,
        Err(error) => {
            crate::report::error(&*error);
            return Ok(ExitCode::from(USAGE));
        }
    };
    if rig {
        let (ran, log) = RigRunner::new(options.platform).replay(&plan);
        println!("{}", log.trim_end());
        happened(ran.faults, &plan);
        return Ok(verdict(ran.broken, known.as_ref(), "on a real rig"));
    }
    let watch = Watch {
        trace: match options.events || options.until.is_some() {
            true => Trace::recording(),
            false => Trace::default(),
        },
        until: options.until.clone(),
        ..Watch::with(canary)
    };
    let Finished { outcome, broken } = snaprig_campaign::standard().run(&plan, watch)?;
    if options.events {
        print_events(&outcome.trace, &outcome.processes);
    }
    if let Some(state) = &outcome.description {
        print!("{state}");
        return Ok(ExitCode::SUCCESS);
    }
    println!("trace hash {:016x}", outcome.trace.hash());
    happened(outcome.faults, &plan);
    let ending = format!("{:?}", outcome.ending);
    Ok(verdict(broken, known.as_ref(), &ending))
}

fn happened(faults: u64, plan: &Plan) {
    println!(
        "faults that happened: {faults}; in the plan: {}",
        plan.faults.len()
    );
}

/// Says whether a plan still fails, and, if it is known how it did, whether it is the same.
fn verdict(broken: Option<Broken>, known: Option<&Failure>, ending: &str) -> ExitCode {
    let Some(broken) = broken else {
        println!("holds: no invariant is broken ({ending})");
        if let Some(known) = known {
            println!(
                "it fails no more; it did: {}: {}",
                known.invariant, known.how
            );
        }
        return ExitCode::SUCCESS;
    };
    println!("broken: {}: {}", broken.invariant, broken.how);
    match known {
        Some(known) if known.invariant == broken.invariant => println!("it fails the same way"),
        Some(known) => println!(
            "it fails another way; it did: {}: {}",
            known.invariant, known.how
        ),
        None => {}
    }
    ExitCode::from(broken.class.exit_code())
}

fn print_events(trace: &Trace, processes: &[String]) {
    for item in trace.record() {
        let process = &processes[usize::from(item.at.0)];
        let mark = match item.mark {
            Mark::Event => "",
            Mark::Fault => "FAULT ",
            Mark::Broken => "BROKEN ",
        };
        println!("{:>12} {process:<8} {mark}{}", item.now_ns, item.what);
    }
}

#[derive(Serialize)]
struct FaultPoint {
    name: &'static str,
    what: &'static str,
    kinds: Vec<&'static str>,
}

/// Lists all fault points with the kinds that apply.
pub fn faults(options: &Faults) -> Result<ExitCode, AnyError> {
    let of_fabrics = snaprig_verbs::daemon::faults::ALL.iter().copied();
    let of_checkpoints = snaprig_supervisor::faults::all();
    let points = all_points(false).into_iter().chain(of_fabrics);
    let of_nodes = crate::ppmr::health_plan::ALL.iter().copied();
    let points = points.chain(of_checkpoints).chain(of_nodes);
    let points = points.map(|point| FaultPoint {
        name: point.name,
        what: point.what,
        kinds: point.kinds.iter().map(|kind| kind.name()).collect(),
    });
    if options.json {
        println!(
            "{}",
            serde_json::to_string_pretty(&points.collect::<Vec<_>>())?
        );
        return Ok(ExitCode::SUCCESS);
    }
    for point in points {
        println!("{:<22} {}", point.name, point.what);
        for line in wrapped(&point.kinds) {
            println!("{:<22} {line}", "");
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Words in lines that fit beside a fault point's name on 80 columns.
fn wrapped(words: &[&str]) -> Vec<String> {
    const COLUMNS: usize = 57;
    let mut lines: Vec<String> = Vec::new();
    for (index, word) in words.iter().enumerate() {
        let comma = if index + 1 < words.len() { "," } else { "" };
        match lines.last_mut() {
            Some(line) if line.len() + 2 + word.len() <= COLUMNS => {
                *line += &format!(" {word}{comma}")
            }
            _ => lines.push(format!("{word}{comma}")),
        }
    }
    lines
}
