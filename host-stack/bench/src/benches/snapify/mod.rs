//! `snaprig bench snapify`: what Snapify costs offload programs, as the paper's evaluation has it (section 7, Figures 9
//! and 10), with the paper's workloads.
//!
//! | part | what is measured |
//! |---|---|
//! | `overhead` | runs of which nobody takes a snapshot, with Snapify and without (`overhead`) |
//! | `checkpoint` | checkpoint and restart of host process and offload process, sizes of a checkpoint (`operations`) |
//! | `swap` | an offload process is swapped out, and in |
//! | `migration` | an offload process goes to another card |
//!
//! The last three are measured round by round, each workload in each round. What is printed of a figure is the round in
//! the middle, with its parts, and how far the others are (`figure`). `--report` writes the same as a page with plots
//! ([`crate::report`]).
//!
//! As JSON; what was not measured is missing:
//!
//! ```text
//! { "machine": { "processor": TEXT, "processors": N, "memory_gib": N, "kernel": TEXT },
//!   "overhead": { "seed": N, "pairs": N, "pinned": BOOL,
//!     "rows": [{ "workload": "MD", "measures": MEASURES }, ..],
//!     "average": { MEASURE: COST, .. } },
//!   "operations": [{ "workload": "MD", "operation": OPERATION, "samples": [SAMPLE, ..] }, ..] }
//! MEASURES   { "wall_ms": SAMPLES, "cpu_ms": SAMPLES, "instructions": SAMPLES }, those that there are here
//! SAMPLES    { "with": [NUMBER, ..], "without": [NUMBER, ..], "percent": COST }, a number a pair
//! COST       { "estimate": NUMBER, "from": NUMBER, "to": NUMBER }, percent of what it is without; 95 % sure
//! OPERATION  "checkpoint", "restart", "migration", "swap_out" or "swap_in"
//! SAMPLE     { "total_ms": NUMBER, "phases_ms": { PHASE: NUMBER, .. }, "bytes": BYTES }, one a round
//! PHASE      "pause", "capture", "host", "write", "restore", "resume" or "rest"
//! BYTES      { "host_image": N, "offload_image": N, "local_store": N }, of checkpoints alone
//! ```

mod counters;
mod estimate;
pub(crate) mod figure;
mod operations;
mod overhead;
mod paper;
mod workloads;

use std::{path::PathBuf, process::ExitCode};

use clap::{Args, ValueEnum};
use serde::Serialize;
use snaprig_card_platform::Kind;

use self::overhead::Overhead;
use crate::{
    AnyError, BenchWith,
    report::{
        figure::{self as figures, Figure},
        machine::Machine,
        page::{self, Head, Page},
    },
};

/// Snapify where it is not used.
pub static BENCH: BenchWith<Options> = BenchWith::new(
    "snapify",
    "What Snapify costs offload programs: without a snapshot, checkpoint, restart, swap and migration",
    run,
);

/// What the benchmark is told.
#[derive(Args)]
pub struct Options {
    /// Print JSON, with every sample
    #[arg(long)]
    json: bool,
    /// Write a page with plots and tables, too
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
    /// Only these parts
    #[arg(long, value_name = "PART", value_delimiter = ',')]
    only: Vec<Part>,
    /// How many rounds [default: 60 pairs of runs for overhead, 5 of all else]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    runs: Option<u16>,
    /// Draws the order of runs [default: another one each time]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Kind of cards [default: the best that works here]
    #[arg(long)]
    platform: Option<Kind>,
    /// Where snapshots are written [default: a new directory in the current one]
    #[arg(
        long,
        value_name = "DIR",
        default_value = ".",
        hide_default_value = true
    )]
    dir: PathBuf,
    /// Do this share of the usual work
    #[arg(long, value_name = "SHARE", default_value_t = 1.0, hide = true)]
    scale: f64,
}

/// A part of the evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// What it costs where nobody takes a snapshot (Figure 9).
    Overhead,
    /// Checkpoint and restart, and sizes (Figure 10 a to c).
    Checkpoint,
    /// Swapping out and in (Figure 10 e and f).
    Swap,
    /// Migration (Figure 10 d).
    Migration,
}

/// Pairs of runs that show a percent.
const PAIRS: u16 = 60;
/// Rounds of what takes longer than its spread.
const ROUNDS: u16 = 5;

#[derive(Serialize)]
struct Report {
    machine: Machine,
    #[serde(skip_serializing_if = "Option::is_none")]
    overhead: Option<Overhead>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    operations: Vec<operations::Row>,
}

/// Runs the benchmark.
fn run(options: &Options) -> Result<ExitCode, AnyError> {
    let page = options.report.as_deref().map(Page::at).transpose()?;
    let report = measure(options)?;
    let figures = report.figures();
    if let Some(page) = page {
        page.write(&report.page(&figures)?)?;
    }
    match options.json {
        true => println!("{}", serde_json::to_string_pretty(&report)?),
        false => print!("{}", report.text(&figures)),
    }
    Ok(ExitCode::SUCCESS)
}

fn measure(options: &Options) -> Result<Report, AnyError> {
    let parts = match options.only.as_slice() {
        [] => Part::value_variants(),
        some => some,
    };
    let machine = Machine::here();
    let programs = workloads::compile()?;
    let mut overhead = None;
    if parts.contains(&Part::Overhead) {
        let seed = options.seed.unwrap_or_else(|| std::process::id().into());
        eprintln!("seed {seed}");
        let pairs = options.runs.unwrap_or(PAIRS);
        let measured = overhead::measure(&programs, options.platform, pairs, seed, options.scale)?;
        overhead = Some(measured);
    }
    let mut operations = Vec::new();
    if parts.iter().any(|part| *part != Part::Overhead) {
        let rounds = options.runs.unwrap_or(ROUNDS);
        let (platform, base) = (options.platform, &options.dir);
        operations = operations::measure(&programs, parts, rounds, platform, base, options.scale)?;
    }
    Ok(Report {
        machine,
        overhead,
        operations,
    })
}

impl Report {
    fn figures(&self) -> Vec<Figure> {
        let overhead = self.overhead.as_ref().map(figure::of_overhead);
        let operations = figure::of_operations(&self.operations);
        overhead.into_iter().chain(operations).collect()
    }

    /// For a terminal: of the first figure, what it comes to.
    fn text(&self, figures: &[Figure]) -> String {
        let overhead = self.overhead.as_ref().map(overhead::table);
        let skipped = usize::from(overhead.is_some());
        let tables = figures.iter().skip(skipped).map(figures::table);
        let all: Vec<_> = overhead.into_iter().chain(tables).collect();
        all.join("\n")
    }

    fn page(&self, figures: &[Figure]) -> Result<String, AnyError> {
        let pairs = self.overhead.as_ref().map(Overhead::pairs);
        let rounds = self.operations.iter().map(|row| row.samples.len()).max();
        let pairs = pairs.map(|pairs| format!("pairs of runs of Figure 9: {pairs}"));
        let rounds = rounds.map(|rounds| format!("rounds of Figure 10: {rounds}"));
        let about: Vec<_> = pairs.into_iter().chain(rounds).collect();
        let note = self.overhead.as_ref().map(overhead::table);
        let (machine, note) = (self.machine.line(), note.unwrap_or_default());
        let head = Head {
            title: "Snapify",
            machine: &machine,
            about: &about.join("; "),
            note_title: "What it costs, with its confidence",
            note: &note,
        };
        page::render(&head, figures)
    }
}
