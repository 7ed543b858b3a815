//! `snaprig hold`: a fabric, a rig or programs that are there for as long as whoever started this process wants
//! them, and no longer.
//!
//! ```text
//!  starter                                 this process
//!     |  <--- {"environment": {...}} ------  it is there; programs that have this environment are in it
//!     |  ---- kill 1 --------------------->  a rig's card 1 is killed
//!     |  <--- {}, or {"error": "..."} -----  that is done
//!     |  ---- end of input, or its death ->  all of it ends, and so does every program that is in it
//! ```

use std::{
    collections::BTreeMap,
    env,
    ffi::{OsStr, OsString},
    fs::{self, DirBuilder},
    io::{self, Write},
    os::{
        fd::OwnedFd,
        unix::{ffi::OsStrExt, fs::DirBuilderExt},
    },
    process::{self, ExitCode},
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use clap::Subcommand;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, Signal, getppid, pidfd_open, pidfd_send_signal},
    stdio::stdin,
};
use serde::Serialize;
use snaprig_fabric::place::{FABRIC_ENV, Place};
use snaprig_rig::{Rig, control::Action, sdk::Sdk};

use crate::{AnyError, stack, verbs};

/// Names what programs are held by, where that is neither a fabric nor a rig: a directory for files of theirs.
const HELD_ENV: &str = "SNAPRIG_HELD";
/// Names a rig, by its directory.
const RIG_ENV: &str = "SNAPRIG_RIG";
/// Longest order, in bytes.
const ORDER_MAX: usize = 64;
/// How long a process may show no environment while it execs: the kernel closes descriptors, which is what its parent
/// waits for, before the new environment is set up (fs/exec.c, begin_new_exec).
const EXEC_MAX: Duration = Duration::from_millis(20);
/// How long programs that were killed may take to be gone.
const GONE_MAX: Duration = Duration::from_secs(10);

/// Hold a fabric, a rig or programs for a program that starts this one
///
/// Prints one line of JSON when it is there: what programs have in their environment to be in it. Holds it until standard input ends, or whoever started this process does; then every program with that environment is killed. With SIGTERM it ends alone, and a fabric lasts as long as its programs.
#[derive(Subcommand)]
pub enum Command {
    /// A fabric of its own, used or not
    Fabric(verbs::Setup),
    /// A rig
    ///
    /// Lines of standard input break its cards: kill N, kill-daemon N, reset N, unplug N, plug N, shut-down N. Each is answered by {}, or {"error": "..."}.
    Rig(stack::Setup),
    /// Programs alone, and a directory for files of theirs: SNAPRIG_HELD
    ///
    /// A line `kill` of standard input kills those that there are, and is answered by {}, or {"error": "..."}.
    Programs,
}

/// Says that it is there.
#[derive(Serialize)]
struct Ready<'a> {
    environment: BTreeMap<&'a str, &'a str>,
}

/// What became of an order.
#[derive(Serialize)]
struct Answer {
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// Holds it.
pub fn run(command: &Command) -> Result<ExitCode, AnyError> {
    let starter = Starter::new();
    match command {
        Command::Fabric(setup) => fabric(setup, &starter)?,
        Command::Rig(setup) => rig(setup, &starter)?,
        Command::Programs => programs(&starter)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn fabric(setup: &verbs::Setup, starter: &Starter) -> Result<(), AnyError> {
    let name = unique();
    let fabric = setup.builder(&name)?.start()?;
    say_ready(fabric.environment())?;
    let obeyed = starter.obey(|order| Err(format!("{order:?}: a fabric takes no orders").into()));
    // In order, so that all of a capture is written.
    drop(fabric);
    end_programs(FABRIC_ENV, name.as_ref())?;
    // Files of nodes; and one of the programs may have started the fabric anew in between.
    match fs::remove_dir_all(Place::named(&name)?.directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.into()),
        _ => obeyed,
    }
}

fn rig(setup: &stack::Setup, starter: &Starter) -> Result<(), AnyError> {
    let sdk = Sdk::of(&env::current_exe()?)?;
    let rig = setup.start()?;
    say_ready(&sdk.environment(rig.dir())?)?;
    let obeyed = starter.obey(|order| break_card(&rig, order));
    end_programs(RIG_ENV, rig.dir().as_os_str())?;
    obeyed
}

fn programs(starter: &Starter) -> Result<(), AnyError> {
    let directory = env::temp_dir().join(format!("snaprig-{}", unique()));
    DirBuilder::new().mode(0o700).create(&directory)?;
    let name = directory.as_os_str();
    let obeyed = say_ready(&[(HELD_ENV, name.into())]).and_then(|()| {
        starter.obey(|order| match order {
            "kill" => Ok(end_programs(HELD_ENV, name)?),
            _ => Err(format!("{order:?}: not kill").into()),
        })
    });
    end_programs(HELD_ENV, name)?;
    fs::remove_dir_all(&directory)?;
    obeyed
}

fn break_card(rig: &Rig, order: &str) -> Result<(), AnyError> {
    let (what, node) = order
        .split_once(' ')
        .ok_or_else(|| format!("{order:?}: not what to do, and to which card"))?;
    let action: Action = what.parse()?;
    let node = node.parse().map_err(|_| format!("{node:?}: no card"))?;
    action.on(rig.card_of_node(node)?)?;
    Ok(())
}

/// A name that nobody else has, also where PID namespaces share a directory.
fn unique() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    format!(
        "held-{}-{:x}",
        process::id(),
        now.unwrap_or_default().as_nanos()
    )
}

fn say_ready(environment: &[(&str, OsString)]) -> Result<(), AnyError> {
    let environment = environment
        .iter()
        .map(|(name, value)| {
            let value = value.to_str().ok_or(format!("{name}: not UTF-8"))?;
            Ok((*name, value))
        })
        .collect::<Result<_, AnyError>>()?;
    say(&Ready { environment })?;
    Ok(())
}

fn say(line: &impl Serialize) -> io::Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer(&mut out, line)?;
    out.write_all(b"\n")?;
    out.flush()
}

/// Whoever started this process.
struct Starter {
    /// None: it ended at once, or has no number here (pid_namespaces(7)). The end of input is told by the kernel.
    process: Option<OwnedFd>,
}

impl Starter {
    fn new() -> Self {
        let process = getppid().and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        Self { process }
    }

    /// Carries out orders until input ends or the starter does: a child of the starter that has inherited the other end
    /// of the pipe (fork(2)) keeps nothing up.
    fn obey(&self, mut order: impl FnMut(&str) -> Result<(), AnyError>) -> Result<(), AnyError> {
        let mut pending = Vec::new();
        loop {
            let input = stdin();
            let mut ready = vec![PollFd::new(&input, PollFlags::IN)];
            ready.extend(self.process.iter().map(|fd| PollFd::new(fd, PollFlags::IN)));
            match poll(&mut ready, None) {
                Err(rustix::io::Errno::INTR) => continue,
                other => other?,
            };
            let has_ended = ready
                .get(1)
                .is_some_and(|starter| !starter.revents().is_empty());
            let mut bytes = [0; ORDER_MAX];
            let count = match has_ended {
                true => 0,
                false => rustix::io::read(input, &mut bytes)?,
            };
            if count == 0 {
                return Ok(());
            }
            pending.extend_from_slice(&bytes[..count]);
            while let Some(end) = pending.iter().position(|byte| *byte == b'\n') {
                let line: Vec<_> = pending.drain(..=end).collect();
                let line = String::from_utf8_lossy(&line[..end]);
                let error = order(&line).err().map(|error| error.to_string());
                say(&Answer { error })?;
            }
            if pending.len() > ORDER_MAX {
                return Err(format!("an order of more than {ORDER_MAX} bytes").into());
            }
        }
    }
}

/// Kills every process that has this variable in its environment, until there is none: one may fork before it is killed.
fn end_programs(name: &str, value: &OsStr) -> io::Result<()> {
    let mark = [name.as_bytes(), b"=", value.as_bytes()].concat();
    let deadline = Instant::now() + GONE_MAX;
    let mut was_empty = false;
    loop {
        let found = processes(&mark)?;
        match found.is_empty() {
            true if was_empty => return Ok(()),
            true => thread::sleep(EXEC_MAX),
            false => {}
        }
        was_empty = found.is_empty();
        for (_, program) in &found {
            // One that has ended meanwhile is no loss.
            let _ = pidfd_send_signal(program, Signal::KILL);
        }
        for (pid, program) in &found {
            let left = deadline.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).map_err(io::Error::other)?;
            if poll(&mut [PollFd::new(program, PollFlags::IN)], Some(&left))? == 0 {
                let why = format!("process {pid} was killed {GONE_MAX:?} ago, and is still there");
                return Err(io::Error::new(io::ErrorKind::TimedOut, why));
            }
        }
    }
}

/// Processes with this in their environment, as far as this user may see that.
fn processes(mark: &[u8]) -> io::Result<Vec<(i32, OwnedFd)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(number) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // Opened before it is looked at, so that it is the one that is killed.
        let Some(Ok(process)) =
            Pid::from_raw(number).map(|pid| pidfd_open(pid, PidfdFlags::empty()))
        else {
            continue;
        };
        let environment = fs::read(format!("/proc/{number}/environ")).unwrap_or_default();
        if environment
            .split(|byte| *byte == 0)
            .any(|variable| variable == mark)
        {
            found.push((number, process));
        }
    }
    Ok(found)
}
