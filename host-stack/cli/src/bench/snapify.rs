//! `snaprig bench snapify`: what Snapify costs where nobody takes a snapshot (the paper's Figure 9: 1.5% on
//! average, 5% at worst). All workloads run with it and without it (`SNAPRIG_SNAPIFY=off`), in pairs on
//! one card, now the one first and now the other.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    time::Instant,
};

use clap::Args;
use serde::Serialize;
use snaprig_card::platform::Kind;
use snaprig_rig::{Rig, sdk::Sdk};

use super::compile::gcc;
use crate::AnyError;

/// What the benchmark is told.
#[derive(Args)]
pub struct Options {
    /// Print JSON, with every sample
    #[arg(long)]
    json: bool,
    /// How many pairs of each workload
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = clap::value_parser!(u16).range(1..))]
    runs: u16,
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

/// About half a second each, in several steps: what Snapify costs, it costs at each of them.
const WORKLOADS: [Workload; 8] = [
    workload!("md", "MD", ["--particles", "2000"], "--steps", 100),
    workload!("mc", "MC", ["--paths", "20000"], "--steps", 20000),
    workload!("sg", "SG", ["--size", "512"], "--iterations", 30),
    workload!("ss", "SS", ["--documents", "8192"], "--queries", 9600),
    workload!("km", "KM", ["--points", "100000"], "--iterations", 160),
    workload!(
        "mz",
        "LU-MZ",
        ["--solver", "0", "--grid", "36"],
        "--iterations",
        4
    ),
    workload!(
        "mz",
        "SP-MZ",
        ["--solver", "1", "--grid", "36"],
        "--iterations",
        40
    ),
    workload!(
        "mz",
        "BT-MZ",
        ["--solver", "2", "--grid", "36"],
        "--iterations",
        20
    ),
];

macro_rules! sources {
    ($($path:literal),* $(,)?) => {
        [$(($path, include_str!(concat!("../../../../fixtures/", $path)))),*]
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

#[derive(Serialize)]
struct Report {
    runs: u16,
    rows: Vec<Row>,
    average: Cost,
}

#[derive(Serialize)]
struct Row {
    workload: &'static str,
    with_ms: Vec<f64>,
    without_ms: Vec<f64>,
    cost: Cost,
}

/// In percent of the time without it.
#[derive(Clone, Copy, Serialize)]
struct Cost {
    median: f64,
    /// The median is in between with a confidence of 95%.
    from: f64,
    to: f64,
    aim: f64,
}

/// Runs the benchmark.
pub fn run(options: &Options) -> Result<ExitCode, AnyError> {
    let programs = Programs::compile()?;
    // More threads than processors would be at the mercy of the host's scheduler.
    let cores = std::thread::available_parallelism()?.get();
    let rig = Rig::builder()
        .exe(std::env::current_exe()?)
        .platform(options.platform)
        .cores(cores)
        .start()?;
    let mut times: Vec<(Vec<f64>, Vec<f64>)> = vec![Default::default(); WORKLOADS.len()];
    for run in 0..options.runs {
        for (workload, (with, without)) in WORKLOADS.iter().zip(&mut times) {
            let mut measure = |on: bool| -> Result<(), AnyError> {
                let milliseconds = programs.run(workload, rig.dir(), on, options.scale)?;
                match on {
                    true => with.push(milliseconds),
                    false => without.push(milliseconds),
                }
                Ok(())
            };
            let first = run % 2 == 0;
            measure(first)?;
            measure(!first)?;
        }
    }
    let report = report(options.runs, times);
    match options.json {
        true => println!("{}", serde_json::to_string_pretty(&report)?),
        false => print!("{}", table(&report)),
    }
    Ok(ExitCode::SUCCESS)
}

fn report(runs: u16, times: Vec<(Vec<f64>, Vec<f64>)>) -> Report {
    let percent = |with: &f64, without: &f64| 100.0 * (with / without - 1.0);
    let mut sums = vec![0.0; usize::from(runs)];
    let mut rows = Vec::new();
    for (workload, (with_ms, without_ms)) in WORKLOADS.iter().zip(times) {
        let pairs = with_ms.iter().zip(&without_ms);
        let costs: Vec<_> = pairs
            .map(|(with, without)| percent(with, without))
            .collect();
        for (sum, cost) in sums.iter_mut().zip(&costs) {
            *sum += cost / WORKLOADS.len() as f64;
        }
        rows.push(Row {
            workload: workload.name,
            with_ms,
            without_ms,
            cost: cost(costs, WORST_PERCENT),
        });
    }
    Report {
        runs,
        rows,
        average: cost(sums, AVERAGE_PERCENT),
    }
}

/// Median and confidence interval, by order statistics: whatever the distribution, half of the samples are on either
/// side of the median, but for a deviation of sqrt(n) / 2.
fn cost(mut percents: Vec<f64>, aim: f64) -> Cost {
    percents.sort_by(f64::total_cmp);
    let last = percents.len().saturating_sub(1) as f64;
    let spread = 0.98 * (percents.len() as f64).sqrt();
    let at = |place: f64| {
        let place = place.clamp(0.0, last) as usize;
        percents.get(place).copied().unwrap_or(f64::NAN)
    };
    Cost {
        median: at(last / 2.0),
        from: at((last / 2.0 - spread).floor()),
        to: at((last / 2.0 + spread).ceil()),
        aim,
    }
}

fn table(report: &Report) -> String {
    let mut text = format!(
        "{:<8} {:>11} {:>11}     {:<28}  aim\n",
        "workload", "with", "without", "cost of Snapify, 95% sure"
    );
    let spread =
        |cost: &Cost| format!("{:>6.2} %  ({:.2}..{:.2})", cost.median, cost.from, cost.to);
    let middle = |samples: &[f64]| cost(samples.to_vec(), 0.0).median;
    for row in &report.rows {
        let (with, without) = (middle(&row.with_ms), middle(&row.without_ms));
        text += &format!(
            "{:<8} {with:>8.1} ms {without:>8.1} ms     {:<28}  <={}\n",
            row.workload,
            spread(&row.cost),
            row.cost.aim
        );
    }
    let average = spread(&report.average);
    text + &format!("{:<37}{average:<28}  <={}\n", "average", report.average.aim)
}

/// Hosts and sinks, compiled here.
struct Programs {
    directory: tempfile::TempDir,
    sdk: Sdk,
}

impl Programs {
    fn compile() -> Result<Self, AnyError> {
        let programs = Self {
            directory: tempfile::tempdir()?,
            sdk: Sdk::of(&std::env::current_exe()?)?,
        };
        for (path, text) in SOURCES {
            let path = programs.directory.path().join(path);
            fs::create_dir_all(path.parent().ok_or("a path in a directory")?)?;
            fs::write(path, text)?;
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
            let sink: Vec<_> = SOURCES
                .iter()
                .map(|(path, _)| *path)
                .filter(is_sink)
                .map(|path| programs.directory.path().join(path))
                .collect();
            let to = |name| programs.path(folder, name);
            let more = ["-lcoi_host", "-lpthread"];
            gcc(&programs.sdk, &[to("host.c")], &to("host"), &more)?;
            let more = ["-fopenmp", "-rdynamic", "-lcoi_device", "-lm"];
            gcc(&programs.sdk, &sink, &to("sink"), &more)?;
        }
        Ok(programs)
    }

    fn path(&self, folder: &str, name: &str) -> PathBuf {
        let workloads = self.directory.path().join("workloads");
        workloads.join(folder).join(name)
    }

    /// How long the workload takes, in milliseconds.
    fn run(
        &self,
        workload: &Workload,
        rig: &Path,
        with_snapify: bool,
        scale: f64,
    ) -> Result<f64, AnyError> {
        let (name, usual) = workload.scaled;
        let steps = (f64::from(usual) * scale).ceil();
        let mut command = Command::new(self.path(workload.folder, "host"));
        command
            .arg(self.path(workload.folder, "sink"))
            .args(workload.arguments)
            .args([name, &steps.to_string()])
            .envs(self.sdk.environment(rig)?)
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_fits_eighty_columns() {
        let pair = || (vec![512.3, 498.0, 505.0], vec![500.0, 500.0, 500.0]);
        let text = table(&report(3, (0..WORKLOADS.len()).map(|_| pair()).collect()));
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
        let lines: Vec<_> = text.lines().collect();
        insta::assert_snapshot!([lines[0], lines[1], lines[9]].join("\n"), @r"
        workload        with     without     cost of Snapify, 95% sure     aim
        MD          505.0 ms    500.0 ms       1.00 %  (-0.40..2.46)       <=1
        average                                1.00 %  (-0.40..2.46)       <=0.5
        ");
    }
}
