//! Restarts the trees of a job, which go through the phases of a restart together.
//!
//! ```text
//! phase     supervisor
//! Connect   opens files; connections to other trees are made, and hold what they held
//! Refill    makes processes, with their memory; their plugins rebuild, exchange and refill, all of one phase before the next
//! Go        lets them run
//! ```
//! What must stay true: until `Go`, nothing of any tree runs; if one cannot be restarted, all that was made ends.

use snaprig_resources::error::chain;
use std::{
    fs::File,
    io::{self, Read, Write},
    process,
    time::{Duration, Instant},
};

use rustix::pipe::{PipeFlags, pipe_with};
use snaprig_ckpt::restart::{self, Complete, Restored};
use snaprig_ckpt_image::{
    chain::Chain,
    store::{Checkpoint, Store},
};
use snaprig_coord::{
    driver,
    member::Event,
    phase::{Order, Phase},
};
use snaprig_resources::event::{self, Reporter};
use snaprig_resources::{
    board::Board,
    error::{Error, Result},
    state::Tree,
};
use snaprig_tracee::faults::begin_round;

use crate::{
    again::{drops_privileges, go, open, rebuild, within},
    job::{self, Job},
    member::Member,
    plugins::JobRound,
    supervisor::{Options, Parts, Supervisor},
};

/// How long a member waits for the others.
const GATHERING: Duration = Duration::from_secs(60);

/// Restarts a checkpoint of a job: all of its members, or one of them, while others are restarted on other machines.
/// `round` says which; none: the newest that is sound, and what is wrong with newer ones is said. Returns when all have ended: the exit status of the first of
/// them that is not 0. The calling process has one thread.
pub fn restart_job(
    job: &Job,
    only: Option<&str>,
    round: Option<u64>,
    patience: Duration,
) -> Result<i32> {
    let store = job.store()?;
    if let Some(round) = round {
        return attempt(job, &store, round, only, patience);
    }
    for round in store.rounds()?.into_iter().rev() {
        match attempt(job, &store, round, only, patience) {
            Err(error) if error.is_damage() => {
                let why = chain(&error);
                job.reporter.tell(event::Event::PassedOver { round, why });
            }
            other => return other,
        }
    }
    Err(missing(format!(
        "there is no complete checkpoint in {}",
        store.dir().display()
    )))
}

/// Restarts a checkpoint. If it is damaged, nothing of any tree has run.
fn attempt(
    job: &Job,
    store: &Store,
    round: u64,
    only: Option<&str>,
    patience: Duration,
) -> Result<i32> {
    let checkpoint = store.checkpoint(round)?;
    let names = checkpoint
        .manifest()
        .members
        .iter()
        .map(|member| member.name.clone());
    let names: Vec<String> = names
        .filter(|name| only.is_none_or(|only| only == name))
        .collect();
    if let (true, Some(only)) = (names.is_empty(), only) {
        // It says where, and what to do.
        checkpoint.chain(only)?;
    }
    for name in &names {
        // Nobody is to wait for one that cannot come.
        open(&checkpoint, name)?;
    }
    drop(job::ensure(job)?);
    // A coordinator that is made here has a copy: it is read as far as it goes.
    let flags = PipeFlags::CLOEXEC | PipeFlags::NONBLOCK;
    let pipe = pipe_with(flags).map_err(|source| Error::io("pipe", source))?;
    let (mut heard, said): (File, File) = (pipe.0.into(), pipe.1.into());
    let mut children = Vec::new();
    for name in &names {
        // SAFETY: the process has one thread, so its child is a whole copy of it, and may do what it likes.
        match unsafe { libc::fork() } {
            0 => process::exit(member(job, &checkpoint, name).unwrap_or_else(|error| {
                let why = format!("{name}: {}", chain(&error));
                match error.is_damage() {
                    // If nobody reads it, that one is gone.
                    true => drop((&said).write_all(why.as_bytes())),
                    false => job.reporter.tell(event::Event::Failed { why }),
                }
                1
            })),
            child if child < 0 => return Err(Error::io("fork", io::Error::last_os_error())),
            child => children.push(child),
        }
    }
    // One of all machines has all restart.
    let first = checkpoint.manifest().members.first();
    if first.is_some_and(|first| names.contains(&first.name)) {
        let is_hopeless = || children.iter().any(|child| has_ended(*child));
        let conducted = job::ensure(job)
            .and_then(|control| job::conduct(&control, &checkpoint, patience, is_hopeless));
        if let Err(error) = conducted {
            job.reporter.failed(&error);
        }
    }
    let statuses: Vec<i32> = children.into_iter().map(status_of).collect();
    let mut damage = Vec::new();
    // It ends with what there is: no more is to come.
    let _ = heard.read_to_end(&mut damage);
    if !damage.is_empty() {
        let what = String::from_utf8_lossy(&damage).into_owned();
        return Err(match only {
            None => Error::Damaged { what },
            // Others do not know of it: they wait for this checkpoint.
            Some(_) => Error::Refusal { what },
        });
    }
    Ok(statuses
        .into_iter()
        .find(|status| *status != 0)
        .unwrap_or(0))
}

fn has_ended(child: libc::pid_t) -> bool {
    // SAFETY: the structure has numbers alone, for which zero is a value; waitid(2) fills it, or leaves it zero.
    // `si_pid` reads the member of the union that waitid(2) fills, which is a number either way.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let how = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        let waited = libc::waitid(libc::P_PID, child as u32, &raw mut info, how);
        waited != 0 || info.si_pid() == child
    }
}

fn status_of(child: libc::pid_t) -> i32 {
    let mut status = 0;
    loop {
        // SAFETY: waitpid(2) writes an int, which is a variable of this function.
        let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
        if ended == child {
            return restart::exit_code(status);
        }
        if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return 1;
        }
    }
}

/// Restarts a member of a job, and supervises it to its end.
fn member(job: &Job, checkpoint: &Checkpoint, name: &str) -> Result<i32> {
    let (tree, chain) = open(checkpoint, name)?;
    within(&tree, &job.reporter, |complete| {
        let mut parts = Parts::new(&job.of_member(name), job.store()?)?;
        let member = Member::join(job, name)?;
        let restored = together(
            &member,
            &tree,
            &chain,
            checkpoint,
            (complete, &job.reporter),
            &parts,
        );
        let round = match restored {
            Ok(round) => round,
            Err(error) => {
                member.link.leave();
                return Err(error);
            }
        };
        member.link.done(round, Phase::Go, Ok(String::new()));
        parts.member = Some(member);
        Supervisor::of_restarted(parts, &tree, Vec::new(), &Options::of_member(job)).run()
    })
}

/// Goes through the phases of a restart with all others; the round.
fn together(
    member: &Member,
    tree: &Tree,
    chain: &Chain,
    checkpoint: &Checkpoint,
    (complete, reporter): (Complete, &Reporter),
    parts: &Parts,
) -> Result<u64> {
    let newest = checkpoint.manifest().round;
    let (round, order) = begin(member, Phase::Connect)?;
    let board = Board {
        member: &member.link,
        round,
        patience: Duration::from_millis(order.phase_ms.into()),
    };
    let open = || match order.note == newest.to_le_bytes() {
        true => Restored::open(tree, chain, Some(&board), reporter),
        false => Err(missing(format!(
            "another member restarts another checkpoint than {newest}, which was asked for or is the newest sound one here; \
             --round says which one all are to restart"
        ))),
    };
    begin_round();
    let mut restored = does(&member.link, round, Phase::Connect, open)?;
    begin(member, Phase::Refill)?;
    does(&member.link, round, Phase::Refill, || {
        restored.grow(chain, drops_privileges(), Some(&board))?;
        let job = JobRound {
            member: &member.name,
            board: &board,
        };
        rebuild(&mut restored, parts, checkpoint.path(), Some(job))
    })?;
    begin(member, Phase::Go)?;
    go(restored, complete, parts)?;
    Ok(round)
}

/// Does a phase, and says so, or why it cannot be done.
pub fn does<T>(
    link: &driver::Member,
    round: u64,
    phase: Phase,
    work: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let done = work();
    let result = match &done {
        Ok(_) => Ok(String::new()),
        Err(error) => Err(chain(error)),
    };
    link.done(round, phase, result);
    done
}

/// Waits until a phase begins.
fn begin(member: &Member, wanted: Phase) -> Result<(u64, Order)> {
    let until = Instant::now() + GATHERING;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        // In a round, the coordinator or the member's machine says how it ends.
        let left = (wanted == Phase::Connect).then_some(left);
        match member.link.next_event(left) {
            Some(Event::Begin {
                round,
                phase,
                order,
            }) if phase == wanted => {
                return Ok((round, order));
            }
            Some(Event::Begin { round, phase, .. }) => {
                let why = format!("{} waits to be restarted", member.name);
                member.link.done(round, phase, Err(why));
            }
            Some(Event::Undo { round, reason, .. }) => {
                member.link.done(round, Phase::Undo, Ok(String::new()));
                if wanted != Phase::Connect {
                    return Err(missing(reason));
                }
            }
            Some(Event::Refused(refusal)) => return Err(missing(refusal.to_string())),
            Some(Event::Joined | Event::Apart { .. } | Event::Finished { .. }) => {}
            None if wanted == Phase::Connect && Instant::now() >= until => {
                return Err(missing("not all members of the job have come".into()));
            }
            None => {}
        }
    }
}

fn missing(what: String) -> Error {
    Error::Missing { what }
}
