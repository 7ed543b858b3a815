//! `snaprig ckpt`: checkpoint and restart of programs, and of jobs of several.

mod branch;
pub mod job;
mod mounted;
pub mod strategy;

use std::{ffi::OsString, os::fd::OwnedFd, path::PathBuf, process::ExitCode, time::Duration};

use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;
use snaprig_fabric::{
    library,
    place::{FABRIC_ENV, Place, setup_from_env},
    start,
};
use snaprig_supervisor::{
    Event, Job, JobDump, Options, Policy, Program, Reply, Reporter, Request, Schedule, Settings,
    Target, faults,
};

use crate::{AnyError, adopted, size};

/// Checkpoint programs, and restart them.
#[derive(Subcommand)]
pub enum Command {
    /// Run a program, so that it can be checkpointed with all processes that it starts
    ///
    /// Its exit status is that of the program.
    Launch(Launch),
    /// Checkpoint a program that `ckpt launch` or `ckpt restart` has started, or one that was started by somebody else (--pid)
    Dump(Dump),
    /// Restart a program from its newest complete checkpoint, or an older one if that is damaged
    ///
    /// Its exit status is that of the program.
    Restart(Restart),
    /// Restart a checkpoint many times, each time with another fault plan, and say which survived
    ///
    /// A branch has a fabric, namespaces and copies of the program's directories of its own: it changes neither the checkpoint nor another branch. The exit status is 0 if all have survived, 1 if one has not, 2 if there is nothing to branch or the one without faults does not survive.
    Branch(branch::Options),
    /// Move a program to where `ckpt receive` waits for it; most of its memory is sent while it runs
    Migrate(Migrate),
    /// Wait for a program that `ckpt migrate` sends, and run it from there on
    ///
    /// What has arrived is a checkpoint. The exit status is that of the program.
    Receive(Receive),
    /// Have a member of a running job go on here, on this node, while all other members stay
    ///
    /// It is run where the member is to go, on the machine where it is. Its sockets go along, and so do its addresses; queue pairs of the others that lead to it are connected with where it is now. If that fails, it runs on where it was. The exit status is that of the member's program.
    Move(job::Move),
    /// List the processes of a program, and its last checkpoint
    Status(Status),
    /// Coordinate a job's checkpoints, where machines other than this one reach it
    ///
    /// The first launch of a job starts a coordinator where there is none: this is for jobs of several machines. It ends with SIGTERM or SIGINT; programs run on, and the next checkpoint finds the next coordinator.
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

/// What a checkpoint has of a program's memory, and when that is copied.
#[derive(Clone, Copy, ValueEnum)]
enum Mode {
    /// All of it, while the program stands still
    Full,
    /// What was written to since the last one; from time to time all
    Incremental,
    /// The same, most of it copied while the program runs
    Background,
}

impl From<Mode> for snaprig_supervisor::Mode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Full => Self::Full,
            Mode::Incremental => Self::Incremental,
            Mode::Background => Self::Background,
        }
    }
}

/// How a program is checkpointed. Of a job, it holds for all of it from now on, until something else is said.
#[derive(Args)]
struct CheckpointOptions {
    /// What a checkpoint has, and when that is copied [default: full]
    #[arg(long, value_enum)]
    mode: Option<Mode>,
    /// Checkpoint every so many seconds
    #[arg(long, value_name = "SECONDS", conflicts_with = "overhead")]
    interval: Option<f64>,
    /// Checkpoint as often as it costs no more than so much of the run time
    #[arg(long, value_name = "PERCENT")]
    overhead: Option<f64>,
    /// With --overhead: but at least every so many seconds
    #[arg(
        long,
        value_name = "SECONDS",
        requires = "overhead",
        default_value_t = 60.0
    )]
    max_interval: f64,
    /// Compress images with zstd, at this level
    #[arg(long, value_name = "LEVEL", num_args = 0..=1, default_missing_value = "1", value_parser = clap::value_parser!(i32).range(1..=19))]
    compress: Option<i32>,
    /// Keep so many checkpoints, and those that they build on
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    keep: Option<u32>,
}

impl CheckpointOptions {
    /// What is said of it: of a job, the rest stays as it was.
    fn settings(&self) -> Result<Settings, AnyError> {
        let schedule = match (self.interval, self.overhead) {
            (Some(interval), _) => Some(Schedule::Every(seconds(interval)?)),
            (None, Some(percent)) if percent > 0.0 && percent <= 100.0 => {
                Some(Schedule::Share(Policy {
                    share: percent / 100.0,
                    longest: seconds(self.max_interval)?,
                    ..Policy::default()
                }))
            }
            (None, Some(percent)) => return Err(format!("an overhead of {percent}%").into()),
            (None, None) => None,
        };
        Ok(Settings {
            schedule,
            mode: self.mode.map(Into::into),
            zstd: self.compress,
            keep: self.keep.map(|keep| keep as usize),
        })
    }

    fn options(&self) -> Result<Options, AnyError> {
        let settings = self.settings()?;
        Ok(Options {
            schedule: settings.schedule.unwrap_or_default(),
            mode: settings.mode.unwrap_or_default(),
            zstd: settings.zstd,
            keep: settings.keep,
            reporter: reporter(),
        })
    }
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
    how: CheckpointOptions,
    #[command(flatten)]
    in_job: InJob,
    /// Its name in the job: one that no other member has
    #[arg(long, value_name = "MEMBER", requires = "job")]
    name: Option<String>,
    /// Load this library into the program, and into all that it starts: a plugin that it does not know of
    #[arg(long, value_name = "LIBRARY")]
    preload: Vec<PathBuf>,
    /// The program uses HCAs: its queue pairs are a part of checkpoints
    #[arg(long)]
    verbs: bool,
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
    /// This program, which `snaprig ckpt` has not started, with all processes that it has started
    #[arg(long, value_name = "PID", conflicts_with = "job")]
    pid: Option<u32>,
    /// The program goes on (the default)
    #[arg(long, conflicts_with = "kill")]
    leave_running: bool,
    /// The program ends when the checkpoint is complete
    #[arg(long)]
    kill: bool,
    /// A full one, whatever the mode
    #[arg(long)]
    full: bool,
    /// Of a job: what this one has, and when that is copied [default: what was said at its launch]
    #[arg(long, value_enum, requires = "job")]
    mode: Option<Mode>,
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
    /// This checkpoint, and no other
    #[arg(long, value_name = "NUMBER")]
    round: Option<u64>,
    #[command(flatten)]
    how: CheckpointOptions,
}

/// Where a program goes.
#[derive(Args)]
struct Address {
    /// HOST:PORT, or the path of a Unix socket, with a / in it
    #[arg(value_name = "ADDRESS")]
    address: String,
    /// With HOST:PORT: a file of 32 random bytes, the same on both sides, that only its owner can read
    #[arg(long, value_name = "FILE")]
    token: Option<PathBuf>,
}

impl Address {
    /// Paths are made absolute: who uses them may be in another directory.
    fn target(&self) -> Result<Target, AnyError> {
        let host = match self.address.parse()? {
            snaprig_peers::Address::Unix(path) => {
                return Ok(Target::unix(std::path::absolute(path)?));
            }
            snaprig_peers::Address::Tcp(host) => host,
        };
        let token = self.token.as_ref();
        let token = token.ok_or(
            "over TCP both sides need a token: `head -c 32 /dev/urandom > FILE; chmod 600 FILE`, \
             the same FILE on both sides, and --token FILE",
        )?;
        Ok(Target::tcp(host, std::path::absolute(token)?))
    }
}

/// What `ckpt migrate` is told.
#[derive(Args)]
pub struct Migrate {
    #[command(flatten)]
    directory: Directory,
    #[command(flatten)]
    to: Address,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What `ckpt receive` is told.
#[derive(Args)]
pub struct Receive {
    #[command(flatten)]
    directory: Directory,
    #[command(flatten)]
    at: Address,
    #[command(flatten)]
    how: CheckpointOptions,
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
    /// The checkpoint that it builds on.
    parent: Option<u64>,
    bytes: u64,
    /// Copied while the program ran, and how often; private memory that was copied while it stood still.
    copied_ahead_bytes: u64,
    passes: u32,
    copied_stopped_bytes: u64,
    stood_still_ms: f64,
    /// Before it stood still, until plugins had taken down what they have.
    plugins_ms: f64,
    /// Parts of the time that it stood still.
    ahead_ms: f64,
    freeze_ms: f64,
    describe_ms: f64,
    scan_ms: f64,
    copy_ms: f64,
    took_ms: f64,
}

#[derive(Serialize)]
struct Migrated {
    bytes: u64,
    /// Sent while the program ran, and how often; private memory that was sent while it stood still.
    copied_ahead_bytes: u64,
    passes: u32,
    copied_stopped_bytes: u64,
    /// How long it ran nowhere.
    blackout_ms: f64,
    took_ms: f64,
}

/// Runs one of the commands.
pub fn run(command: &Command) -> Result<ExitCode, AnyError> {
    let plan = faults::plan_of_environment()?;
    plan.into_iter().for_each(faults::follow);
    match command {
        Command::Launch(options) => launch(options),
        Command::Restart(options) => restart(options),
        Command::Branch(options) => branch::run(options),
        Command::Receive(options) => {
            let (dir, how) = (&options.directory.dir, options.how.options()?);
            let _fabric = hold_fabric()?;
            let status = snaprig_supervisor::receive(dir, &options.at.target()?, &how)?;
            Ok(ExitCode::from(status as u8))
        }
        Command::Dump(options) => dump(options),
        Command::Migrate(options) => migrate(options),
        Command::Status(options) => status(options),
        Command::Inspect(options) => inspect(options),
        Command::Coordinator(options) => job::coordinate(options),
        Command::Forget(options) => job::forget(options),
        Command::Move(options) => {
            let _fabric = hold_fabric()?;
            job::take(options)
        }
    }
}

/// UCX gives up datagram endpoints that are being connected after 30 s of the processor's counter, which goes on between a checkpoint
/// and a restart: it waits longer.
const PATIENCE: [(&str, &str); 1] = [("UCX_UD_VERBS_TIMEOUT", "3600s")];

fn launch(options: &Launch) -> Result<ExitCode, AnyError> {
    let mut preload = options.preload.clone();
    if options.verbs {
        let directory = library::directory(&std::env::current_exe()?)?;
        preload.push(directory.join(library::CKPT_IB.name));
    }
    let _fabric = if options.verbs { hold_fabric()? } else { None };
    let program = Program {
        words: &options.program,
        preload: &preload,
        environment: if options.verbs { &PATIENCE } else { &[] },
    };
    let status = match &options.in_job.job {
        Some(job) => {
            let settings = options.how.settings()?;
            let job = Job::open_or_create(job)?.told_to(&reporter());
            job.set(settings)?;
            snaprig_supervisor::launch_in(&job, options.name.clone(), program)?
        }
        None => {
            let how = options.how.options()?;
            snaprig_supervisor::launch(&options.directory.dir, program, &how)?
        }
    };
    Ok(ExitCode::from(status as u8))
}

/// Holds the fabric that the environment names, if it does: so its daemon is no process of the program's.
fn hold_fabric() -> Result<Option<OwnedFd>, AnyError> {
    match std::env::var_os(FABRIC_ENV) {
        Some(_) => {
            let (place, setup) = (Place::from_env()?, setup_from_env()?);
            Ok(Some(start::connect(&place, &setup, &Vec::new())?))
        }
        None => Ok(None),
    }
}

fn restart(options: &Restart) -> Result<ExitCode, AnyError> {
    let _fabric = hold_fabric()?;
    // A directory that is named counts more than a job of the environment.
    match (&options.dir, &options.in_job.job) {
        (Some(dir), _) => {
            let status = snaprig_supervisor::restart(dir, options.round, &options.how.options()?)?;
            Ok(ExitCode::from(status as u8))
        }
        (None, Some(job)) => {
            let opened = Job::open(job)?.told_to(&reporter());
            opened.set(options.how.settings()?)?;
            let (only, patience) = (options.member.as_deref(), options.patience.time());
            let status = snaprig_supervisor::restart_job(&opened, only, options.round, patience)?;
            Ok(ExitCode::from(status as u8))
        }
        (None, None) => Err("of what? Name a directory, or a job (--job)".into()),
    }
}

/// What happens is said to whoever is at the terminal.
fn reporter() -> Reporter {
    Reporter::to(|event: &Event| eprintln!("snaprig: {event}"))
}

fn seconds(seconds: f64) -> Result<Duration, AnyError> {
    match seconds > 0.0 && seconds < 1e9 {
        true => Ok(Duration::from_secs_f64(seconds)),
        false => Err(format!("an interval of {seconds} s").into()),
    }
}

fn dump(options: &Dump) -> Result<ExitCode, AnyError> {
    if let Some(job) = &options.in_job.job {
        let wanted = JobDump {
            kill: options.kill,
            full: options.full,
            mode: options.mode.map(Into::into),
            patience: options.patience.time(),
        };
        return job::dump(job, &wanted, options.json);
    }
    let directory = &options.directory.dir;
    let dumped = match options.pid {
        Some(pid) => {
            let wanted = adopted::Wanted {
                pid,
                directory,
                kill: options.kill,
                zstd: None,
                mode: snaprig_supervisor::Mode::Full,
            };
            adopted::dump(&wanted, |_| Ok(0))?
        }
        None => {
            let request = Request::Dump {
                kill: options.kill,
                full: options.full,
            };
            match snaprig_supervisor::ask(directory, request)? {
                Reply::Dumped(dumped) => dumped,
                other => return unexpected(other),
            }
        }
    };
    let (pause, copied) = (dumped.pause, dumped.copied);
    let dumped = Dumped {
        round: dumped.round,
        parent: dumped.parent,
        bytes: dumped.bytes,
        copied_ahead_bytes: copied.ahead,
        passes: copied.passes,
        copied_stopped_bytes: copied.stopped,
        stood_still_ms: ms(pause.all),
        plugins_ms: ms(pause.plugins),
        ahead_ms: ms(pause.ahead),
        freeze_ms: ms(pause.freeze),
        describe_ms: ms(pause.describe),
        scan_ms: ms(pause.scan),
        copy_ms: ms(pause.copy),
        took_ms: ms(dumped.took),
    };
    if options.json {
        println!("{}", serde_json::to_string_pretty(&dumped)?);
        return Ok(ExitCode::SUCCESS);
    }
    let builds_on = dumped
        .parent
        .map_or(String::new(), |parent| format!(" on top of {parent}"));
    println!(
        "checkpoint {}{builds_on}: {} in {:.0} ms; the program stood still for {:.0} ms",
        dumped.round,
        size::show(dumped.bytes),
        dumped.took_ms,
        dumped.stood_still_ms
    );
    Ok(ExitCode::SUCCESS)
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn migrate(options: &Migrate) -> Result<ExitCode, AnyError> {
    let to = options.to.target()?;
    let migrated = match snaprig_supervisor::ask(&options.directory.dir, Request::Migrate { to })? {
        Reply::Migrated(migrated) => migrated,
        Reply::Failed(error) => return Err(format!("no migration: {error}").into()),
        other => return unexpected(other),
    };
    let migrated = Migrated {
        bytes: migrated.bytes,
        copied_ahead_bytes: migrated.copied.ahead,
        passes: migrated.copied.passes,
        copied_stopped_bytes: migrated.copied.stopped,
        blackout_ms: ms(migrated.blackout),
        took_ms: ms(migrated.took),
    };
    match options.json {
        true => println!("{}", serde_json::to_string_pretty(&migrated)?),
        false => println!(
            "{} sent in {:.0} ms; the program ran nowhere for {:.0} ms",
            size::show(migrated.bytes),
            migrated.took_ms,
            migrated.blackout_ms
        ),
    }
    Ok(ExitCode::SUCCESS)
}

fn status(options: &Status) -> Result<ExitCode, AnyError> {
    if let Some(job) = &options.in_job.job {
        return job::status(job, options.json);
    }
    let status = match snaprig_supervisor::ask(&options.directory.dir, Request::Status)? {
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
