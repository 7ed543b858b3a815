//! `snaprig bench sim`: simulated checkpoints a second.

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use clap::Args;
use serde::Serialize;
use snaprig_campaign::{
    Scenario as _,
    scenario::Watch,
    scenarios::offload::{Offload, Parameters},
};
use snaprig_sim::Plan;

use crate::{AnyError, BenchWith};

/// The simulator.
pub static BENCH: BenchWith<Options> = BenchWith::new(
    "sim",
    "Simulated checkpoints a second, on one processor, and how that changes with cards",
    run,
);

/// What a benchmark is told.
#[derive(Args)]
pub struct Options {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

const CARDS: [u16; 5] = [1, 2, 4, 8, 16];
const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_millis(300);

#[derive(Serialize)]
struct Row {
    cards: u16,
    runs_per_second: f64,
    lowest: f64,
    highest: f64,
    events_per_run: f64,
}

fn run(options: &Options) -> Result<ExitCode, AnyError> {
    let rows: Vec<_> = CARDS.into_iter().map(measure).collect();
    if options.json {
        println!("{}", serde_json::to_string_pretty(&rows)?);
        return Ok(ExitCode::SUCCESS);
    }
    println!("  cards  runs a second  lowest  highest  events a run");
    for row in rows {
        println!(
            "  {:>5}  {:>13.0}  {:>6.0}  {:>7.0}  {:>12.0}",
            row.cards, row.runs_per_second, row.lowest, row.highest, row.events_per_run
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// One host process that checkpoints its offload process, with so many cards.
fn measure(cards: u16) -> Row {
    let (mut rates, mut runs, mut events) = (Vec::new(), 0, 0);
    for _ in 0..ROUNDS {
        let (begun, before) = (Instant::now(), runs);
        while begun.elapsed() < ROUND {
            let plan = Plan::new(runs, "checkpoint");
            let outcome = Offload.run(&plan, &Parameters::of(cards), Watch::default());
            events += outcome.trace.events();
            runs += 1;
        }
        rates.push((runs - before) as f64 / begun.elapsed().as_secs_f64());
    }
    rates.sort_by(f64::total_cmp);
    Row {
        cards,
        runs_per_second: rates[ROUNDS / 2],
        lowest: rates[0],
        highest: rates[ROUNDS - 1],
        events_per_run: events as f64 / runs as f64,
    }
}
