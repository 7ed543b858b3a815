//! `snaprig card syscalls`: what programs find on a card.

use std::process::ExitCode;

use clap::Args;
use snaprig_card_kernel::syscalls::{self, Support};

use crate::AnyError;

/// What `card syscalls` is told.
#[derive(Args)]
pub struct Options {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Prints the table that the card kernel dispatches by.
pub fn run(options: &Options) -> Result<ExitCode, AnyError> {
    if options.json {
        let calls: Vec<_> = syscalls::all().collect();
        println!("{}", serde_json::to_string_pretty(&calls)?);
        return Ok(ExitCode::SUCCESS);
    }
    for call in syscalls::all() {
        let support = match call.support {
            Support::Full => "yes".into(),
            Support::Partial(limits) => format!("partly: {limits}"),
            Support::Absent => "ENOSYS".into(),
        };
        println!("{:>3} {:<24} {support}", call.number, call.name);
    }
    Ok(ExitCode::SUCCESS)
}
