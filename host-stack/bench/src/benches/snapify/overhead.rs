//! What Snapify costs where nobody takes a snapshot (the paper's Figure 9: 1.5% on average, 5% at worst).
//!
//! All workloads run with it and without it (`SNAPRIG_SNAPIFY=off`), in pairs on one card, round after round. Of two
//! pairs one has the run with it first and the next has it last, as the seed draws it. The host's program and the
//! rig have one processor for themselves and the card the others, in both runs alike, so that the scheduler has
//! nothing to choose. Each run is timed, and what all of it does on processors is counted (`counters`):
//! Snapify cannot cost less than that, and wake-ups disturb it less. What the pairs say, and how sure that is,
//! is in `estimate`.

use std::{collections::BTreeMap, path::Path, time::Instant};

use serde::Serialize;
use snaprig_card_platform::Kind;
use snaprig_rig::Rig;
use snaprig_sim::Random;

use super::{
    counters::Counter,
    estimate::{Interval, intervals, median},
    workloads::{WORKLOADS, Workload},
};
use crate::{
    AnyError,
    baselines::{pin_all, pin_to, processors},
    compile::Programs,
    progress,
};

/// Most that it may cost one workload, and all of them on average.
const WORST_PERCENT: f64 = 1.0;
const AVERAGE_PERCENT: f64 = 0.5;

/// What is measured.
pub const WALL: &str = "wall_ms";
const CPU: &str = "cpu_ms";
const INSTRUCTIONS: &str = "instructions";

/// What was measured of one run.
type Sample = BTreeMap<&'static str, f64>;

/// What all pairs say.
#[derive(Serialize)]
pub struct Overhead {
    seed: u64,
    pairs: u16,
    pinned: bool,
    /// A row a workload.
    pub rows: Vec<Row>,
    average: BTreeMap<&'static str, Interval>,
}

/// Of a workload.
#[derive(Serialize)]
pub struct Row {
    /// Its name.
    pub workload: &'static str,
    /// By their names.
    pub measures: BTreeMap<&'static str, Samples>,
}

/// A number a pair.
#[derive(Serialize)]
pub struct Samples {
    /// With Snapify.
    pub with: Vec<f64>,
    /// Without it.
    pub without: Vec<f64>,
    percent: Interval,
}

impl Overhead {
    /// How many of each workload.
    pub fn pairs(&self) -> u16 {
        self.pairs
    }
}

/// Runs so many pairs of each workload.
pub fn measure(
    programs: &Programs,
    platform: Option<Kind>,
    runs: u16,
    seed: u64,
    scale: f64,
) -> Result<Overhead, AnyError> {
    let counters = counters();
    let here = processors()?;
    let is_pinned = here.len() > 1;
    let (host, card) = here.split_at(usize::from(is_pinned));
    // What the card is made of inherits that.
    pin_to(card)?;
    // More threads than processors would be at the mercy of the host's scheduler.
    let rig = Rig::builder()
        .exe(std::env::current_exe()?)
        .platform(platform)
        .cores(card.len())
        .start()?;
    if is_pinned {
        pin_all(host)?;
    }
    let measure = |workload: &Workload, on: bool| {
        let before = read(&counters)?;
        let wall = time(programs, workload, rig.dir(), on, scale)?;
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
    let bar = progress::bar(usize::from(runs) * WORKLOADS.len());
    let mut order = Random::new(seed, "order");
    let mut is_first = [false; WORKLOADS.len()];
    let mut pairs: Vec<Vec<[Sample; 2]>> = vec![Vec::new(); WORKLOADS.len()];
    for round in 0..runs {
        let all = WORKLOADS.iter().zip(&mut pairs).zip(&mut is_first);
        for ((workload, pairs), is_first) in all {
            bar.set_message(workload.name);
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
            bar.inc(1);
        }
    }
    drop(rig);
    // Who measures something else afterwards has all of them.
    pin_all(&here)?;
    Ok(report(seed, is_pinned, &pairs))
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
fn report(seed: u64, pinned: bool, pairs: &[Vec<[Sample; 2]>]) -> Overhead {
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
    Overhead {
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

/// The table, 80 columns wide.
pub fn table(report: &Overhead) -> String {
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

/// How long the workload takes, in milliseconds.
fn time(
    programs: &Programs,
    workload: &Workload,
    rig: &Path,
    with_snapify: bool,
    scale: f64,
) -> Result<f64, AnyError> {
    let mut command = workload.short(programs, rig, scale)?;
    command.env("SNAPRIG_SNAPIFY", if with_snapify { "on" } else { "off" });
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
