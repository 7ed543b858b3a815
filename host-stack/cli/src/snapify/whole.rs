//! Whole programs: a checkpoint of a program of the host and of all its offload processes, and its restart (the paper's
//! section 5, checkpoint and restart).

use std::{
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use clap::Args;
use serde::Serialize;
use snaprig_scif::client::rig_from_environment;
use snaprig_snapify::control::Command as Control;
use snaprig_supervisor::Mode;

use super::{existing, host::Host};
use crate::{AnyError, adopted, size};

/// What `checkpoint` is told.
#[derive(Args)]
pub struct Checkpoint {
    /// The program
    #[arg(value_name = "PID")]
    pid: u32,
    /// A directory that there is. The checkpoint is a directory of its own in it, program-PID
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// End the program and its offload processes when the checkpoint is complete
    #[arg(long)]
    kill: bool,
    /// Compress it (zstd)
    #[arg(long)]
    zstd: bool,
    /// Copy the program and its offload processes while they work, so that they stand still for what changes last only
    #[arg(long, conflicts_with_all = ["zstd", "kill"])]
    live: bool,
    /// The rig's directory [default: $SNAPRIG_RIG of the program]
    #[arg(long, value_name = "DIR")]
    rig: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What `restart` is told.
#[derive(Args)]
pub struct Restart {
    /// The program, by the number that it had
    #[arg(value_name = "PID")]
    pid: u32,
    /// Where its checkpoint is
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// The directory of the rig that has cards for it [default: $SNAPRIG_RIG]
    #[arg(long, value_name = "DIR")]
    rig: Option<PathBuf>,
    /// This checkpoint, and no other [default: the newest that is sound]
    #[arg(long, value_name = "NUMBER")]
    round: Option<u64>,
}

/// What has been done.
#[derive(Serialize)]
struct Outcome {
    pid: u32,
    round: u64,
    bytes: u64,
    stood_still_ms: f64,
    /// Before it stood still, until its offload processes did; if it ends with them, until they were captured, too.
    plugins_ms: f64,
    took_ms: f64,
    checkpoint: PathBuf,
}

/// The compression of `--zstd`.
const ZSTD_LEVEL: i32 = 1;

/// Takes a checkpoint of a program of the host.
pub fn checkpoint(options: &Checkpoint) -> Result<ExitCode, AnyError> {
    let (pid, place) = (options.pid, existing(&options.dir)?);
    let mut host = Host::find(pid, options.rig.as_deref())?;
    if options.zstd {
        for process in host.processes()? {
            host.run(process.process, &Control::CompressNext)?;
        }
    }
    let directory = directory(&place, pid);
    let wanted = adopted::Wanted {
        pid,
        directory: &directory,
        kill: options.kill,
        zstd: options.zstd.then_some(ZSTD_LEVEL),
        mode: match options.live {
            true => Mode::Background,
            false => Mode::Full,
        },
    };
    let dumped = adopted::dump(&wanted, |supervisor| host.adopted(supervisor))?;
    let outcome = Outcome {
        pid,
        round: dumped.round,
        bytes: dumped.bytes,
        stood_still_ms: dumped.pause.all.as_secs_f64() * 1e3,
        plugins_ms: dumped.pause.plugins.as_secs_f64() * 1e3,
        took_ms: dumped.took.as_secs_f64() * 1e3,
        checkpoint: directory,
    };
    match options.json {
        true => println!("{}", serde_json::to_string_pretty(&outcome)?),
        false => println!(
            "checkpoint {} of program {pid}: {} in {:.0} ms; the program stood still for {:.0} ms\n  {}",
            outcome.round,
            size::show(outcome.bytes),
            outcome.took_ms,
            outcome.stood_still_ms,
            outcome.checkpoint.display()
        ),
    }
    Ok(ExitCode::SUCCESS)
}

/// Becomes the supervisor of a program that is restarted.
pub fn restart(options: &Restart) -> Result<ExitCode, AnyError> {
    let directory = directory(&options.dir, options.pid);
    if !directory.is_dir() {
        let why = "there is no checkpoint of program";
        return Err(format!("{why} {} in {}", options.pid, options.dir.display()).into());
    }
    let rig = options.rig.clone().or_else(rig_from_environment);
    let rig = rig.ok_or("on which rig? give its directory: --rig DIR, or SNAPRIG_RIG")?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["ckpt", "restart"]).arg(directory);
    if let Some(round) = options.round {
        command.args(["--round", &round.to_string()]);
    }
    let rig = std::path::absolute(rig)?;
    Err(command.env("SNAPRIG_RIG", rig).exec().into())
}

/// Where checkpoints of a program are.
fn directory(place: &Path, pid: u32) -> PathBuf {
    place.join(format!("program-{pid}"))
}
