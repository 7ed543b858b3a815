//! The process that is one branch, and its events.
//!
//! ```text
//! keeper: namespaces --fork--> first process: directories, fabric --> restart --> Going --> the plan begins --> Ended
//!   ends the first process, and so the kernel all of its namespace, when its standard input does
//! ```

use std::{
    error::Error,
    fs, io,
    os::unix::process::{CommandExt, ExitStatusExt},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    process::{
        Pid, PidfdFlags, Signal, WaitOptions, pidfd_open, pidfd_send_signal,
        set_parent_process_death_signal, waitpid,
    },
};
use serde::{Deserialize, Serialize};
use snaprig_fabric::{
    Fabric, Operator,
    place::{DIRECTORY_ENV, Place, parse_models},
};
use snaprig_sdk::program::NAME;
use snaprig_supervisor::{Job, Mode, Reply, Request, ask, process as supervisor};

use crate::{isolate, source::What};

/// The command by which a `snaprig` program becomes a branch. Its argument is a [`Task`], as JSON.
pub const PROCESS: &str = "ckpt-branch-process";

/// The fabric of a branch.
const FABRIC: &str = "branch";
/// How often it is looked at what runs.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// How often the fabric is asked how many faults have happened.
const COUNT_EVERY: Duration = Duration::from_millis(100);

/// What a branch is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Task {
    /// The checkpoint's directory, from the root.
    pub directory: PathBuf,
    /// Of what it is.
    pub what: What,
    /// Which checkpoint.
    pub round: u64,
    /// Directories that are to be copied.
    pub writes: Vec<PathBuf>,
    /// An empty directory for what the branch has.
    pub scratch: PathBuf,
    /// The `snaprig` program.
    pub exe: PathBuf,
    /// HCAs of the fabric, or of each node.
    pub hcas: u32,
    /// Letters of their models.
    pub models: String,
    /// The plan's file; none: nothing goes wrong.
    pub plan: Option<PathBuf>,
}

/// What a branch says, a line of JSON each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// The program runs again, and the plan has begun.
    Going {
        /// HCAs of the fabric.
        hcas: u32,
        /// Processes that have queue pairs.
        processes: u32,
    },
    /// It has ended.
    Ended {
        /// As a shell says it.
        status: i32,
        /// Faults that were seen to have happened.
        faults: u64,
    },
}

type AnyError = Box<dyn Error + Send + Sync>;

/// Becomes a branch: what [`PROCESS`] does. Standard input ends it, standard output is for events; standard error and `stdout`
/// in the working directory are the program's. The calling process has one thread.
pub fn main(task: &str) -> Result<i32, AnyError> {
    let task: Task = serde_json::from_str(task).map_err(|error| format!("{PROCESS}: {error}"))?;
    isolate::leave()?;
    // SAFETY: the process has one thread, so its child is a whole copy of it, and may do what it likes.
    match unsafe { libc::fork() } {
        0 => {
            set_parent_process_death_signal(Some(Signal::KILL))?;
            be_first(&task).map(|()| 0)
        }
        child => keep(
            // The -1 of a fork that failed is no number of a process.
            Pid::from_raw(child.max(0)).ok_or_else(io::Error::last_os_error)?,
        ),
    }
}

/// Waits for the first process; ends it when nobody wants it any more. When this returns nothing of its namespace runs.
fn keep(first: Pid) -> Result<i32, AnyError> {
    let process = pidfd_open(first, PidfdFlags::empty())?;
    let life = rustix::stdio::stdin();
    loop {
        // Nothing is ever written to it: it is readable at its end.
        let mut ready = [
            PollFd::new(&process, PollFlags::IN),
            PollFd::new(&life, PollFlags::IN),
        ];
        match poll(&mut ready, None) {
            Err(rustix::io::Errno::INTR) => continue,
            other => other?,
        };
        if ready[0].revents().is_empty() {
            pidfd_send_signal(&process, Signal::KILL)?;
        }
        let status = waitpid(Some(first), WaitOptions::empty())?;
        return Ok(status
            .and_then(|(_, status)| status.exit_status())
            .unwrap_or(1));
    }
}

fn be_first(task: &Task) -> Result<(), AnyError> {
    // Before a copy may be in its place.
    let out = fs::File::create("stdout")?;
    isolate::furnish(&task.scratch, &task.directory, &task.writes)?;
    std::env::set_current_dir("/")?;
    forget_newer(task)?;
    let place = Place::named_in(&task.scratch.join("fabrics"), FABRIC)?;
    let fabric = match task.what {
        What::Nodes(_) => None,
        What::Tree | What::Job(_) => Some(fabric(task, &place)?),
    };
    let mut restart = restart(task, fabric.as_ref())?;
    restart.stdin(std::process::Stdio::null()).stdout(out);
    restart.env("TMPDIR", &task.scratch);
    let mut program = restart.spawn()?;
    let status = watch(task, &place, &mut program)?;
    drop(fabric);
    Ok(say(&status)?)
}

/// Has the copy of the checkpoint's directory no newer ones: they are passed over.
fn forget_newer(task: &Task) -> Result<(), AnyError> {
    let store = match task.what {
        What::Tree => task.directory.clone(),
        What::Job(_) | What::Nodes(_) => task.directory.join("checkpoints"),
    };
    let store = snaprig_ckpt_image::store::Store::open(store)?;
    for round in store
        .rounds()?
        .into_iter()
        .filter(|round| *round > task.round)
    {
        fs::remove_dir_all(store.checkpoint(round)?.path())?;
    }
    Ok(())
}

fn fabric(task: &Task, place: &Place) -> Result<Fabric, AnyError> {
    let models = parse_models(&task.models).ok_or("the models of HCAs are A and B")?;
    let fabric = Fabric::builder().exe(&task.exe).hcas(task.hcas as usize);
    Ok(fabric.models(&models).at(place.clone()).start()?)
}

/// The program that restarts it.
fn restart(task: &Task, fabric: Option<&Fabric>) -> Result<Command, AnyError> {
    let mut command = match fabric {
        Some(fabric) => fabric.command(&task.exe),
        None => Command::new(&task.exe),
    };
    command.arg0(NAME);
    match &task.what {
        What::Tree => {
            let what = supervisor::What::Restart {
                round: Some(task.round),
            };
            let task = supervisor::Task {
                directory: task.directory.clone(),
                mode: Mode::default(),
                what,
            };
            command
                .arg(supervisor::PROCESS)
                .arg(serde_json::to_string(&task)?);
        }
        What::Job(_) => {
            command
                .args(["ckpt", "restart", "--job"])
                .arg(&task.directory);
        }
        What::Nodes(count) => {
            let (count, hcas) = (count.to_string(), task.hcas.to_string());
            command.args(["nodes", &count, "--fabric", FABRIC, "--hcas", &hcas]);
            command.args(["--model", &task.models, "--restart", "--job"]);
            command.arg(&task.directory);
            command.env(DIRECTORY_ENV, task.scratch.join("fabrics"));
        }
    }
    Ok(command)
}

/// Begins the plan when the program runs again, and waits for its end.
fn watch(task: &Task, place: &Place, program: &mut Child) -> Result<Event, AnyError> {
    let (mut operator, mut faults) = (None, 0);
    let mut counted = Instant::now();
    loop {
        if let Some(status) = program.try_wait()? {
            let status = code_of(status);
            faults = operator.as_ref().and_then(happened).unwrap_or(faults);
            return Ok(Event::Ended { status, faults });
        }
        if operator.is_none() && runs(task) {
            operator = Some(begin(task, place)?);
        }
        if counted.elapsed() >= COUNT_EVERY {
            counted = Instant::now();
            faults = operator.as_ref().and_then(happened).unwrap_or(faults);
        }
        thread::sleep(LOOK_EVERY);
    }
}

/// Whether its supervisor answers: it does so when the program runs again.
fn runs(task: &Task) -> bool {
    let answers = |directory: &Path| {
        let asked = ask(directory, Request::Status);
        asked.is_ok_and(|reply| matches!(reply, Reply::Status(_)))
    };
    let of_member = |name: &str| Job::open(&task.directory).map(|job| job.of_member(name));
    match &task.what {
        What::Tree => answers(&task.directory),
        What::Job(member) => of_member(member).is_ok_and(|it| answers(&it)),
        What::Nodes(_) => of_member(crate::source::HEAD).is_ok_and(|it| answers(&it)),
    }
}

fn begin(task: &Task, place: &Place) -> Result<Operator, AnyError> {
    let operator = Operator::connect(place)?;
    let fabric = operator.describe()?;
    if let Some(plan) = &task.plan {
        operator.plan(plan)?;
    }
    let pids = fabric.queue_pairs.iter().map(|pair| pair.pid);
    let pids: std::collections::BTreeSet<u32> = pids.collect();
    say(&Event::Going {
        hcas: fabric.hcas.len() as u32,
        processes: pids.len() as u32,
    })?;
    Ok(operator)
}

/// How many faults have happened; none: the fabric has ended.
fn happened(operator: &Operator) -> Option<u64> {
    operator.describe().ok()?.plan_faults
}

fn say(event: &Event) -> io::Result<()> {
    println!("{}", serde_json::to_string(event)?);
    Ok(())
}

fn code_of(status: ExitStatus) -> i32 {
    let signal = status.signal().map(|signal| 128 + signal);
    status.code().or(signal).unwrap_or(1)
}
