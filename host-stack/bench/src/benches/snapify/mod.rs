//! `snaprig bench snapify`: what Snapify costs where nobody takes a snapshot (the paper's Figure 9: 1.5% on
//! average, 5% at worst).
//!
//! All workloads run with it and without it (`SNAPRIG_SNAPIFY=off`), in pairs on one card, round after round. Of two
//! pairs one has the run with it first and the next has it last, as the seed draws it. The host's program and the
//! rig have one processor for themselves and the card the others, in both runs alike, so that the scheduler has
//! nothing to choose. Each run is timed, and what all of it does on processors is counted (`counters`):
//! Snapify cannot cost less than that, and wake-ups disturb it less. What the pairs say, and how sure that is,
//! is in `estimate`.
//!
//! As JSON:
//!
//! ```text
//! { "seed": N, "pairs": N, "pinned": BOOL,
//!   "rows": [{ "workload": "MD", "measures": MEASURES }, ..],
//!   "average": { MEASURE: COST, .. } }
//! MEASURES  { "wall_ms": SAMPLES, "cpu_ms": SAMPLES, "instructions": SAMPLES }, those that there are here
//! SAMPLES   { "with": [NUMBER, ..], "without": [NUMBER, ..], "percent": COST }, a number a pair
//! COST      { "estimate": NUMBER, "from": NUMBER, "to": NUMBER }, percent of what it is without; 95 % sure
//! ```

mod counters;
mod estimate;

use std::{
    collections::BTreeMap,
    path::Path,
    process::{ExitCode, Stdio},
    time::Instant,
};

use clap::Args;
use serde::Serialize;
use snaprig_card_platform::Kind;
use snaprig_rig::Rig;
use snaprig_sim::Random;

use self::{
    counters::Counter,
    estimate::{Interval, intervals, median},
};
use crate::{
    AnyError, BenchWith,
    baselines::{pin_all, pin_to, processors},
    compile::Programs,
};

/// Snapify where it is not used.
pub static BENCH: BenchWith<Options> = BenchWith::new(
    "snapify",
    "What Snapify costs offload programs of which nobody takes a snapshot",
    run,
);

/// What the benchmark is told.
#[derive(Args)]
pub struct Options {
    /// Print JSON, with every sample
    #[arg(long)]
    json: bool,
    /// How many pairs of each workload
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u16).range(1..))]
    runs: u16,
    /// Draws the order of runs [default: another one each time]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Kind of cards [default: the best that works here]
    #[arg(long)]
    platform: Option<Kind>,
    /// Do this share of the usual work
    #[arg(long, value_name = "SHARE", default_value_t = 1.0, hide = true)]
    scale: f64,
}

/// A workload: its folder, its name, what it is told, and how much of that goes with the scale.
struct Workload {
    folder: &'static str,
    name: &'static str,
    arguments: &'static [&'static str],
    scaled: (&'static str, u32),
}

impl Workload {
    fn path(&self, name: &str) -> String {
        format!("workloads/{}/{name}", self.folder)
    }
}

macro_rules! workload {
    ($folder:literal, $name:literal, $arguments:expr, $scaled:literal, $usual:literal) => {
        Workload {
            folder: $folder,
            name: $name,
            arguments: &$arguments,
            scaled: ($scaled, $usual),
        }
    };
}

/// About a quarter of a second each, in several steps: what Snapify costs, it costs at each of them.
const WORKLOADS: [Workload; 8] = [
    workload!("md", "MD", ["--particles", "2000"], "--steps", 50),
    workload!("mc", "MC", ["--paths", "20000"], "--steps", 10000),
    workload!("sg", "SG", ["--size", "512"], "--iterations", 15),
    workload!("ss", "SS", ["--documents", "8192"], "--queries", 4800),
    workload!("km", "KM", ["--points", "100000"], "--iterations", 80),
    workload!(
        "mz",
        "LU-MZ",
        ["--solver", "0", "--grid", "36"],
        "--iterations",
        2
    ),
    workload!(
        "mz",
        "SP-MZ",
        ["--solver", "1", "--grid", "36"],
        "--iterations",
        20
    ),
    workload!(
        "mz",
        "BT-MZ",
        ["--solver", "2", "--grid", "36"],
        "--iterations",
        10
    ),
];

macro_rules! sources {
    ($($path:literal),* $(,)?) => {
        [$(($path, include_str!(concat!("../../../../../fixtures/", $path)))),*]
    };
}

const SOURCES: [(&str, &str); 19] = sources![
    "coi/host.h",
    "coi/sink.h",
    "workloads/workload.h",
    "workloads/md/host.c",
    "workloads/md/sink.c",
    "workloads/mc/host.c",
    "workloads/mc/sink.c",
    "workloads/sg/host.c",
    "workloads/sg/sink.c",
    "workloads/ss/host.c",
    "workloads/ss/sink.c",
    "workloads/km/host.c",
    "workloads/km/sink.c",
    "workloads/mz/host.c",
    "workloads/mz/sink.c",
    "workloads/mz/zone.h",
    "workloads/mz/bt.c",
    "workloads/mz/lu.c",
    "workloads/mz/sp.c",
];

/// Most that it may cost one workload, and all of them on average.
const WORST_PERCENT: f64 = 1.0;
const AVERAGE_PERCENT: f64 = 0.5;

/// What is measured.
const WALL: &str = "wall_ms";
const CPU: &str = "cpu_ms";
const INSTRUCTIONS: &str = "instructions";

/// What was measured of one run.
type Sample = BTreeMap<&'static str, f64>;

#[derive(Serialize)]
struct Report {
    seed: u64,
    pairs: u16,
    pinned: bool,
    rows: Vec<Row>,
    average: BTreeMap<&'static str, Interval>,
}

#[derive(Serialize)]
struct Row {
    workload: &'static str,
    measures: BTreeMap<&'static str, Samples>,
}

#[derive(Serialize)]
struct Samples {
    with: Vec<f64>,
    without: Vec<f64>,
    percent: Interval,
}

/// Runs the benchmark.
fn run(options: &Options) -> Result<ExitCode, AnyError> {
    let seed = options.seed.unwrap_or_else(|| std::process::id().into());
    eprintln!("seed {seed}");
    let programs = compile()?;
    let counters = counters();
    let here = processors()?;
    let is_pinned = here.len() > 1;
    let (host, card) = here.split_at(usize::from(is_pinned));
    // What the card is made of inherits that.
    pin_to(card)?;
    // More threads than processors would be at the mercy of the host's scheduler.
    let rig = Rig::builder()
        .exe(std::env::current_exe()?)
        .platform(options.platform)
        .cores(card.len())
        .start()?;
    if is_pinned {
        pin_all(host)?;
    }
    let measure = |workload: &Workload, on: bool| {
        let before = read(&counters)?;
        let wall = time(&programs, workload, rig.dir(), on, options.scale)?;
        let mut sample = read(&counters)?;
        for (name, value) in &mut sample {
            *value -= before.get(name).copied().unwrap_or_default();
        }
        sample.insert(WALL, wall);
        Ok::<Sample, AnyError>(sample)
    };
    for workload in &WORKLOADS {
        // The first one brings its files to the card.
        measure(workload, true)?;
    }
    let mut order = Random::new(seed, "order");
    let mut is_first = [false; WORKLOADS.len()];
    let mut pairs: Vec<Vec<[Sample; 2]>> = vec![Vec::new(); WORKLOADS.len()];
    for round in 0..options.runs {
        let all = WORKLOADS.iter().zip(&mut pairs).zip(&mut is_first);
        for ((workload, pairs), is_first) in all {
            *is_first = match round % 2 {
                0 => order.one_in(2),
                _ => !*is_first,
            };
            let [one, other] = [
                measure(workload, *is_first)?,
                measure(workload, !*is_first)?,
            ];
            pairs.push(if *is_first {
                [one, other]
            } else {
                [other, one]
            });
        }
    }
    let report = report(seed, is_pinned, &pairs);
    match options.json {
        true => println!("{}", serde_json::to_string_pretty(&report)?),
        false => print!("{}", table(&report)),
    }
    Ok(ExitCode::SUCCESS)
}

/// What can be counted here: name, counter, and how much of it is one.
fn counters() -> Vec<(&'static str, Counter, f64)> {
    let cpu = Counter::cpu_time().map(|counter| (CPU, counter, 1e6));
    let instructions = Counter::instructions().map(|counter| (INSTRUCTIONS, counter, 1.0));
    [cpu, instructions].into_iter().flatten().collect()
}

fn read(counters: &[(&'static str, Counter, f64)]) -> Result<Sample, AnyError> {
    let read = |(name, counter, one): &(&'static str, Counter, f64)| {
        Ok((*name, counter.read()? as f64 / one))
    };
    counters.iter().map(read).collect()
}

/// Of each workload pairs of samples: with it and without.
fn report(seed: u64, pinned: bool, pairs: &[Vec<[Sample; 2]>]) -> Report {
    let row = |workload: &Workload| Row {
        workload: workload.name,
        measures: BTreeMap::new(),
    };
    let mut rows: Vec<_> = WORKLOADS.iter().map(row).collect();
    let mut average = BTreeMap::new();
    for measure in [WALL, CPU, INSTRUCTIONS] {
        let value = |sample: &Sample| sample.get(measure).copied();
        let of = |which: usize| {
            let all = pairs.iter().map(|pairs| {
                let samples = pairs.iter().map(|pair| value(&pair[which]));
                samples.collect::<Option<Vec<_>>>()
            });
            all.collect::<Option<Vec<_>>>()
        };
        let (Some(with), Some(without)) = (of(0), of(1)) else {
            continue;
        };
        let ratios = with.iter().zip(&without).map(|(with, without)| {
            let pairs = with.iter().zip(without);
            pairs.map(|(with, without)| (with / without).ln()).collect()
        });
        let (all, mean) = intervals(&ratios.collect::<Vec<_>>(), seed);
        average.insert(measure, percent(mean));
        for (((row, cost), with), without) in rows.iter_mut().zip(all).zip(with).zip(without) {
            let percent = percent(cost);
            let samples = Samples {
                with,
                without,
                percent,
            };
            row.measures.insert(measure, samples);
        }
    }
    Report {
        seed,
        pairs: pairs.first().map_or(0, |pairs| pairs.len() as u16),
        pinned,
        rows,
        average,
    }
}

/// Of the logarithm of a ratio.
fn percent(of: Interval) -> Interval {
    let percent = |logarithm: f64| 100.0 * logarithm.exp_m1();
    Interval {
        estimate: percent(of.estimate),
        from: percent(of.from),
        to: percent(of.to),
    }
}

fn table(report: &Report) -> String {
    let line = |name: &str, without: &str, costs: [String; 2], aim: &str| {
        let [wall, cpu] = costs;
        format!("{name:<8} {without:>9}  {wall:<26}{cpu:<26}{aim}\n")
    };
    let spread = |cost: Option<&Interval>| {
        let Some(Interval { estimate, from, to }) = cost else {
            return "      -".into();
        };
        format!("{estimate:>6.2} % ({from:.2}..{to:.2})")
    };
    let costs = ["  more time, 95% sure", "  more CPU time"].map(str::to_owned);
    let mut text = line("workload", "without", costs, "aim");
    for row in &report.rows {
        let wall = row.measures.get(WALL);
        let mut without = wall.map_or_else(Vec::new, |wall| wall.without.clone());
        let without = format!("{:.1} ms", median(&mut without));
        let costs = [WALL, CPU].map(|of| spread(row.measures.get(of).map(|of| &of.percent)));
        text += &line(row.workload, &without, costs, &format!("<={WORST_PERCENT}"));
    }
    let costs = [WALL, CPU].map(|of| spread(report.average.get(of)));
    text + &line("average", "", costs, &format!("<={AVERAGE_PERCENT}"))
}

/// Hosts and sinks.
fn compile() -> Result<Programs, AnyError> {
    let programs = Programs::new()?;
    for (path, text) in SOURCES {
        programs.write(path, text)?;
    }
    let mut done = Vec::new();
    for workload in &WORKLOADS {
        let folder = workload.folder;
        if done.contains(&folder) {
            continue;
        }
        done.push(folder);
        let is_sink = |path: &&str| {
            let name = path.strip_prefix(&format!("workloads/{folder}/"));
            name.is_some_and(|name| name.ends_with(".c") && name != "host.c")
        };
        let paths = SOURCES.iter().map(|(path, _)| *path);
        let sink: Vec<_> = paths
            .filter(is_sink)
            .map(|path| programs.path(path))
            .collect();
        let to = |name| programs.path(workload.path(name));
        let more = ["-lcoi_host", "-lpthread"];
        programs.gcc(&to("host"), &[to("host.c")], &more)?;
        let more = ["-fopenmp", "-rdynamic", "-lcoi_device", "-lm"];
        programs.gcc(&to("sink"), &sink, &more)?;
    }
    Ok(programs)
}

/// How long the workload takes, in milliseconds.
fn time(
    programs: &Programs,
    workload: &Workload,
    rig: &Path,
    with_snapify: bool,
    scale: f64,
) -> Result<f64, AnyError> {
    let (name, usual) = workload.scaled;
    let steps = (f64::from(usual) * scale).ceil();
    let mut command = programs.command(&programs.path(workload.path("host")), rig)?;
    command
        .arg(programs.path(workload.path("sink")))
        .args(workload.arguments)
        .args([name, &steps.to_string()])
        .env("SNAPRIG_SNAPIFY", if with_snapify { "on" } else { "off" })
        .stdout(Stdio::null())
        .stderr(Stdio::inherit());
    let begun = Instant::now();
    let status = command.status()?;
    let took = begun.elapsed();
    match status.success() {
        true => Ok(took.as_secs_f64() * 1000.0),
        false => Err(format!("{}: {status}", workload.name).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(wall: f64, cpu: f64) -> Sample {
        BTreeMap::from([(WALL, wall), (CPU, cpu)])
    }

    #[test]
    fn a_table_fits_eighty_columns() {
        let pair = |wall, cpu| [sample(wall, cpu), sample(500.0, 400.0)];
        let pairs = vec![pair(512.3, 401.0), pair(498.0, 402.0), pair(505.0, 400.0)];
        let text = table(&report(1, true, &vec![pairs; WORKLOADS.len()]));
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
        let lines: Vec<_> = text.lines().collect();
        insta::assert_snapshot!([lines[0], lines[1], lines[9]].join("\n"), @r"
        workload   without    more time, 95% sure       more CPU time           aim
        MD        500.0 ms    1.01 % (-0.40..2.46)      0.25 % (0.00..0.50)     <=1
        average               1.01 % (-0.40..2.46)      0.25 % (0.00..0.50)     <=0.5
        ");
    }

    #[test]
    fn what_is_not_counted_is_missing() {
        let pair = || [(); 2].map(|()| BTreeMap::from([(WALL, 1.0)]));
        let report = report(1, true, &vec![vec![pair()]; WORKLOADS.len()]);
        let measures = report.rows.iter().flat_map(|row| row.measures.keys());
        assert!(measures.chain(report.average.keys()).all(|of| *of == WALL));
        assert!(table(&report).contains("0.00 % (0.00..0.00)"));
    }
}
