//! What people order and ask: a checkpoint of a job, a restart, how it is.

use snaprig_resources::error::chain;
use std::{
    thread,
    time::{Duration, Instant},
};

use serde::Serialize;
use snaprig_ckpt_image::store::Checkpoint;
use snaprig_coord::{
    driver::Control,
    message::{CallError, MemberStatus, NOT_NOW, Outcome, RoundStatus, Summary},
    phase::{Kind, Moves, Order},
};
use snaprig_ppmr::driver::transport::Transport;
use snaprig_resources::error::{Error, Result};
use snaprig_resources::event::Event;

use super::{Job, Note, ensure, none};
use crate::{
    checkpoint::Mode,
    control::{Reply, Request, Running, ask},
    moving,
};

/// How long each phase of a round may take, if nobody says otherwise.
const PATIENCE: Duration = Duration::from_secs(120);
/// So often it is tried again, and so much later.
const TRIES_MAX: u32 = 50;
const BETWEEN_TRIES: Duration = Duration::from_millis(20);
/// How long members may take to come to a restart.
const GATHERING: Duration = Duration::from_secs(60);
/// Steps in which trees stand still.
const STANDING: [&str; 4] = ["stop", "drain", "freeze", "resume"];

/// What checkpoint of a job is wanted.
#[derive(Clone, Copy, Debug)]
pub struct JobDump {
    /// The trees end.
    pub kill: bool,
    /// A full one, whatever the mode.
    pub full: bool,
    /// What it has, and when that is copied; none: as the job's settings say.
    pub mode: Option<Mode>,
    /// How long each phase of it may take.
    pub patience: Duration,
}

impl Default for JobDump {
    fn default() -> Self {
        Self {
            kill: false,
            full: false,
            mode: None,
            patience: PATIENCE,
        }
    }
}

/// A job's checkpoint.
#[derive(Clone, Debug, Serialize)]
pub struct JobDumped {
    /// Its number.
    pub round: u64,
    /// The earlier one that it builds on; none: it is a full one.
    pub parent: Option<u64>,
    /// How many trees it is of.
    pub members: u32,
    /// Bytes of it.
    pub bytes: u64,
    /// How long a tree stood still at most.
    pub pause: Duration,
    /// How long it took in all.
    pub took: Duration,
    /// Members that did not go on as they should once it was complete, and why.
    pub lost: Vec<(String, String)>,
}

/// How a job is.
#[derive(Clone, Debug, Serialize)]
pub struct JobStatus {
    /// Its name.
    pub job: String,
    /// Its members.
    pub members: Vec<JobMember>,
    /// What is being done, if anything is: the round, its step, and who has not done it yet.
    pub step: Option<(u64, String, Vec<String>)>,
    /// Its last checkpoint, if there was any.
    pub last: Option<u64>,
}

/// A member has moved.
#[derive(Clone, Debug)]
pub struct Moved {
    /// The member.
    pub member: String,
    /// How long each step of the round took, in nanoseconds.
    pub steps: Vec<(String, u64)>,
    /// How long the member ran nowhere.
    pub pause: Duration,
    /// How long it took in all.
    pub took: Duration,
    /// How chunks of its image went, if it was cut into some.
    pub transport: Option<Transport>,
}

/// How long a member stood still in a round, from its stop to the round's end.
fn standing(steps: &[(String, u64)]) -> Duration {
    let standing = steps.iter().skip_while(|(step, _)| step != "stop");
    Duration::from_nanos(standing.map(|(_, ns)| ns).sum())
}

/// A member of a job.
#[derive(Clone, Debug, Serialize)]
pub struct JobMember {
    /// Its name.
    pub name: String,
    /// Why it is missing, if it is.
    pub missing: Option<String>,
    /// Its processes; none: it is on another machine, or busy.
    pub processes: Option<Vec<Running>>,
}

/// Takes a checkpoint of all members; after it, they run on or end. The calling process has one thread.
pub fn dump_job(job: &Job, wanted: &JobDump) -> Result<JobDumped> {
    let begun = Instant::now();
    dump(job, &ensure(job)?, wanted, begun)
}

/// The same, by this connection to its coordinator.
pub fn dump(job: &Job, control: &Control, wanted: &JobDump, begun: Instant) -> Result<JobDumped> {
    let (settings, store) = (job.settings()?, job.store()?);
    // Who stands still only while memory is copied need not wait for the disk.
    let kind = if wanted.kill {
        Kind::Final
    } else {
        Kind::Background
    };
    let mut why = String::new();
    for _ in 0..TRIES_MAX {
        let note = Note {
            mode: wanted.mode.or(settings.mode).unwrap_or_default(),
            is_whole: wanted.full,
            zstd: settings.zstd,
            base: store.rounds()?.last().copied(),
        };
        let summary = ordered(control, kind, note.encode()?, wanted.patience)?;
        match summary.outcome {
            Outcome::Complete => {
                if let Some(Err(error)) = settings.keep.map(|keep| store.prune(keep)) {
                    let why = chain(&error);
                    job.reporter.tell(Event::OlderStay { why });
                }
                return dumped(job, summary, begun);
            }
            Outcome::Undone { reason } if reason.contains(NOT_NOW) => {
                why = reason;
                thread::sleep(BETWEEN_TRIES);
            }
            Outcome::Undone { reason } => return Err(undone(&reason)),
        }
    }
    Err(undone(&format!(
        "there was always something that cannot be saved for a moment; try again ({why})"
    )))
}

/// Has a member's tree go on at its heir, which waits for it.
pub fn move_member(
    job: &Job,
    moves: &Moves,
    note: &moving::Note,
    patience: Duration,
    since_it_runs: impl Fn() -> Duration,
) -> Result<Moved> {
    let (control, begun) = (job.control()?, Instant::now());
    for _ in 0..TRIES_MAX {
        let order = Order {
            note: note.encode(),
            moves: Some(moves.clone()),
            ..Order::new(Kind::Move)
        };
        let summary = give(&control, order, patience)?;
        let reason = match summary.outcome {
            Outcome::Complete => {
                return match summary.lost.into_iter().next() {
                    None => Ok(Moved {
                        member: moves.member.clone(),
                        pause: standing(&summary.steps).saturating_sub(since_it_runs()),
                        steps: summary.steps,
                        took: begun.elapsed(),
                        transport: None,
                    }),
                    Some((member, why)) => Err(none(format!(
                        "it has moved, but {member} does not go on: {why}"
                    ))),
                };
            }
            Outcome::Undone { reason } => reason,
        };
        if !reason.contains(NOT_NOW) {
            return Err(none(format!(
                "{} does not move, and the job runs on: {reason}",
                moves.member
            )));
        }
        thread::sleep(BETWEEN_TRIES);
    }
    Err(none(
        "there was always something that cannot move for a moment; try again",
    ))
}

/// Has a round begin when no other is under way, and waits for its end.
fn ordered(
    control: &Control,
    kind: Kind,
    note: Vec<u8>,
    patience: Duration,
) -> Result<Summary, Error> {
    let order = Order {
        note,
        ..Order::new(kind)
    };
    give(control, order, patience)
}

fn give(control: &Control, order: Order, patience: Duration) -> Result<Summary, Error> {
    let order = Order {
        phase_ms: patience.as_millis().min(u128::from(u32::MAX)) as u32,
        ..order
    };
    let begun = Instant::now();
    loop {
        match control.order(order.clone()) {
            Err(CallError::Busy { .. }) if begun.elapsed() < patience => {
                thread::sleep(BETWEEN_TRIES);
            }
            ended => return Ok(ended?),
        }
    }
}

fn undone(reason: &str) -> Error {
    none(format!(
        "no checkpoint was taken, and the job runs on: {reason}"
    ))
}

fn dumped(job: &Job, summary: Summary, begun: Instant) -> Result<JobDumped> {
    let checkpoint = job.store()?.checkpoint(summary.round)?;
    let standing = summary
        .steps
        .iter()
        .filter(|(step, _)| STANDING.contains(&&**step));
    Ok(JobDumped {
        round: summary.round,
        parent: checkpoint.manifest().parent,
        members: summary.members,
        bytes: checkpoint
            .manifest()
            .members
            .iter()
            .map(|member| member.bytes)
            .sum(),
        pause: Duration::from_nanos(standing.map(|(_, ns)| ns).sum()),
        took: begun.elapsed(),
        lost: summary.lost,
    })
}

/// How a job is. The calling process has one thread.
pub fn job_status(job: &Job) -> Result<JobStatus> {
    let status = job.control()?.status()?;
    let members = status
        .members
        .into_iter()
        .map(|MemberStatus { name, missing }| {
            let here = match &missing {
                None => ask(&job.of_member(&name), Request::Status).ok(),
                Some(_) => None,
            };
            let processes = match here {
                Some(Reply::Status(status)) => Some(status.processes),
                _ => None,
            };
            JobMember {
                name,
                missing,
                processes,
            }
        });
    let step = |round: RoundStatus| (round.round, round.step, round.waiting_for);
    Ok(JobStatus {
        job: status.job,
        members: members.collect(),
        step: status.round.map(step),
        last: job.store()?.rounds()?.last().copied(),
    })
}

/// A member that is missing does not come back: there are checkpoints without it.
pub fn forget(job: &Job, member: &str) -> Result<()> {
    Ok(job.control()?.forget(member)?)
}

/// Has the members of a checkpoint restart, once all of them are there; `is_hopeless` says that one of them is gone.
pub fn conduct(
    control: &Control,
    checkpoint: &Checkpoint,
    patience: Duration,
    mut is_hopeless: impl FnMut() -> bool,
) -> Result<()> {
    let names: Vec<_> = checkpoint
        .manifest()
        .members
        .iter()
        .map(|member| &*member.name)
        .collect();
    let begun = Instant::now();
    loop {
        let members = control.status()?.members;
        let is_here = |name: &&str| {
            members
                .iter()
                .any(|one| one.name == **name && one.missing.is_none())
        };
        let late: Vec<_> = names
            .iter()
            .filter(|name| !is_here(name))
            .copied()
            .collect();
        if late.is_empty() {
            let gone = members.iter().filter(|one| one.missing.is_some());
            for member in gone {
                // It has no part in this checkpoint; or it has come this very moment.
                let _ = control.forget(&member.name);
            }
            break;
        }
        if begun.elapsed() > GATHERING || is_hopeless() {
            return Err(none(format!(
                "the job does not restart without {}",
                late.join(", ")
            )));
        }
        thread::sleep(Duration::from_millis(10));
    }
    let round = checkpoint.manifest().round.to_le_bytes().to_vec();
    match ordered(control, Kind::Restart, round, patience)?.outcome {
        Outcome::Complete => Ok(()),
        Outcome::Undone { reason } => Err(none(format!("the job does not restart: {reason}"))),
    }
}
