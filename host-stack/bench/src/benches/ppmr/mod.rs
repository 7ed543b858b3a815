//! `snaprig bench ppmr`: migrations of an MPI job's processes, as the paper's evaluation has them.

mod migrations;

use std::process::ExitCode;

use serde::Serialize;

use crate::{
    AnyError, BenchWith,
    options::Chosen,
    report::figure::{self, Figure, columns_of_spreads},
    table::{Row, Unit, complete, table},
};

/// Migrations.
pub static BENCH: BenchWith<Chosen> =
    BenchWith::new("ppmr", "Migrations of MPI processes by each strategy", run);

/// What a part of the benchmark has found.
#[derive(Default, Serialize)]
struct Found {
    samples: Vec<Samples>,
    rows: Vec<Row>,
    #[serde(skip)]
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

fn run(chosen: &Chosen) -> Result<ExitCode, AnyError> {
    let mut found = migrations::measure(chosen)?;
    complete(&mut found.rows);
    match chosen.common.json {
        true => println!("{}", serde_json::to_string_pretty(&found)?),
        false => print!("{}", found.text()),
    }
    Ok(ExitCode::SUCCESS)
}

impl Found {
    fn text(&self) -> String {
        let mut all: Vec<_> = self.left_out.iter().map(|why| format!("{why}\n")).collect();
        all.extend(self.figures.iter().map(as_text));
        all.push(table(&self.rows));
        all.join("\n")
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
