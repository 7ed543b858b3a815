//! `snaprig card kill`, `reset`, `unplug` and so on: what befalls a card of a running rig.

use std::{collections::BTreeMap, process::ExitCode};

use clap::Args;
use snaprig_rig::control::{self, Action};

use crate::{AnyError, cards::RunningRig};

/// Which card.
#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    rig: RunningRig,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// The card's SCIF node
    #[arg(value_name = "CARD", value_parser = clap::value_parser!(u16).range(1..))]
    node: u16,
}

/// Does it, and prints in what state the card is then, as `card list` does.
pub fn run(action: Action, options: &Options) -> Result<ExitCode, AnyError> {
    let node = options.node;
    let state = control::ask(&options.rig.directory()?, action, node)?;
    match options.json {
        true => println!(
            "{}",
            serde_json::to_string_pretty(&BTreeMap::from([(node, state)]))?
        ),
        false => println!("card {node}  {state}"),
    }
    Ok(ExitCode::SUCCESS)
}
