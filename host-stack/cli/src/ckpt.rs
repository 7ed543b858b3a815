//! `snaprig ckpt`: checkpoint and restart of programs, and of jobs of several.

mod job;

use std::{ffi::OsString, path::PathBuf, process::ExitCode, time::Duration};

use clap::{Args, Subcommand};
use serde::Serialize;
use snaprig_ckpt::{Interval, Job, Reply, Request};

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
    /// Coordinate a job's checkpoints, where machines other than this one reach it
    ///
    /// The first launch of a job starts a coordinator where there is none: this is for jobs of several machines, and for
    /// an interval. It ends with SIGTERM or SIGINT; programs run on, and the next checkpoint finds the next coordinator.
    Coordinator(job::Coordinator),
    /// Have a job checkpointed without a member that is missing
    Forget(job::Forget),
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

/// Of which job it is.
#[derive(Args)]
struct InJob {
    /// Directory of the job, in place of one of its own: what is launched in it is checkpointed at the same moment
    #[arg(long, value_name = "DIR", env = "SNAPRIG_CKPT_JOB")]
    job: Option<PathBuf>,
}

/// How long others are waited for.
#[derive(Args)]
struct Patience {
    /// How many seconds each step of a job may take
    #[arg(long, value_name = "SECONDS", default_value = "120", requires = "job")]
    patience: u32,
}

impl Patience {
    fn time(&self) -> Duration {
        Duration::from_secs(self.patience.into())
    }
}

/// What `ckpt launch` is told.
#[derive(Args)]
pub struct Launch {
    #[command(flatten)]
    directory: Directory,
    #[command(flatten)]
    in_job: InJob,
    /// Its name in the job: one that no other member has
    #[arg(long, value_name = "MEMBER", requires = "job")]
    name: Option<String>,
    /// Checkpoint every so many seconds; a job: `ckpt coordinator --interval`
    #[arg(long, value_name = "SECONDS", conflicts_with = "job")]
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
    #[command(flatten)]
    in_job: InJob,
    #[command(flatten)]
    patience: Patience,
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
    #[arg(value_name = "DIR", required_unless_present = "job")]
    dir: Option<PathBuf>,
    #[command(flatten)]
    in_job: InJob,
    /// Only this member of the job, others on other machines
    #[arg(long, value_name = "MEMBER", requires = "job")]
    member: Option<String>,
    #[command(flatten)]
    patience: Patience,
    /// Checkpoint every so many seconds
    #[arg(long, value_name = "SECONDS")]
    interval: Option<f64>,
}

/// What `ckpt status` is told.
#[derive(Args)]
pub struct Status {
    #[command(flatten)]
    directory: Directory,
    #[command(flatten)]
    in_job: InJob,
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
        Command::Launch(options) => launch(options),
        Command::Restart(options) => restart(options),
        Command::Dump(options) => dump(options),
        Command::Status(options) => status(options),
        Command::Inspect(options) => inspect(options),
        Command::Coordinator(options) => job::coordinate(options),
        Command::Forget(options) => job::forget(options),
    }
}

fn launch(options: &Launch) -> Result<ExitCode, AnyError> {
    let status = match &options.in_job.job {
        Some(job) => {
            let job = Job::open_or_create(job)?;
            snaprig_ckpt::launch_in(&job, options.name.clone(), &options.program)?
        }
        None => {
            let every = every(options.interval)?;
            snaprig_ckpt::launch(&options.directory.dir, &options.program, every)?
        }
    };
    Ok(ExitCode::from(status as u8))
}

fn restart(options: &Restart) -> Result<ExitCode, AnyError> {
    // A directory that is named counts more than a job of the environment.
    match (&options.dir, &options.in_job.job) {
        (Some(dir), _) => {
            let status = snaprig_ckpt::restart(dir, every(options.interval)?)?;
            Ok(ExitCode::from(status as u8))
        }
        (None, Some(job)) => job::restart(job, options.member.as_deref(), options.patience.time()),
        (None, None) => Err("of what? Name a directory, or a job (--job)".into()),
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
    if let Some(job) = &options.in_job.job {
        return job::dump(job, options.kill, options.patience.time(), options.json);
    }
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
    if let Some(job) = &options.in_job.job {
        return job::status(job, options.json);
    }
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
