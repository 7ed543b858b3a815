//! `snaprig bench verbs`: two processes through our libibverbs, beside UCX, libfabric and memcpy.
//!
//! Every measure and its baselines are taken once a run, one after the other, so that what else
//! the machine does is shared fairly; ratios are of the same run.

pub mod process;

use std::process::{Command, ExitCode};

use snaprig_fabric::place::{DIRECTORY_ENV, FABRIC_ENV, HCAS_ENV, MODEL_ENV};
use snaprig_sdk::program::EXE_ENV;

use self::process::{Order, Outcome, QPS, Verb, heard};
use crate::{
    AnyError, BenchWith,
    baselines::{Baseline, pinned},
    options::Common,
    side::Side,
    table::{Aim, Row, Unit, print},
};

/// Verbs.
pub static BENCH: BenchWith<Common> = BenchWith::new(
    "verbs",
    "Latency and bandwidth of verbs between two processes, beside UCX, libfabric and memcpy",
    run,
);

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
    for (name, verb) in [("send", Verb::Send), ("write", Verb::Write)] {
        for (size, bytes) in [("64 KiB", 64 << 10), ("1 MiB", 1 << 20)] {
            for (how, streams) in [("hot", false), ("cold", true)] {
                let copy = Baseline::Memcpy(bytes, streams);
                let tag = Baseline::UcxTagBandwidth(bytes);
                all.push(Measure {
                    name: format!("{name} {size}, {how}"),
                    unit: Unit::Rate,
                    order: Order::Bandwidth {
                        verb,
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
fn run(options: &Common) -> Result<ExitCode, AnyError> {
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
    print(rows, options.runs, pin, options.json)?;
    Ok(ExitCode::SUCCESS)
}

/// The two processes.
pub(crate) struct Pair([Side; 2]);

impl Pair {
    /// In a fabric of their own, below this directory.
    pub(crate) fn start(directory: &std::path::Path, pin: bool) -> Result<Self, AnyError> {
        let program = std::env::current_exe()?;
        let side = |side: usize| -> Result<Side, AnyError> {
            let mut command = Command::new(&program);
            command
                .args(["bench-verbs-process", "--side", &side.to_string()])
                .env(DIRECTORY_ENV, directory)
                .env(FABRIC_ENV, "bench")
                .env(HCAS_ENV, "1")
                .env(MODEL_ENV, "A")
                .env(EXE_ENV, &program);
            if pin {
                pinned(&mut command, &[side]);
            }
            Side::start(command)
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

    /// What the first one has measured.
    pub(crate) fn measure(&mut self, order: Order) -> Result<Outcome, AnyError> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_measure_has_a_baseline_and_a_short_name() {
        for measure in measures(1.0) {
            assert!(measure.name.len() <= 18 && !measure.against.is_empty());
        }
    }
}
