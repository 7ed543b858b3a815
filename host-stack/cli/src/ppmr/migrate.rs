//! All members of a job that are on one node go on at another one.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    thread,
};

use clap::Args;
use serde::Serialize;
use snaprig_fabric::nodes::requests::{self, LOOK_EVERY, Peopled};
use snaprig_ppmr::driver::transport::Transport;

use crate::{
    AnyError,
    ckpt::{
        job::{Moved, move_to, nodes_of},
        strategy::{How, Name},
    },
};

/// Of which job, and how.
#[derive(Args)]
pub struct Migration {
    /// Directory of the job, which `snaprig nodes --job` runs
    #[arg(long, value_name = "DIR", env = "SNAPRIG_CKPT_JOB")]
    job: PathBuf,
    /// The way that its memory takes
    #[arg(long, value_enum, default_value_t = Name::Ppmr)]
    strategy: Name,
    #[command(flatten)]
    how: How,
    /// How long each step of a migration may take
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0)]
    patience: f64,
}

impl Migration {
    /// The job's directory.
    pub fn job(&self) -> &Path {
        &self.job
    }
}

/// What `ppmr migrate` is told.
#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    migration: Migration,
    /// The node that processes leave
    #[arg(long, value_name = "NODE")]
    from: String,
    /// The node that they come to [default: the first that has none]
    #[arg(long, value_name = "NODE")]
    to: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What came of it.
#[derive(Serialize)]
pub struct Migrated {
    from: String,
    to: String,
    /// The way that memory took, with the file system that it took it by.
    strategy: String,
    /// How chunks went, if it was by a pipeline.
    #[serde(skip_serializing_if = "Option::is_none")]
    transport: Option<Transport>,
    /// How long processes of the node ran nowhere, in all.
    blackout_ms: f64,
    took_ms: f64,
    members: Vec<Moved>,
}

/// Moves them, one after the other.
pub fn run(options: &Options) -> Result<ExitCode, AnyError> {
    let migrated = migrate(&options.migration, &options.from, options.to.as_deref())?;
    migrated.print(options.json)?;
    Ok(ExitCode::SUCCESS)
}

/// All members of a node go on at another one, or at one that is spare.
pub fn migrate(migration: &Migration, from: &str, to: Option<&str>) -> Result<Migrated, AnyError> {
    let Migration {
        job,
        strategy,
        how,
        patience,
    } = migration;
    let nodes = nodes_of(job)?;
    let places = requests::places(&nodes)?;
    let from = find(&places, from)?;
    if from.members.is_empty() {
        return Err(format!("{} has no processes of the job", from.node).into());
    }
    let to = match to {
        Some(to) => &*find(&places, to)?.node,
        None => spares(&places).first().copied().ok_or(
            "no node is spare: start the job on more (`snaprig nodes COUNT`) than it uses, or say --to",
        )?,
    };
    if to == from.node {
        return Err(format!("its processes are on {to} already").into());
    }
    let mut words = how.words(*strategy);
    words.extend(["--patience".into(), patience.to_string().into()]);
    let mut members = Vec::new();
    for member in &from.members {
        members.push(move_to(job, member, to, &words)?);
        // Whoever asks next where it is hears that.
        while find(&requests::places(&nodes)?, &from.node)?
            .members
            .contains(member)
        {
            thread::sleep(LOOK_EVERY);
        }
    }
    let sum = |of: fn(&Moved) -> f64| members.iter().map(of).sum();
    Ok(Migrated {
        from: from.node.clone(),
        to: to.to_owned(),
        strategy: strategy.by(members.iter().find_map(|moved| moved.files.as_ref())),
        transport: members.iter().find_map(|moved| moved.transport),
        blackout_ms: sum(|moved| moved.blackout_ms),
        took_ms: sum(|moved| moved.took_ms),
        members,
    })
}

impl Migrated {
    /// Says so.
    pub fn print(&self, json: bool) -> Result<(), AnyError> {
        if json {
            println!("{}", serde_json::to_string(self)?);
            return Ok(());
        }
        let over = self.transport.map(|transport| format!(" over {transport}"));
        println!(
            "{} runs on {} now, after {:.0} ms by {}{}; it stood still for {:.0} ms",
            self.from,
            self.to,
            self.took_ms,
            self.strategy,
            over.unwrap_or_default(),
            self.blackout_ms
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

/// Nodes without processes of the job.
pub fn spares(places: &[Peopled]) -> Vec<&str> {
    let spare = places.iter().filter(|place| place.members.is_empty());
    spare.map(|place| &*place.node).collect()
}
