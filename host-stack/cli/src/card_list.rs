//! `snaprig card list`: the cards of a running rig.

use std::process::ExitCode;

use clap::Args;

use crate::{AnyError, cards::RunningRig};

/// What `card list` is told.
#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    rig: RunningRig,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Prints each card and its state.
pub fn run(options: &Options) -> Result<ExitCode, AnyError> {
    let cards = options.rig.cards()?;
    if options.json {
        println!("{}", serde_json::to_string_pretty(&cards)?);
        return Ok(ExitCode::SUCCESS);
    }
    for (node, state) in cards {
        println!("card {node}  {state}");
    }
    Ok(ExitCode::SUCCESS)
}
