//! The same of jobs: trees of processes that are checkpointed and restarted together.

use std::{path::Path, process::ExitCode};

use clap::Args;
use serde::{Deserialize, Serialize};
use snaprig_fabric::nodes::requests::{self, REQUESTS};
use snaprig_ppmr::driver::transport::Transport;
use snaprig_supervisor::{Job, JobDump, JobDumped, JobMember};

use super::{
    mounted::FileSystem,
    strategy::{How, Name},
};
use crate::{AnyError, size};

/// What `ckpt coordinator` is told.
#[derive(Args)]
pub struct Coordinator {
    /// Directory of the job: made if it is not there
    #[arg(long, value_name = "DIR", env = "SNAPRIG_CKPT_JOB")]
    job: std::path::PathBuf,
    /// Where members reach it: HOST:PORT, as they know this machine, or the path of a socket
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// Checkpoint the job every so many seconds, whatever was said at its launch
    #[arg(long, value_name = "SECONDS")]
    interval: Option<f64>,
}

/// What `ckpt forget` is told.
#[derive(Args)]
pub struct Forget {
    /// Directory of the job
    #[arg(long, value_name = "DIR", env = "SNAPRIG_CKPT_JOB")]
    job: std::path::PathBuf,
    /// The member
    #[arg(value_name = "NAME")]
    name: String,
}

/// What `ckpt move` is told.
#[derive(Args)]
pub struct Move {
    /// Directory of the job
    #[arg(long, value_name = "DIR", env = "SNAPRIG_CKPT_JOB")]
    job: std::path::PathBuf,
    /// The member, as `ckpt status` calls it
    #[arg(value_name = "MEMBER")]
    member: String,
    /// The node where it is to go on, of a job that `snaprig nodes --job` runs: from anywhere on this machine
    #[arg(long, value_name = "NODE", conflicts_with = "tell")]
    to: Option<String>,
    /// Write what came of it to this file, for who waits for that
    #[arg(long, value_name = "FILE", hide = true)]
    tell: Option<std::path::PathBuf>,
    /// How long each step of it may take
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0)]
    patience: f64,
    /// The way that its memory takes
    #[arg(long, value_enum, default_value_t = Name::Memory)]
    strategy: Name,
    #[command(flatten)]
    how: How,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What came of a move, for who has asked for it from elsewhere.
#[derive(Serialize, Deserialize)]
enum Answer {
    Moved(Moved),
    /// The member stays where it is: why.
    Stays(String),
}

/// A member goes on elsewhere.
#[derive(Serialize, Deserialize)]
pub struct Moved {
    member: String,
    /// How long it ran nowhere.
    pub blackout_ms: f64,
    pub took_ms: f64,
    steps_ms: Vec<(String, f64)>,
    /// What its image was in meanwhile, if that was a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub files: Option<FileSystem>,
    /// How chunks of its image went, if it was cut into some.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transport: Option<Transport>,
}

impl Moved {
    fn of(moved: &snaprig_supervisor::Moved, files: Option<&FileSystem>) -> Self {
        let ms = |ns: &u64| *ns as f64 / 1e6;
        let steps = moved.steps.iter();
        Self {
            member: moved.member.clone(),
            blackout_ms: moved.pause.as_secs_f64() * 1e3,
            took_ms: moved.took.as_secs_f64() * 1e3,
            steps_ms: steps.map(|(step, ns)| (step.clone(), ms(ns))).collect(),
            files: files.cloned(),
            transport: moved.transport,
        }
    }

    /// How long each step took, in ms.
    pub fn steps(&self) -> &[(String, f64)] {
        &self.steps_ms
    }

    pub fn print(&self, to: &str, json: bool) -> Result<(), AnyError> {
        match json {
            true => println!("{}", serde_json::to_string_pretty(self)?),
            false => println!(
                "{} runs {to} now, after {:.0} ms; it stood still for {:.0} ms",
                self.member, self.took_ms, self.blackout_ms
            ),
        }
        Ok(())
    }
}

/// Has a member go on here, to its end; or has that done on a node.
pub fn take(options: &Move) -> Result<ExitCode, AnyError> {
    if let Some(node) = &options.to {
        return ask_to_move(options, node);
    }
    let job = Job::open(&options.job)?.told_to(&super::reporter());
    let patience = super::seconds(options.patience)?;
    let strategy = options.how.by(options.strategy, &options.job)?;
    // As it is now: restored, this process may be where other file systems are.
    let files = How::file_system(&strategy);
    let status =
        snaprig_supervisor::inherit(&job, &options.member, patience, &strategy, |moved| {
            // It has moved or not, whoever hears of that.
            let moved = moved.as_ref().map(|moved| Moved::of(moved, files.as_ref()));
            let _ = match (moved, &options.tell) {
                (Ok(moved), Some(file)) => answer(file, &Answer::Moved(moved)),
                (Ok(moved), None) => moved.print("here", options.json),
                (Err(error), Some(file)) => {
                    answer(file, &Answer::Stays(snaprig_supervisor::chain(error)))
                }
                // The supervisor says why.
                (Err(_), None) => Ok(()),
            };
        })?;
    Ok(ExitCode::from(status as u8))
}

fn answer(file: &Path, answer: &Answer) -> Result<(), AnyError> {
    Ok(requests::put(file, &serde_json::to_vec(answer)?)?)
}

fn ask_to_move(options: &Move, node: &str) -> Result<ExitCode, AnyError> {
    let mut words = options.how.words(options.strategy);
    words.extend(["--patience".into(), options.patience.to_string().into()]);
    let moved = move_to(&options.job, &options.member, node, &words)?;
    moved.print(&format!("on {node}"), options.json)?;
    Ok(ExitCode::SUCCESS)
}

/// Where those who keep the nodes of a job are asked.
pub fn nodes_of(job: &Path) -> Result<std::path::PathBuf, AnyError> {
    let asked = job.join(REQUESTS);
    match asked.is_dir() {
        true => Ok(asked),
        false => Err(format!(
            "{} is no job of `snaprig nodes --job`: run `ckpt move` on the node, without --to",
            job.display()
        )
        .into()),
    }
}

/// Has a member of a job go on at a node, in a way that these options of `ckpt move` say.
pub fn move_to(
    job: &Path,
    member: &str,
    node: &str,
    words: &[std::ffi::OsString],
) -> Result<Moved, AnyError> {
    let said = requests::ask_to_move(&nodes_of(job)?, node, member, words)?;
    let why = match serde_json::from_str(&said) {
        Ok(Answer::Moved(moved)) => return Ok(moved),
        Ok(Answer::Stays(why)) => why,
        // Who keeps the nodes has seen the end of whoever was to answer.
        Err(_) => match said.trim().parse::<i32>() {
            Ok(status @ 129..) => format!(
                "where it was to go on, whoever takes it was killed by signal {}, as when there is too little memory",
                status - 128
            ),
            _ => "why is on the standard error of `snaprig nodes`".to_owned(),
        },
    };
    Err(format!("{member} stays where it is: {why}").into())
}

pub fn coordinate(options: &Coordinator) -> Result<ExitCode, AnyError> {
    let listen = options.listen.as_deref();
    let listen = listen
        .map(|text| text.strip_prefix("tcp:").unwrap_or(text).parse())
        .transpose()?;
    let interval = options.interval.map(super::seconds).transpose()?;
    let job = Job::open_or_create(&options.job)?.told_to(&super::reporter());
    snaprig_supervisor::coordinate(&job, listen, interval)?;
    Ok(ExitCode::SUCCESS)
}

pub fn forget(options: &Forget) -> Result<ExitCode, AnyError> {
    snaprig_supervisor::forget(&Job::open(&options.job)?, &options.name)?;
    println!("{} is no member of the job any more", options.name);
    Ok(ExitCode::SUCCESS)
}

pub fn dump(job: &Path, wanted: &JobDump, json: bool) -> Result<ExitCode, AnyError> {
    let dumped =
        snaprig_supervisor::dump_job(&Job::open(job)?.told_to(&super::reporter()), wanted)?;
    if json {
        println!("{}", serde_json::to_string_pretty(&as_json(&dumped))?);
        return Ok(ExitCode::SUCCESS);
    }
    let builds_on = dumped
        .parent
        .map_or(String::new(), |parent| format!(" on top of {parent}"));
    println!(
        "checkpoint {}{builds_on} of {} members: {} in {:.0} ms; nobody stood still for more than {:.0} ms",
        dumped.round,
        dumped.members,
        size::show(dumped.bytes),
        dumped.took.as_secs_f64() * 1e3,
        dumped.pause.as_secs_f64() * 1e3
    );
    for (name, why) in &dumped.lost {
        eprintln!("snaprig: {name} was lost when it was complete: {why}");
    }
    Ok(ExitCode::SUCCESS)
}

fn as_json(dumped: &JobDumped) -> serde_json::Value {
    serde_json::json!({
        "round": dumped.round,
        "parent": dumped.parent,
        "members": dumped.members,
        "bytes": dumped.bytes,
        "stood_still_ms": dumped.pause.as_secs_f64() * 1e3,
        "took_ms": dumped.took.as_secs_f64() * 1e3,
        "lost": dumped.lost,
    })
}

pub fn status(job: &Path, json: bool) -> Result<ExitCode, AnyError> {
    let status = snaprig_supervisor::job_status(&Job::open(job)?)?;
    if json {
        println!("{}", serde_json::to_string_pretty(&status)?);
        return Ok(ExitCode::SUCCESS);
    }
    println!(
        "{:<20} {:>8} {:>8}  program",
        "member", "process", "threads"
    );
    status.members.iter().for_each(show);
    if let Some((round, step, waiting)) = &status.step {
        println!("round {round}: {step}, waiting for {}", waiting.join(", "));
    }
    match status.last {
        Some(round) => println!("last checkpoint: {round}"),
        None => println!("no checkpoint yet"),
    }
    Ok(ExitCode::SUCCESS)
}

fn show(member: &JobMember) {
    let name = &member.name;
    match (&member.missing, &member.processes) {
        (Some(why), _) => println!("{name:<20} missing: {why}"),
        (None, None) => println!("{name:<20} on another machine, or busy"),
        (None, Some(processes)) => {
            for process in processes {
                let (pid, threads) = (process.pid, process.threads);
                println!("{name:<20} {pid:>8} {threads:>8}  {}", process.name);
            }
        }
    }
}
