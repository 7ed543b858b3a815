//! `snaprig ckpt`: checkpoint and restart of programs on this machine.

use std::{ffi::OsString, path::PathBuf, process::ExitCode, time::Duration};

use clap::{Args, Subcommand};
use serde::Serialize;
use snaprig_ckpt::{Interval, Reply, Request};

use crate::{AnyError, size};

/// Checkpoint programs, and restart them.
#[derive(Subcommand)]
pub enum Command {
    /// Run a program, so that it can be checkpointed with all processes that it starts
    ///
    /// Its exit status is that of the program.
    Launch(Launch),
    /// Checkpoint a program that `ckpt launch` or `ckpt restart` has started
    Dump(Dump),
    /// Restart a program from its newest complete checkpoint
    ///
    /// Its exit status is that of the program.
    Restart(Restart),
    /// List the processes of a program, and its last checkpoint
    Status(Status),
    /// Verify an image, and show what is in it
    Inspect(Inspect),
}

#[derive(Args)]
struct Directory {
    /// Directory of the program's checkpoints
    #[arg(
        long,
        value_name = "DIR",
        env = "SNAPRIG_CKPT_DIR",
        default_value = "snaprig-ckpt"
    )]
    dir: PathBuf,
}

/// What `ckpt launch` is told.
#[derive(Args)]
pub struct Launch {
    #[command(flatten)]
    directory: Directory,
    /// Checkpoint every so many seconds
    #[arg(long, value_name = "SECONDS")]
    interval: Option<f64>,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// What `ckpt dump` is told.
#[derive(Args)]
pub struct Dump {
    #[command(flatten)]
    directory: Directory,
    /// The program goes on (the default)
    #[arg(long, conflicts_with = "kill")]
    leave_running: bool,
    /// The program ends when the checkpoint is complete
    #[arg(long)]
    kill: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What `ckpt restart` is told.
#[derive(Args)]
pub struct Restart {
    /// Directory of the program's checkpoints
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Checkpoint every so many seconds
    #[arg(long, value_name = "SECONDS")]
    interval: Option<f64>,
}

/// What `ckpt status` is told.
#[derive(Args)]
pub struct Status {
    #[command(flatten)]
    directory: Directory,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What `ckpt inspect` is told.
#[derive(Args)]
pub struct Inspect {
    /// The image: DIR/0001/tree.img
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Dumped {
    round: u64,
    bytes: u64,
    stood_still_ms: f64,
    took_ms: f64,
}

/// Runs one of the commands.
pub fn run(command: &Command) -> Result<ExitCode, AnyError> {
    match command {
        Command::Launch(options) => {
            let every = every(options.interval)?;
            let status = snaprig_ckpt::launch(&options.directory.dir, &options.program, every)?;
            Ok(ExitCode::from(status as u8))
        }
        Command::Restart(options) => {
            let status = snaprig_ckpt::restart(&options.dir, every(options.interval)?)?;
            Ok(ExitCode::from(status as u8))
        }
        Command::Dump(options) => dump(options),
        Command::Status(options) => status(options),
        Command::Inspect(options) => inspect(options),
    }
}

fn every(seconds: Option<f64>) -> Result<Interval, AnyError> {
    match seconds {
        None => Ok(None),
        Some(seconds) if seconds > 0.0 && seconds < 1e9 => {
            Ok(Some(Duration::from_secs_f64(seconds)))
        }
        Some(seconds) => Err(format!("an interval of {seconds} s").into()),
    }
}

fn dump(options: &Dump) -> Result<ExitCode, AnyError> {
    let request = Request::Dump { kill: options.kill };
    let dumped = match snaprig_ckpt::ask(&options.directory.dir, request)? {
        Reply::Dumped(dumped) => dumped,
        other => return unexpected(other),
    };
    let dumped = Dumped {
        round: dumped.round,
        bytes: dumped.bytes,
        stood_still_ms: dumped.pause.as_secs_f64() * 1e3,
        took_ms: dumped.took.as_secs_f64() * 1e3,
    };
    match options.json {
        true => println!("{}", serde_json::to_string_pretty(&dumped)?),
        false => println!(
            "checkpoint {}: {} in {:.0} ms; the program stood still for {:.0} ms",
            dumped.round,
            size::show(dumped.bytes),
            dumped.took_ms,
            dumped.stood_still_ms
        ),
    }
    Ok(ExitCode::SUCCESS)
}

fn status(options: &Status) -> Result<ExitCode, AnyError> {
    let status = match snaprig_ckpt::ask(&options.directory.dir, Request::Status)? {
        Reply::Status(status) => status,
        other => return unexpected(other),
    };
    if options.json {
        println!("{}", serde_json::to_string_pretty(&status)?);
        return Ok(ExitCode::SUCCESS);
    }
    println!("{:>8} {:>8}  program", "process", "threads");
    for process in &status.processes {
        println!(
            "{:>8} {:>8}  {}",
            process.pid, process.threads, process.name
        );
    }
    match status.last {
        Some(round) => println!("last checkpoint: {round}"),
        None => println!("no checkpoint yet"),
    }
    Ok(ExitCode::SUCCESS)
}

fn inspect(options: &Inspect) -> Result<ExitCode, AnyError> {
    let inspection = snaprig_ckpt::inspect(&options.image)?;
    match options.json {
        true => println!("{}", inspection.json()),
        false => print!("{inspection}"),
    }
    Ok(ExitCode::SUCCESS)
}

fn unexpected(reply: Reply) -> Result<ExitCode, AnyError> {
    match reply {
        Reply::Failed(error) => {
            Err(format!("no checkpoint was taken, and the program runs on: {error}").into())
        }
        other => Err(format!("the supervisor answered something else: {other:?}").into()),
    }
}
