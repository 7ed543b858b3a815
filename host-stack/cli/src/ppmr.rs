//! `snaprig ppmr`: pipelined process migration with RDMA, as a job manager sees it.

pub mod health_plan;
mod migrate;
mod mounts;
mod watch;

use std::process::ExitCode;

use clap::Subcommand;

use crate::AnyError;

/// Have the processes of a node of a job go on at another node, and images of other checkpointers.
#[derive(Subcommand)]
pub enum Command {
    /// Have all processes of a node of a running job go on at a spare node, while all others pause
    Migrate(migrate::Options),
    /// Watch the nodes of a running job, and leave one before it fails: when a source of health, or SIGUSR1, says so
    Watch(watch::Options),
    /// Mount a directory whose files go to a target while they are written, front to back
    ///
    /// It ends when all of them were read at the target, or with SIGTERM or SIGINT. The exit status is 0 if all are whole.
    Source(mounts::Source),
    /// Mount a directory in which files appear that sources write, to be read front to back while they come
    ///
    /// It ends when all of them were read, or with SIGTERM or SIGINT. The exit status is 0 if all are whole.
    Target(mounts::Target),
}

impl Command {
    /// Does it.
    pub fn run(&self) -> Result<ExitCode, AnyError> {
        match self {
            Self::Migrate(options) => migrate::run(options),
            Self::Watch(options) => watch::run(options),
            Self::Source(options) => mounts::source(options),
            Self::Target(options) => mounts::target(options),
        }
    }
}
