//! `snaprig ppmr`: pipelined process migration with RDMA, as a job manager sees it.

mod migrate;
mod watch;

use std::process::ExitCode;

use clap::Subcommand;

use crate::AnyError;

/// Have the processes of a node of a job go on at another node.
#[derive(Subcommand)]
pub enum Command {
    /// Have all processes of a node of a running job go on at a spare node, while all others pause
    Migrate(migrate::Options),
    /// Watch the nodes of a running job, and leave one before it fails: when a source of health, or SIGUSR1, says so
    Watch(watch::Options),
}

impl Command {
    /// Does it.
    pub fn run(&self) -> Result<ExitCode, AnyError> {
        match self {
            Self::Migrate(options) => migrate::run(options),
            Self::Watch(options) => watch::run(options),
        }
    }
}
