//! `snaprig card list`: the cards of a running rig.

use std::{collections::BTreeMap, path::PathBuf, process::ExitCode};

use clap::Args;
use snaprig_scif::client::{Endpoint, rig_from_environment};

use crate::AnyError;

/// What `card list` is told.
#[derive(Args)]
pub struct Options {
    /// The rig's directory [default: $SNAPRIG_RIG]
    #[arg(long, value_name = "DIR")]
    rig: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Asks the rig's host node, which is where a driver's sysfs files would be.
pub fn run(options: &Options) -> Result<ExitCode, AnyError> {
    let rig = options.rig.clone().or_else(rig_from_environment);
    let rig = rig.ok_or("no rig is named: give --rig DIR, or set SNAPRIG_RIG")?;
    let node =
        Endpoint::open(&rig).map_err(|e| format!("no rig runs in {}: {e}", rig.display()))?;
    let cards: BTreeMap<_, _> = node.cards()?.into_iter().collect();
    if options.json {
        println!("{}", serde_json::to_string_pretty(&cards)?);
        return Ok(ExitCode::SUCCESS);
    }
    for (node, state) in cards {
        println!("card {node}  {state}");
    }
    Ok(ExitCode::SUCCESS)
}
