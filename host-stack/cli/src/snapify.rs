//! `snaprig snapify`: snapshots, swap and migration of the offload processes of a program that runs, from outside (the
//! paper's command-line utility of this name).

mod host;
mod oversubscribe;
mod table;
mod whole;

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use clap::{Args, Subcommand};
use serde::Serialize;
use snaprig_scif::client::rig_from_environment;
use snaprig_snapify::{
    control::{Command as Control, Described},
    snapshot_name,
};

use self::{
    host::Host,
    whole::{Checkpoint, Restart},
};
use crate::{AnyError, size};

/// What to do with offload processes.
#[derive(Subcommand)]
pub enum Command {
    /// List the offload processes of a program, or of all programs of a rig
    List(List),
    /// Stop offload processes, and all that goes on between them and the program
    Pause(Save),
    /// Take snapshots of paused offload processes
    Capture(Capture),
    /// Let paused offload processes go on
    Resume(Chosen),
    /// Take snapshots of offload processes, and end them: their cards are free
    Swapout(Save),
    /// Bring offload processes back that were swapped out
    Swapin(Enter),
    /// Move offload processes to another card
    Migrate(Move),
    /// Take a checkpoint of the program and of all its offload processes, together
    ///
    /// The program need not have been started by `snaprig ckpt`. It runs on, unless it is to end.
    Checkpoint(Checkpoint),
    /// Restart a program that was checkpointed, with all its offload processes
    ///
    /// Its exit status is that of the program.
    Restart(Restart),
    /// Have more offload processes than card memory holds take turns, for all programs of a rig, until it is interrupted
    Oversubscribe(oversubscribe::Options),
    /// Say that a card is about to fail: what takes turns leaves it at once
    Evacuate(oversubscribe::Evacuate),
}

/// The program, and which of its offload processes.
#[derive(Args)]
pub struct Chosen {
    /// The program that has started them (its number, not theirs)
    #[arg(value_name = "PID")]
    pid: u32,
    /// One of them, by its number in `snaprig snapify list` [default: all]
    #[arg(long, value_name = "N")]
    process: Option<u64>,
    /// The rig's directory [default: $SNAPRIG_RIG of the program]
    #[arg(long, value_name = "DIR")]
    rig: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What `list` is told.
#[derive(Args)]
pub struct List {
    /// The program [default: all of the rig]
    #[arg(value_name = "PID")]
    pid: Option<u32>,
    /// The rig's directory [default: $SNAPRIG_RIG, of the program if one is named]
    #[arg(long, value_name = "DIR")]
    rig: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Where snapshots go.
#[derive(Args)]
pub struct Save {
    #[command(flatten)]
    chosen: Chosen,
    /// A directory that there is. A snapshot is a directory of its own in it, NAME-PID-N [default: one of the rig's, which
    /// ends with it]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Compress the snapshots (zstd)
    #[arg(long)]
    zstd: bool,
    /// Copy the processes while they work, so that they stand still for what changes last only
    #[arg(long, conflicts_with = "zstd")]
    live: bool,
}

/// What `capture` is told.
#[derive(Args)]
pub struct Capture {
    #[command(flatten)]
    chosen: Chosen,
    /// End the processes when their snapshots are on disk: they are swapped out
    #[arg(long)]
    end: bool,
}

/// What `swapin` is told.
#[derive(Args)]
pub struct Enter {
    #[command(flatten)]
    chosen: Chosen,
    /// The card to bring them to [default: where each was]
    #[arg(long, value_name = "NODE", value_parser = clap::value_parser!(u16).range(1..))]
    card: Option<u16>,
}

/// What `migrate` is told.
#[derive(Args)]
pub struct Move {
    #[command(flatten)]
    save: Save,
    /// The card to move them to
    #[arg(long, value_name = "NODE", value_parser = clap::value_parser!(u16).range(1..))]
    card: u16,
}

/// Where snapshots are, in the rig's directory, if nobody says where.
const DIRECTORY: &str = "snapify";

/// Does one thing to offload processes.
pub fn run(command: &Command) -> Result<ExitCode, AnyError> {
    match command {
        Command::List(options) => list(options),
        Command::Pause(options) => Work::begin(&options.chosen)?.save(options, "paused", |at| {
            (Control::Pause(at.to_owned()), None)
        }),
        Command::Swapout(options) => {
            Work::begin(&options.chosen)?.save(options, "swapped out", |at| {
                (Control::SwapOut(at.to_owned()), None)
            })
        }
        Command::Migrate(options) => {
            let card = options.card;
            Work::begin(&options.save.chosen)?.save(&options.save, "migrated", |at| {
                (Control::Migrate(at.to_owned(), card), Some(card))
            })
        }
        Command::Capture(options) => Work::begin(&options.chosen)?.capture(options.end),
        Command::Checkpoint(options) => whole::checkpoint(options),
        Command::Restart(options) => whole::restart(options),
        Command::Resume(chosen) => {
            Work::begin(chosen)?.each("resumed", None, false, |_, _| (Control::Resume, None))
        }
        Command::Swapin(options) => {
            let work = Work::begin(&options.chosen)?;
            let enter = |process: &Described, _: &Path| {
                let card = options.card.unwrap_or(process.card);
                (Control::SwapIn(card), Some(card))
            };
            work.each("swapped in", None, false, enter)
        }
        Command::Oversubscribe(options) => oversubscribe::run(options),
        Command::Evacuate(options) => oversubscribe::evacuate(options),
    }
}

fn list(options: &List) -> Result<ExitCode, AnyError> {
    let rig = options.rig.as_deref();
    let rows = match options.pid {
        Some(pid) => Host::find(pid, rig)?.rows()?,
        None => {
            let rig = options.rig.clone().or_else(rig_from_environment);
            let why = "which program? give its PID, or its rig: --rig DIR, or SNAPRIG_RIG";
            host::all(&rig.ok_or(why)?)?
        }
    };
    match options.json {
        true => println!("{}", serde_json::to_string_pretty(&rows)?),
        false => print!("{}", table::show(&rows)),
    }
    Ok(ExitCode::SUCCESS)
}

/// What became of an offload process.
#[derive(Serialize)]
struct Outcome {
    process: u64,
    name: String,
    card: u16,
    bytes: u64,
    milliseconds: f64,
    /// Where its snapshot is.
    #[serde(skip_serializing_if = "Option::is_none")]
    snapshot: Option<PathBuf>,
    #[serde(skip)]
    what: &'static str,
}

impl Outcome {
    fn print(&self) {
        let bytes = match self.bytes {
            0 => String::new(),
            bytes => format!(", {}", size::show(bytes)),
        };
        println!(
            "process {} ({}): {}, card {}{bytes}, {:.1} ms",
            self.process, self.name, self.what, self.card, self.milliseconds
        );
        if let Some(snapshot) = &self.snapshot {
            println!("  {}", snapshot.display());
        }
    }
}

/// A command for some offload processes of a program.
struct Work {
    host: Host,
    processes: Vec<Described>,
    json: bool,
    done: Vec<Outcome>,
}

impl Work {
    fn begin(chosen: &Chosen) -> Result<Self, AnyError> {
        let mut host = Host::find(chosen.pid, chosen.rig.as_deref())?;
        let mut processes = host.processes()?;
        if let Some(number) = chosen.process {
            processes.retain(|process| process.process == number);
            if processes.is_empty() {
                let why = "has no offload process";
                return Err(format!("program {} {why} {number}", chosen.pid).into());
            }
        }
        if processes.is_empty() {
            return Err(format!("program {} has no offload process now", chosen.pid).into());
        }
        Ok(Self {
            host,
            processes,
            json: chosen.json,
            done: Vec::new(),
        })
    }

    /// The same for each, with snapshots in a directory.
    fn save(
        mut self,
        options: &Save,
        what: &'static str,
        command: impl Fn(&Path) -> (Control, Option<u16>),
    ) -> Result<ExitCode, AnyError> {
        let directory = match &options.dir {
            Some(directory) => existing(directory)?,
            None => self.own_directory()?,
        };
        if options.zstd {
            for process in &self.processes {
                self.host.run(process.process, &Control::CompressNext)?;
            }
        }
        self.each(what, Some(&directory), options.live, |_, at| command(at))
    }

    /// One after another, up to the first that fails. A command says which card the process is on then, if it is another one.
    fn each(
        mut self,
        what: &'static str,
        directory: Option<&Path>,
        live: bool,
        command: impl Fn(&Described, &Path) -> (Control, Option<u16>),
    ) -> Result<ExitCode, AnyError> {
        let mut failed = None;
        for process in &self.processes {
            let name = snapshot_name(&process.name, self.host.own_pid, process.process);
            let snapshot = directory.map(|directory| directory.join(&name));
            let (command, card) = command(process, snapshot.as_deref().unwrap_or(Path::new("")));
            let mut run = || {
                let copy = Control::Copy(snapshot.clone().unwrap_or_default(), card);
                let copied = match live {
                    true => self.host.run(process.process, &copy)?.0,
                    false => 0,
                };
                let (bytes, elapsed) = self.host.run(process.process, &command)?;
                Ok::<_, AnyError>((copied + bytes, elapsed))
            };
            match run() {
                Ok((bytes, elapsed)) => {
                    // What is in the rig's own directory has served its purpose.
                    let is_back = matches!(command, Control::SwapIn(_) | Control::Migrate(..));
                    let kept = snapshot.filter(|_| !is_back);
                    if is_back {
                        // There is none if the user has chosen another place.
                        let _ = fs::remove_dir_all(self.host.rig.join(DIRECTORY).join(&name));
                    }
                    self.done
                        .push(outcome(process, card, what, bytes, elapsed, kept));
                }
                Err(error) => {
                    failed = Some((process.process, error));
                    break;
                }
            }
        }
        self.end(failed)
    }

    /// All captures are under way at once.
    fn capture(mut self, end: bool) -> Result<ExitCode, AnyError> {
        let what = if end {
            "captured, and ended"
        } else {
            "captured"
        };
        let mut failed = None;
        let mut begun = Vec::new();
        for process in &self.processes {
            match self.host.run(process.process, &Control::Capture(end)) {
                Ok(_) => begun.push(process),
                Err(error) => {
                    failed = Some((process.process, error));
                    break;
                }
            }
        }
        for process in begun {
            match self.host.run(process.process, &Control::Wait) {
                Ok((bytes, elapsed)) => {
                    self.done
                        .push(outcome(process, None, what, bytes, elapsed, None));
                }
                Err(error) => failed = failed.or(Some((process.process, error))),
            }
        }
        self.end(failed)
    }

    /// Says what was done, and what was not.
    fn end(self, failed: Option<(u64, AnyError)>) -> Result<ExitCode, AnyError> {
        match self.json {
            true => println!("{}", serde_json::to_string_pretty(&self.done)?),
            false => self.done.iter().for_each(Outcome::print),
        }
        match failed {
            None => Ok(ExitCode::SUCCESS),
            Some((process, error)) => Err(format!("offload process {process}: {error}").into()),
        }
    }

    /// Below the rig's directory, where it goes when the rig does.
    fn own_directory(&self) -> Result<PathBuf, AnyError> {
        let directory = self.host.rig.join(DIRECTORY);
        fs::create_dir_all(&directory)
            .map_err(|error| format!("{}: {error}", directory.display()))?;
        Ok(directory)
    }
}

fn outcome(
    process: &Described,
    card: Option<u16>,
    what: &'static str,
    bytes: u64,
    elapsed: Duration,
    snapshot: Option<PathBuf>,
) -> Outcome {
    Outcome {
        process: process.process,
        name: process.name.clone(),
        card: card.unwrap_or(process.card),
        bytes,
        milliseconds: elapsed.as_micros() as f64 / 1e3,
        snapshot,
        what,
    }
}

/// A directory of the user's, by a name that the program understands, too.
fn existing(directory: &Path) -> Result<PathBuf, AnyError> {
    let named = |why: String| format!("{}: {why}", directory.display());
    let path = directory
        .canonicalize()
        .map_err(|error| named(format!("{error}; make it, or choose another directory")))?;
    match path.is_dir() {
        true => Ok(path),
        false => Err(named("it is no directory; choose another one".into()).into()),
    }
}
