//! `snaprig bench verbs`: two processes through our libibverbs, beside UCX, libfabric and memcpy.
//!
//! Every measure and its baselines are taken once a run, one after the other, so that what else
//! the machine does is shared fairly; ratios are of the same run.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio},
};

use clap::Args;
use serde::Serialize;
use snaprig_fabric::place::{DIRECTORY_ENV, FABRIC_ENV, HCAS_ENV, MODEL_ENV, PROGRAM_ENV};

use super::{
    baselines::{Baseline, end, pinned},
    verbs_process::{Order, Outcome, QPS, heard},
};
use crate::AnyError;

/// What the benchmark is told.
#[derive(Args)]
pub struct Options {
    /// Print JSON, with every sample
    #[arg(long)]
    json: bool,
    /// How often everything is measured
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    runs: u16,
    /// Send and copy this share of what is usual
    #[arg(long, value_name = "SHARE", default_value_t = 1.0, hide = true)]
    scale: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
enum Unit {
    #[serde(rename = "us")]
    Microseconds,
    #[serde(rename = "GB/s")]
    Rate,
}

/// What the ratio of ours to the baseline's is to be.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Aim {
    AtMost(f64),
    AtLeast(f64),
}

/// A line of the table.
#[derive(Clone, Debug, Serialize)]
struct Row {
    measure: String,
    unit: Unit,
    ours: Vec<f64>,
    baseline: &'static str,
    /// None: it is not installed.
    samples: Option<Vec<Option<f64>>>,
    ratio: Option<Spread>,
    aim: Option<Aim>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Spread {
    median: f64,
    lowest: f64,
    highest: f64,
}

#[derive(Serialize)]
struct Report {
    runs: u16,
    pinned: bool,
    rows: Vec<Row>,
}

/// Something of ours, with what it is compared with.
struct Measure {
    name: String,
    unit: Unit,
    order: Order,
    against: Vec<(Baseline, Option<Aim>)>,
}

fn measures(scale: f64) -> Vec<Measure> {
    let times = |usual: usize| ((usual as f64 * scale) as usize).max(100);
    let tag = (Baseline::UcxTag, Some(Aim::AtMost(1.0)));
    let mut all = vec![Measure {
        name: "write 8 B".into(),
        unit: Unit::Microseconds,
        order: Order::WriteLatency {
            count: times(200_000),
        },
        against: vec![(Baseline::UcxPut, Some(Aim::AtMost(2.0)))],
    }];
    for qps in [1, 64, QPS] {
        let mut against = vec![tag];
        if qps == 1 {
            against.push((Baseline::Libfabric, None));
        }
        all.push(Measure {
            name: format!("send 8 B, {qps} QP{}", if qps == 1 { "" } else { "s" }),
            unit: Unit::Microseconds,
            order: Order::SendLatency {
                qps,
                count: times(200_000),
            },
            against,
        });
    }
    for (verb, writes) in [("send", false), ("write", true)] {
        for (size, bytes) in [("64 KiB", 64 << 10), ("1 MiB", 1 << 20)] {
            for (how, streams) in [("hot", false), ("cold", true)] {
                let copy = Baseline::Memcpy(bytes, streams);
                let tag = Baseline::UcxTagBandwidth(bytes);
                all.push(Measure {
                    name: format!("{verb} {size}, {how}"),
                    unit: Unit::Rate,
                    order: Order::Bandwidth {
                        writes,
                        bytes,
                        streams,
                        count: times((1 << 30) / bytes),
                    },
                    against: match streams {
                        false => vec![(tag, Some(Aim::AtLeast(1.0))), (copy, None)],
                        true => vec![(copy, Some(Aim::AtLeast(0.8)))],
                    },
                });
            }
        }
    }
    all
}

/// Runs the benchmark.
pub fn run(options: &Options) -> Result<ExitCode, AnyError> {
    let pin = std::thread::available_parallelism().is_ok_and(|cores| cores.get() >= 2);
    let directory = tempfile::tempdir()?;
    let mut pair = Pair::start(directory.path(), pin)?;
    let measures = measures(options.scale);
    let mut rows = Vec::new();
    for measure in &measures {
        for (baseline, aim) in &measure.against {
            let mean = *baseline == Baseline::Libfabric;
            rows.push(Row {
                measure: if mean {
                    "send 8 B, mean".into()
                } else {
                    measure.name.clone()
                },
                unit: measure.unit,
                ours: Vec::new(),
                baseline: baseline.name(),
                samples: baseline.is_here().then(Vec::new),
                ratio: None,
                aim: *aim,
            });
        }
    }
    // Once for nothing, so that all is mapped.
    for measure in &measures {
        pair.measure(measure.order)?;
    }
    for _ in 0..options.runs {
        let mut row = rows.iter_mut();
        // What two measures are compared with is measured once.
        let mut known: Vec<(Baseline, Option<f64>)> = Vec::new();
        for measure in &measures {
            let ours = pair.measure(measure.order)?;
            for ((baseline, _), row) in measure.against.iter().zip(&mut row) {
                let mean = *baseline == Baseline::Libfabric;
                let ours = ours.get(usize::from(mean)).ok_or("nothing was measured")?;
                row.ours.push(*ours);
                let Some(samples) = &mut row.samples else {
                    continue;
                };
                let sample = match known.iter().find(|(other, _)| other == baseline) {
                    Some((_, sample)) => *sample,
                    None => {
                        let sample = baseline.measure(pin, options.scale);
                        known.push((*baseline, sample));
                        sample
                    }
                };
                samples.push(sample);
            }
        }
    }
    for row in &mut rows {
        row.ratio = row.spread();
    }
    if options.json {
        let report = Report {
            runs: options.runs,
            pinned: pin,
            rows,
        };
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{}", table(&rows));
    }
    Ok(ExitCode::SUCCESS)
}

impl Row {
    fn spread(&self) -> Option<Spread> {
        let samples = self.samples.iter().flatten();
        let ratios = self.ours.iter().zip(samples);
        let mut ratios: Vec<_> = ratios
            .filter_map(|(ours, theirs)| Some(ours / (*theirs)?))
            .collect();
        ratios.sort_by(f64::total_cmp);
        Some(Spread {
            median: median(&ratios)?,
            lowest: *ratios.first()?,
            highest: *ratios.last()?,
        })
    }
}

fn median(sorted: &[f64]) -> Option<f64> {
    sorted.get(sorted.len() / 2).copied()
}

/// The table, 80 columns wide.
fn table(rows: &[Row]) -> String {
    let mut text = format!(
        "{:<18} {:>9}  {:<13} {:>9}  {:<17}  {}\n",
        "measure", "ours", "baseline", "", "ratio", "aim"
    );
    for row in rows {
        let value = |mut samples: Vec<f64>| {
            samples.sort_by(f64::total_cmp);
            let value = median(&samples)?;
            Some(match row.unit {
                Unit::Microseconds => format!("{value:.3} us"),
                Unit::Rate => format!("{} GB/s", short(value)),
            })
        };
        let theirs = match &row.samples {
            None => "missing".into(),
            Some(samples) => {
                let samples = samples.iter().copied().flatten().collect();
                value(samples).unwrap_or_else(|| "failed".into())
            }
        };
        let ratio = row.ratio.map_or_else(
            || "-".into(),
            |Spread {
                 median,
                 lowest,
                 highest,
             }| {
                format!("{} ({}..{})", short(median), short(lowest), short(highest))
            },
        );
        let aim = match row.aim {
            None => String::new(),
            Some(Aim::AtMost(most)) => format!("<={most}"),
            Some(Aim::AtLeast(least)) => format!(">={least}"),
        };
        let line = format!(
            "{:<18} {:>9}  {:<13} {:>9}  {ratio:<17}  {aim}",
            row.measure,
            value(row.ours.clone()).unwrap_or_default(),
            row.baseline,
            theirs,
        );
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// A number in four characters, or as few more as it takes.
fn short(number: f64) -> String {
    match number {
        ..9.995 => format!("{number:.2}"),
        ..99.95 => format!("{number:.1}"),
        _ => format!("{number:.0}"),
    }
}

/// The two processes.
struct Pair([Side; 2]);

struct Side {
    child: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Pair {
    fn start(directory: &std::path::Path, pin: bool) -> Result<Self, AnyError> {
        let program = std::env::current_exe()?;
        let side = |side: usize| -> Result<Side, AnyError> {
            let mut command = Command::new(&program);
            command
                .args(["bench-verbs-process", "--side", &side.to_string()])
                .env(DIRECTORY_ENV, directory)
                .env(FABRIC_ENV, "bench")
                .env(HCAS_ENV, "1")
                .env(MODEL_ENV, "A")
                .env(PROGRAM_ENV, &program)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped());
            if pin {
                pinned(&mut command, side);
            }
            let mut child = command.spawn()?;
            Ok(Side {
                orders: child.stdin.take(),
                answers: BufReader::new(child.stdout.take().ok_or("no pipe")?),
                child,
            })
        };
        let mut pair = Self([side(0)?, side(1)?]);
        let [hello_0, hello_1] = [pair.0[0].answer()?, pair.0[1].answer()?];
        pair.0[0].order(&hello_1)?;
        pair.0[1].order(&hello_0)?;
        for side in &mut pair.0 {
            side.answer()?;
        }
        Ok(pair)
    }

    fn measure(&mut self, order: Order) -> Result<Outcome, AnyError> {
        let line = serde_json::to_string(&order)?;
        for side in &mut self.0 {
            side.order(&line)?;
        }
        let [first, second] = &mut self.0;
        let outcome = heard(&first.answer()?)?;
        second.answer()?;
        Ok(outcome)
    }
}

impl Side {
    fn order(&mut self, line: &str) -> Result<(), AnyError> {
        let orders = self.orders.as_mut().ok_or("no pipe")?;
        writeln!(orders, "{}", line.trim_end())?;
        Ok(orders.flush()?)
    }

    fn answer(&mut self) -> Result<String, AnyError> {
        let mut line = String::new();
        if self.answers.read_line(&mut line)? == 0 {
            return Err("a process of the benchmark ended before its time".into());
        }
        Ok(line)
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        // The end of its orders is its end.
        drop(self.orders.take());
        end(&mut self.child);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(measure: &str, unit: Unit, ours: &[f64], aim: Option<Aim>) -> Row {
        Row {
            measure: measure.into(),
            unit,
            ours: ours.into(),
            baseline: "UCX tag",
            samples: Some(vec![Some(0.5), None, Some(0.25)]),
            ratio: None,
            aim,
        }
    }

    fn rows() -> Vec<Row> {
        let (us, rate) = (Unit::Microseconds, Unit::Rate);
        let least = Some(Aim::AtLeast(0.8));
        let mut rows = vec![
            row("send 8 B, 1024 QPs", us, &[0.5, 0.75, 1.0], None),
            row("write 64 KiB, cold", rate, &[120.0, 60.0, 5.0], least),
            row("write 8 B", us, &[0.5], Some(Aim::AtMost(2.0))),
            row("send 8 B, mean", us, &[0.5], None),
        ];
        rows[2].samples = Some(vec![None]);
        rows[3].samples = None;
        rows[3].baseline = "libfabric shm";
        for row in &mut rows {
            row.ratio = row.spread();
        }
        rows
    }

    #[test]
    fn a_table_names_what_is_missing_and_fits_eighty_columns() {
        let text = table(&rows());
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
        insta::assert_snapshot!(text, @r"
        measure                 ours  baseline                 ratio              aim
        send 8 B, 1024 QPs  0.750 us  UCX tag        0.500 us  4.00 (1.00..4.00)
        write 64 KiB, cold 60.0 GB/s  UCX tag       0.50 GB/s  240 (20.0..240)    >=0.8
        write 8 B           0.500 us  UCX tag          failed  -                  <=2
        send 8 B, mean      0.500 us  libfabric shm   missing  -
        ");
    }

    #[test]
    fn json_has_all_samples() {
        let json = serde_json::to_string(&rows()).expect("it has no maps");
        insta::assert_snapshot!(json.replace("},{", "},\n{"), @r#"
        [{"measure":"send 8 B, 1024 QPs","unit":"us","ours":[0.5,0.75,1.0],"baseline":"UCX tag","samples":[0.5,null,0.25],"ratio":{"median":4.0,"lowest":1.0,"highest":4.0},"aim":null},
        {"measure":"write 64 KiB, cold","unit":"GB/s","ours":[120.0,60.0,5.0],"baseline":"UCX tag","samples":[0.5,null,0.25],"ratio":{"median":240.0,"lowest":20.0,"highest":240.0},"aim":{"at_least":0.8}},
        {"measure":"write 8 B","unit":"us","ours":[0.5],"baseline":"UCX tag","samples":[null],"ratio":null,"aim":{"at_most":2.0}},
        {"measure":"send 8 B, mean","unit":"us","ours":[0.5],"baseline":"libfabric shm","samples":null,"ratio":null,"aim":null}]
        "#);
    }

    #[test]
    fn every_measure_has_a_baseline_and_a_short_name() {
        for measure in measures(1.0) {
            assert!(measure.name.len() <= 18 && !measure.against.is_empty());
        }
    }
}
