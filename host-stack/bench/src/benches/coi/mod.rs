//! `snaprig bench coi`: run functions and buffers of a COI program in C, beside what the host does
//! without a card: a wake-up of another thread, a copy of as many bytes.

use std::{
    collections::BTreeMap,
    process::{ExitCode, Stdio},
};

use snaprig_card_platform::{self as platform, Kind};
use snaprig_rig::Rig;

use crate::{
    AnyError, BenchWith,
    compile::Programs,
    host::eventfd_round_trip,
    options::Common,
    table::{Row, Unit, print},
};

/// The offload stack.
pub static BENCH: BenchWith<Common> = BenchWith::new(
    "coi",
    "Run functions and buffers of COI beside wake-ups and copies on the host",
    run,
);

const HOST: &str = include_str!("../../../../../fixtures/bench/coi_host.c");
const SINK: &str = include_str!("../../../../../fixtures/bench/coi_sink.c");

/// What the program calls a measure, and what its baseline: another of its measures, or the eventfd.
struct Measure {
    kind: Kind,
    ours: String,
    baseline: Option<String>,
    row: Row,
}

fn measures(kinds: &[Kind]) -> Vec<Measure> {
    let mut all = Vec::new();
    for &kind in kinds {
        let mut add = |measure: String, unit, ours: String, other: Option<String>, baseline| {
            let row = Row::new(format!("{measure}, {kind}"), unit, baseline, None);
            all.push(Measure {
                kind,
                ours,
                baseline: other,
                row,
            });
        };
        let us = Unit::Microseconds;
        add("run".into(), us, "run".into(), None, "eventfd");
        for pipelines in [2, 4, 8] {
            let (name, ours) = (format!("run, {pipelines} p."), format!("run{pipelines}"));
            add(name, us, ours, Some("run1".into()), "one pipeline");
        }
        for what in ["write", "read"] {
            for (size, bytes) in [("4K", 4 << 10), ("64K", 64 << 10)] {
                let ours = format!("{what}{bytes}us");
                add(format!("{what} {size}"), us, ours, None, "eventfd");
            }
            for (size, bytes) in [("1M", 1 << 20), ("16M", 16 << 20)] {
                let (ours, copy) = (format!("{what}{bytes}"), format!("memcpy{bytes}"));
                add(
                    format!("{what} {size}"),
                    Unit::Rate,
                    ours,
                    Some(copy),
                    "memcpy",
                );
            }
        }
    }
    all
}

/// Runs the benchmark.
fn run(options: &Common) -> Result<ExitCode, AnyError> {
    let (here, missing): (Vec<_>, Vec<_>) = [Kind::Kvm, Kind::Ptrace]
        .into_iter()
        .partition(|kind| platform::probe(*kind).is_ok());
    for kind in missing {
        eprintln!("{kind} does not work here and is not measured; see `snaprig doctor`");
    }
    let programs = compile()?;
    let mut measures = measures(&here);
    for _ in 0..options.runs {
        for &kind in &here {
            let values = measure(&programs, kind, options.scale)?;
            let wake_up = eventfd_round_trip()?;
            let value = |name: &String| {
                let value = values.get(name).copied();
                value.ok_or_else(|| format!("the program measured no {name}"))
            };
            for measure in measures.iter_mut().filter(|measure| measure.kind == kind) {
                let baseline = measure.baseline.as_ref().map_or(Ok(wake_up), value)?;
                measure.row.ours.push(value(&measure.ours)?);
                measure
                    .row
                    .samples
                    .get_or_insert_default()
                    .push(Some(baseline));
            }
        }
    }
    let rows = measures.into_iter().map(|measure| measure.row);
    print(rows.collect(), options.runs, false, options.json)?;
    Ok(ExitCode::SUCCESS)
}

/// Host and sink.
fn compile() -> Result<Programs, AnyError> {
    let programs = Programs::new()?;
    let add = |name: &str, text, more: &[&str]| {
        let source = format!("{name}.c");
        programs.write(&source, text)?;
        programs.gcc(&programs.path(name), &[programs.path(source)], more)
    };
    add("host", HOST, &["-lcoi_host", "-lpthread"])?;
    add("sink", SINK, &["-rdynamic", "-lcoi_device"])?;
    Ok(programs)
}

/// What the program prints on a rig of its own.
fn measure(programs: &Programs, kind: Kind, scale: f64) -> Result<BTreeMap<String, f64>, AnyError> {
    let rig = Rig::builder()
        .exe(std::env::current_exe()?)
        .platform(Some(kind))
        .start()?;
    let output = programs
        .command(&programs.path("host"), rig.dir())?
        .arg(programs.path("sink"))
        .arg(scale.to_string())
        .stderr(Stdio::inherit())
        .output()?;
    if !output.status.success() {
        return Err(format!("the program on {kind}: {}", output.status).into());
    }
    parse(&String::from_utf8_lossy(&output.stdout))
}

fn parse(text: &str) -> Result<BTreeMap<String, f64>, AnyError> {
    let line = |line: &str| {
        let (name, value) = line
            .split_once(' ')
            .ok_or("a line is a name and a number")?;
        Ok((name.to_owned(), value.parse()?))
    };
    text.lines().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_the_table() {
        for measure in measures(&[Kind::Kvm, Kind::Ptrace]) {
            assert!(measure.row.measure.len() <= 19, "{}", measure.row.measure);
        }
    }

    #[test]
    fn what_a_program_prints_is_read() {
        let values = parse("run 1.5\nwrite4096 0.25\n").unwrap();
        assert_eq!(values["write4096"], 0.25);
        assert!(parse("run\n").is_err());
    }
}
