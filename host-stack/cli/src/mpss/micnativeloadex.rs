//! `micnativeloadex`: a program on a card, with what it needs.

use std::{env, process::ExitCode};

use clap::Args;
use snaprig_rig::Rig;
use snaprig_scif::client::rig_from_environment;

use crate::{AnyError, card_exec, cards::RunningRig};

/// Run a Linux program on a card of $SNAPRIG_RIG, or of a rig of its own, as MPSS's micnativeloadex does
///
/// Its stdio is ours, and so is its exit status. Libraries come along; they are looked for in $SINK_LD_LIBRARY_PATH, too.
#[derive(Args)]
pub struct Options {
    /// A Linux program (x86-64)
    #[arg(value_name = "PROGRAM")]
    program: String,
    /// Which card, from 0
    #[arg(short, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u16).range(..=127))]
    device: u16,
    /// Its arguments, with blanks between them
    #[arg(short, value_name = "ARGS", allow_hyphen_values = true)]
    arguments: Option<String>,
    /// Its environment: NAME=VALUE, with blanks between them
    #[arg(short, value_name = "ENV")]
    environment: Vec<String>,
}

/// Runs it, and takes over its exit status.
pub fn run(options: &Options) -> Result<ExitCode, AnyError> {
    let words = |text: &str| {
        text.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let arguments = words(options.arguments.as_deref().unwrap_or_default());
    let variables = options.environment.iter().flat_map(|text| words(text));
    let variables = variables
        .map(|word| match word.split_once('=') {
            Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
            _ => Err(format!("-e {word}: not NAME=VALUE")),
        })
        .collect::<Result<Vec<_>, _>>()?;
    let job = card_exec::Job {
        node: options.device + 1,
        command: [vec![options.program.clone()], arguments].concat(),
        variables,
        library_path: library_path(),
        files: Vec::new(),
    };
    match rig_from_environment() {
        Some(_) => job.run(&RunningRig::default()),
        None => {
            let rig = Rig::builder().exe(env::current_exe()?).start()?;
            job.run(&RunningRig::at(rig.dir()))
        }
    }
}

/// Where the program's libraries are looked for first.
fn library_path() -> Option<String> {
    let paths = ["SINK_LD_LIBRARY_PATH", "LD_LIBRARY_PATH"];
    let paths: Vec<_> = paths
        .iter()
        .filter_map(|name| env::var(name).ok())
        .collect();
    let paths: Vec<_> = paths.into_iter().filter(|path| !path.is_empty()).collect();
    (!paths.is_empty()).then(|| paths.join(":"))
}
