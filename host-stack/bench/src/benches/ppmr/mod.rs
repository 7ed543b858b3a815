//! `snaprig bench ppmr`: images of processes in a pipeline from node to node, as the paper's evaluation has it (Ouyang et al.,
//! "High Performance Pipelined Process Migration with RDMA", section V), between two processes with an HCA each.
//!
//! | part | what is measured |
//! |---|---|
//! | `bandwidth` | stages of the pipeline alone, and all of it (section V-B, Figures 6 to 8) |
//! | `migrations` | an MPI job's processes, by each strategy (sections V-C and V-D, Figures 3, 9 to 11, Table I) |
//!
//! Everything is measured once a run, and what is compared is neighbours in the same run; `--only` chooses by the names that
//! JSON has. `--report` writes figures as a page with plots ([`crate::report`]).
//!
//! As JSON:
//!
//! ```text
//! { "machine": { "processor": TEXT, "processors": N, "memory_gib": N, "kernel": TEXT }, "runs": N, "left_out": [WHY, ..],
//!   "samples": [{ "measure": NAME, "unit": UNIT, "samples": [NUMBER, ..] }, ..],
//!   "rows": [ROW, ..] }
//! UNIT   "GB/s" or another one of `table::Unit`; a number a run
//! ROW    ratios, as of other benchmarks: `table::Row`
//! ```

mod bandwidth;
mod migrations;

use std::{path::PathBuf, process::ExitCode};

use clap::Args;
use serde::Serialize;

pub use self::bandwidth::run_process;
use crate::{
    AnyError, BenchWith,
    options::Chosen,
    report::{
        figure::{self, Figure, columns_of_spreads},
        machine::Machine,
        page::{self, Head, Page},
    },
    table::{Row, Unit, complete, table},
};

/// Pipelines of images.
pub static BENCH: BenchWith<Options> = BenchWith::new(
    "ppmr",
    "Pipelines of images from node to node, stage by stage, and migrations of MPI processes by each strategy",
    run,
);

/// What the benchmark is told.
#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    chosen: Chosen,
    /// Write a page with plots and tables, too
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
}

/// What a part of the benchmark has found.
#[derive(Default)]
struct Found {
    samples: Vec<Samples>,
    rows: Vec<Row>,
    figures: Vec<Figure>,
    /// What cannot be measured here, and why.
    left_out: Vec<String>,
}

/// What was measured.
#[derive(Serialize)]
struct Samples {
    measure: String,
    unit: Unit,
    samples: Vec<f64>,
}

/// Measures what was chosen of it.
type Part = fn(&Chosen) -> Result<Found, AnyError>;

/// The parts, in the order in which they are run and shown.
const PARTS: &[Part] = &[bandwidth::measure, migrations::measure];

#[derive(Serialize)]
struct Report {
    machine: Machine,
    runs: u16,
    left_out: Vec<String>,
    samples: Vec<Samples>,
    rows: Vec<Row>,
    #[serde(skip)]
    figures: Vec<Figure>,
}

/// Runs the benchmark.
fn run(options: &Options) -> Result<ExitCode, AnyError> {
    let page = options.report.as_deref().map(Page::at).transpose()?;
    let report = measure(&options.chosen)?;
    if let Some(page) = page {
        page.write(&report.page()?)?;
    }
    match options.chosen.common.json {
        true => println!("{}", serde_json::to_string_pretty(&report)?),
        false => print!("{}", report.text()),
    }
    Ok(ExitCode::SUCCESS)
}

fn measure(chosen: &Chosen) -> Result<Report, AnyError> {
    let mut report = Report {
        machine: Machine::here(),
        runs: chosen.common.runs,
        left_out: Vec::new(),
        samples: Vec::new(),
        rows: Vec::new(),
        figures: Vec::new(),
    };
    for part in PARTS {
        let found = part(chosen)?;
        report.left_out.extend(found.left_out);
        report.samples.extend(found.samples);
        report.rows.extend(found.rows);
        report.figures.extend(found.figures);
    }
    complete(&mut report.rows);
    Ok(report)
}

impl Report {
    /// For a terminal.
    fn text(&self) -> String {
        let mut all: Vec<_> = self.left_out.iter().map(|why| wrapped(why)).collect();
        all.extend(self.figures.iter().map(as_text));
        if !self.rows.is_empty() {
            all.push(table(&self.rows));
        }
        all.join("\n")
    }

    fn page(&self) -> Result<String, AnyError> {
        let runs = format!("runs: {}", self.runs);
        let about = [self.left_out.clone(), vec![runs]].concat().join("; ");
        let note = match self.rows.is_empty() {
            true => String::new(),
            false => table(&self.rows),
        };
        let head = Head {
            title: "PPMR",
            machine: &self.machine.line(),
            about: &about,
            note_title: "Ratios, run by run",
            note: &note,
        };
        page::render(&head, &self.figures)
    }
}

/// Bars that are stacks have a column a part; others, a column a bar.
fn as_text(figure: &Figure) -> String {
    let mut bars = figure.groups.iter().flat_map(|group| &group.bars);
    match bars.any(|bar| bar.parts.len() > 1) {
        true => figure::table(figure),
        false => columns_of_spreads(figure),
    }
}

/// In lines of 80 columns.
fn wrapped(text: &str) -> String {
    let mut lines = String::new();
    let mut columns = 0;
    for word in text.split_whitespace() {
        let is_first = columns == 0;
        columns += word.len() + usize::from(!is_first);
        if columns > 80 {
            lines.push('\n');
            columns = word.len();
        } else if !is_first {
            lines.push(' ');
        }
        lines.push_str(word);
    }
    lines + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_fits_eighty_columns() {
        let text = "RDMA is left out: chunks cannot go by RDMA, since this program is built without it, or so.";
        let lines = wrapped(text);
        assert!(lines.lines().all(|line| line.len() <= 80), "{lines}");
        assert_eq!(lines.trim().replace('\n', " "), text);
    }
}
