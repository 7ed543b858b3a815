//! All members of a job that are on one node go on at another one.

use std::{path::PathBuf, process::ExitCode};

use clap::Args;
use serde::Serialize;
use snaprig_fabric::nodes::requests::{self, Peopled};

use crate::{
    AnyError,
    ckpt::{
        job::{Moved, move_to, nodes_of},
        strategy::{How, Name},
    },
};

/// What `ppmr migrate` is told.
#[derive(Args)]
pub struct Options {
    /// Directory of the job, which `snaprig nodes --job` runs
    #[arg(long, value_name = "DIR", env = "SNAPRIG_CKPT_JOB")]
    job: PathBuf,
    /// The node that processes leave
    #[arg(long, value_name = "NODE")]
    from: String,
    /// The node that they come to [default: the first that has none]
    #[arg(long, value_name = "NODE")]
    to: Option<String>,
    /// The way that their memory takes
    #[arg(long, value_enum, default_value_t = Name::Ppmr)]
    strategy: Name,
    #[command(flatten)]
    how: How,
    /// How long each step of it may take
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0)]
    patience: f64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What came of it.
#[derive(Serialize)]
struct Migrated {
    from: String,
    to: String,
    /// How long processes of the node ran nowhere, in all.
    blackout_ms: f64,
    took_ms: f64,
    members: Vec<Moved>,
}

/// Moves them, one after the other.
pub fn run(options: &Options) -> Result<ExitCode, AnyError> {
    let places = requests::places(&nodes_of(&options.job)?)?;
    let from = find(&places, &options.from)?;
    if from.members.is_empty() {
        return Err(format!("{} has no processes of the job", from.node).into());
    }
    let to = match &options.to {
        Some(to) => find(&places, to)?,
        None => spare(&places)?,
    };
    if to.node == from.node {
        return Err(format!("its processes are on {} already", to.node).into());
    }
    let mut words = options.how.words(options.strategy);
    words.extend(["--patience".into(), options.patience.to_string().into()]);
    let mut members = Vec::new();
    for member in &from.members {
        members.push(move_to(&options.job, member, &to.node, &words)?);
    }
    let sum = |of: fn(&Moved) -> f64| members.iter().map(of).sum();
    let migrated = Migrated {
        from: from.node.clone(),
        to: to.node.clone(),
        blackout_ms: sum(|moved| moved.blackout_ms),
        took_ms: sum(|moved| moved.took_ms),
        members,
    };
    migrated.print(options.json)?;
    Ok(ExitCode::SUCCESS)
}

impl Migrated {
    fn print(&self, json: bool) -> Result<(), AnyError> {
        if json {
            println!("{}", serde_json::to_string_pretty(self)?);
            return Ok(());
        }
        println!(
            "{} runs on {} now, after {:.0} ms; it stood still for {:.0} ms",
            self.from, self.to, self.took_ms, self.blackout_ms
        );
        for (step, ms) in self.members.iter().flat_map(Moved::steps) {
            println!("  {step:<10} {ms:>9.1} ms");
        }
        Ok(())
    }
}

fn find<'a>(places: &'a [Peopled], node: &str) -> Result<&'a Peopled, AnyError> {
    let found = places.iter().find(|place| place.node == node);
    found.ok_or_else(|| {
        let all: Vec<_> = places.iter().map(|place| &*place.node).collect();
        format!("there is no {node}: nodes are {}", all.join(", ")).into()
    })
}

fn spare(places: &[Peopled]) -> Result<&Peopled, AnyError> {
    let spare = places.iter().find(|place| place.members.is_empty());
    spare.ok_or_else(|| {
        "no node is spare: start the job on more (`snaprig nodes COUNT`) than mpirun uses, or say --to".into()
    })
}
