//! `snaprig demo`: the main job. An offload program is snapshotted in mid-run, its card is killed,
//! and it finishes on another card with the result of an undisturbed run.
//!
//! ```text
//! snaprig demo ---- starts ----> card 1, card 2 (card-process), host process (workload kmeans)
//!      |--- control socket --> host process: pause, capture, (card 1: SIGKILL), restore, resume
//!      '--- compares the result files of the host process and of a plain run on the host
//! ```

use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use clap::Args;
use serde::Serialize;
use snaprig_card::platform::Kind;
use snaprig_fixtures::kmeans;
use snaprig_rig::Rig;
use snaprig_snapify::control::{self, Client, Command as Control};

use crate::{
    AnyError,
    report::{Step, Steps},
};

/// Memory that a card needs beside the points: programs, rings, page tables, room to restore.
const CARD_BASE_BYTES: u64 = 256 << 20;

/// What `demo` is told.
#[derive(Args)]
pub struct Options {
    /// Points to cluster, as CSV [default: the data set that ships with snaprig]
    #[arg(long, value_name = "FILE", conflicts_with = "scale")]
    input: Option<PathBuf>,
    /// Generate N points of 3 dimensions for 32 means instead (the paper: 4000000)
    #[arg(long, value_name = "N")]
    scale: Option<usize>,
    /// Moves the point of interruption (and the generated points)
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Cards to boot
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(2..=8))]
    cards: u16,
    /// kvm or ptrace [default: the best that works here]
    #[arg(long)]
    platform: Option<Kind>,
    /// Print one JSON document instead of a table
    #[arg(long)]
    json: bool,
    /// Keep the snapshot and the results in DIR
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// Give up on the workload after this many seconds
    #[arg(long, default_value_t = 600, value_name = "SECONDS")]
    timeout: u64,
}

/// The JSON document.
#[derive(Serialize)]
struct Outcome<'a> {
    seed: u64,
    interrupted_at_run_function: u64,
    run_functions: u64,
    steps: &'a [Step],
    identical: bool,
}

/// Runs the demo. Success only if the two results are the same, bit for bit.
pub fn run(options: &Options) -> Result<ExitCode, AnyError> {
    let work = WorkDir::new(options.keep.as_deref())?;
    let mut steps = Steps::new(options.json);
    let workload = workload(options)?;
    let stop_at = point_of_interruption(options.seed, workload.run_functions());

    let undisturbed = work.path().join("undisturbed.txt");
    steps.run(
        "undisturbed",
        "the same arithmetic in one host process",
        |_| kmeans::run_on_host(&workload, &undisturbed),
    )?;
    let mut rig = steps.run("boot", &format!("{} cards", options.cards), |_| {
        Rig::builder()
            .exe(std::env::current_exe()?)
            .cards(options.cards.into())
            .memory_bytes((CARD_BASE_BYTES + 4 * workload.bytes()).next_multiple_of(4096))
            .platform(options.platform)
            .start()
            .map_err(AnyError::from)
    })?;
    let restored = work.path().join("restored.txt");
    let mut host = steps.run("start", "host process, offload process on card 1", |_| {
        HostProcess::start(rig.dir(), &workload, &restored)
    })?;
    let mut client = Client::connect(rig.dir(), host.pid())?;
    let snapshot = work.path().join("snapshot");
    interrupt(&mut client, &mut steps, &mut rig, &snapshot, stop_at)?;
    let deadline = Instant::now() + Duration::from_secs(options.timeout);
    let status = steps.run("finish", "the rest of the work, on card 2", |_| {
        host.wait(deadline)
    })?;
    if !status.success() {
        return Err(format!("the host process failed: {status}").into());
    }
    let identical = steps.run(
        "compare",
        "centres, inertia history, assignments",
        |bytes| {
            let (one, other) = (fs::read(&undisturbed)?, fs::read(&restored)?);
            *bytes = other.len() as u64;
            Ok::<_, AnyError>(one == other)
        },
    )?;
    let outcome = Outcome {
        seed: options.seed,
        interrupted_at_run_function: stop_at,
        run_functions: workload.run_functions(),
        steps: steps.all(),
        identical,
    };
    conclude(options, &outcome, &work)
}

/// Pause, capture, kill, restore, resume: the paper's sections 4.1 to 4.3 in a row.
fn interrupt(
    client: &mut Client,
    steps: &mut Steps,
    rig: &mut Rig,
    snapshot: &Path,
    stop_at: u64,
) -> Result<(), AnyError> {
    let name = format!("to run function {stop_at}, which is left in flight");
    steps.run("run", &name, |_| {
        client.run(&Control::BreakAtRunFunction(stop_at))
    })?;
    let report = client.run(&Control::Pause(snapshot.to_owned()))?;
    add(
        steps,
        "pause",
        "agree, lock, drain, save the local store",
        &report,
    );
    client.run(&Control::Capture(false))?;
    let report = client.run(&Control::Wait)?;
    add(
        steps,
        "capture",
        "offload process, through Snapify-IO",
        &report,
    );
    let pid = rig.cards()[0].pid();
    steps.run("kill", &format!("card 1, process {pid}, SIGKILL"), |_| {
        rig.card_mut(0).kill()?;
        rig.node()
            .wait_dead(1, Duration::from_secs(10))
            .map_err(AnyError::from)
    })?;
    let report = client.run(&Control::Restore(2))?;
    add(
        steps,
        "restore",
        "on card 2, windows registered anew",
        &report,
    );
    let report = client.run(&Control::Resume)?;
    add(steps, "resume", "locks released", &report);
    Ok(())
}

fn add(steps: &mut Steps, name: &str, detail: &str, report: &control::Report) {
    steps.add(name, report.elapsed(), report.bytes, detail);
}

/// The verdict, for people or machines, and as exit code.
fn conclude(options: &Options, outcome: &Outcome, work: &WorkDir) -> Result<ExitCode, AnyError> {
    if options.json {
        println!("{}", serde_json::to_string_pretty(outcome)?);
    } else if outcome.identical {
        println!("identical: the restored run equals the undisturbed one, bit for bit");
    } else {
        println!("DIFFERENT: the restored run does not equal the undisturbed one");
    }
    if !outcome.identical {
        eprintln!("both results are in {}", work.keep().display());
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

fn workload(options: &Options) -> Result<kmeans::Workload, AnyError> {
    Ok(match (&options.input, options.scale) {
        (Some(file), _) => kmeans::Workload::from_csv(file)?,
        (None, Some(points)) => kmeans::Workload::generated(points, options.seed)?,
        (None, None) => kmeans::Workload::shipped(),
    })
}

/// Where the seed interrupts: at any run function but the first and the last.
fn point_of_interruption(seed: u64, run_functions: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    2 + (z ^ z >> 31) % run_functions.saturating_sub(2).max(1)
}

/// Where results and snapshot go: a directory that is kept or removed.
struct WorkDir {
    path: PathBuf,
    remove: std::cell::Cell<bool>,
}

impl WorkDir {
    fn new(keep: Option<&Path>) -> Result<Self, AnyError> {
        let (path, remove) = match keep {
            Some(dir) => {
                fs::create_dir_all(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
                (dir.canonicalize()?, false)
            }
            None => (
                tempfile::Builder::new()
                    .prefix("snaprig-demo-")
                    .tempdir()?
                    .keep(),
                true,
            ),
        };
        Ok(Self {
            path,
            remove: remove.into(),
        })
    }

    fn path(&self) -> &Path {
        &self.path
    }

    /// Leaves the directory behind after all.
    fn keep(&self) -> &Path {
        self.remove.set(false);
        &self.path
    }
}

impl Drop for WorkDir {
    fn drop(&mut self) {
        if self.remove.get() {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// The host process of the offload application. Killed if it is still there when dropped.
struct HostProcess {
    child: Child,
}

impl HostProcess {
    /// Starts it and waits until it says that it can be controlled.
    fn start(rig: &Path, workload: &kmeans::Workload, result: &Path) -> Result<Self, AnyError> {
        let child = Command::new(std::env::current_exe()?)
            .args(["workload", "kmeans"])
            .args(workload.arguments())
            .arg("--result")
            .arg(result)
            .env("SNAPRIG_RIG", rig)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut host = Self { child };
        let stdout = host.child.stdout.take().expect("it is piped");
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        if line.trim() != kmeans::READY {
            let status = host.child.wait()?;
            return Err(format!("the host process did not start: {status}").into());
        }
        Ok(host)
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its exit status; it is killed at the deadline.
    fn wait(&mut self, deadline: Instant) -> Result<ExitStatus, AnyError> {
        // A pidfd is readable when its process has ended (pidfd_open(2)).
        let pidfd = rustix::process::pidfd_open(
            rustix::process::Pid::from_child(&self.child),
            rustix::process::PidfdFlags::empty(),
        )?;
        let left = deadline.saturating_duration_since(Instant::now());
        let mut fds = [rustix::event::PollFd::new(
            &pidfd,
            rustix::event::PollFlags::IN,
        )];
        let timeout = rustix::event::Timespec {
            tv_sec: left.as_secs().try_into()?,
            tv_nsec: left.subsec_nanos().into(),
        };
        if rustix::event::poll(&mut fds, Some(&timeout))? == 0 {
            self.child.kill()?;
            self.child.wait()?;
            return Err("the workload did not end in time (see --timeout)".into());
        }
        Ok(self.child.wait()?)
    }
}

impl Drop for HostProcess {
    fn drop(&mut self) {
        // It may have ended already; there is nobody to tell.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
