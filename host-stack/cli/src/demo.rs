//! `snaprig demo`: the main job. An offload program is snapshotted in mid-run, its card is killed,
//! and it finishes on another card with the result of an undisturbed run.
//!
//! ```text
//! snaprig demo ---- starts ----> card 1, card 2 (card-process), host process (workload kmeans)
//!      |--- control socket --> host process: pause, capture, (card 1: SIGKILL), restore, resume
//!      '--- compares the result files of the host process and of a plain run on the host
//! ```
//! What `--kill host` and `--kill all` do is in [`whole`].

mod whole;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{ExitCode, Stdio},
    time::Duration,
};

use clap::{Args, ValueEnum};
use serde::Serialize;
use snaprig_card_platform::Kind;
use snaprig_fixtures::kmeans;
use snaprig_rig::Rig;
use snaprig_rig_campaign::{
    Error,
    deadline::Deadline,
    host_process::{Controlled, HostProcess},
};
use snaprig_snapify::control::{self, Command as Control};

use crate::{
    AnyError,
    report::{Step, Steps},
    size,
};

/// Memory that a card needs beside the points: programs, rings, page tables, room to restore.
const CARD_BASE_BYTES: u64 = 256 << 20;

/// The result of the application.
const RESTORED: &str = "restored.txt";

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
    /// What is killed: the card, and the offload process goes on on another one; the host process, or all, cards and
    /// rig included, and the application is restarted from a checkpoint of both its processes
    #[arg(long, value_enum, default_value_t = Kill::Card, value_name = "WHAT")]
    kill: Kill,
    /// Cards to boot
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(2..=8))]
    cards: u16,
    /// Memory of each card, as in 1G,512M; the last one holds for all further cards [default: what
    /// the points need]
    #[arg(long, value_name = "BYTES,...", value_delimiter = ',', value_parser = size::parse)]
    memory: Vec<u64>,
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
    #[arg(long, default_value_t = 600, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86400))]
    timeout: u64,
}

/// What is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
enum Kill {
    /// The card
    Card,
    /// The host process and its supervisor
    Host,
    /// Both, all cards, and the rig
    All,
}

/// The JSON document.
#[derive(Serialize)]
struct Outcome<'a> {
    seed: u64,
    killed: Kill,
    interrupted_at_run_function: u64,
    run_functions: u64,
    steps: &'a [Step],
    identical: bool,
}

/// What all demos have.
struct Scene<'a> {
    options: &'a Options,
    workload: &'a kmeans::Workload,
    undisturbed: kmeans::Outcome,
    /// Run function that is interrupted.
    stop_at: u64,
    /// Of each card, in bytes; the last one holds for all further cards.
    memory: Vec<u64>,
    /// Where snapshots and results are kept.
    keep: Option<KeepDir>,
    deadline: Deadline,
}

/// Runs the demo. Success only if the two results are the same, bit for bit.
pub fn run(options: &Options) -> Result<ExitCode, AnyError> {
    let keep = options.keep.as_deref().map(KeepDir::new).transpose()?;
    let mut steps = Steps::new(options.json);
    let workload = workload(options)?;
    let undisturbed = steps.run::<_, AnyError>(
        "undisturbed",
        "the same arithmetic in one host process",
        |_| Ok(kmeans::golden(&workload)),
    )?;
    let scene = Scene {
        options,
        workload: &workload,
        undisturbed,
        stop_at: point_of_interruption(options.seed, workload.run_functions()),
        memory: match &options.memory[..] {
            [] => vec![(CARD_BASE_BYTES + 4 * workload.bytes()).next_multiple_of(4096)],
            each => each.to_vec(),
        },
        keep,
        deadline: Deadline::after(Duration::from_secs(options.timeout)),
    };
    let identical = match options.kill {
        Kill::Card => card_dies(&scene, &mut steps),
        Kill::Host | Kill::All => whole::run(&scene, &mut steps),
    };
    let identical = identical.map_err(with_hint)?;
    let outcome = Outcome {
        seed: options.seed,
        killed: options.kill,
        interrupted_at_run_function: scene.stop_at,
        run_functions: workload.run_functions(),
        steps: steps.all(),
        identical,
    };
    conclude(options, &outcome)
}

/// Says what to do about what took too long.
fn with_hint(error: AnyError) -> AnyError {
    match error.downcast_ref() {
        Some(Error::TimedOut { .. }) => {
            format!("{error}; give it more with --timeout SECONDS").into()
        }
        _ => error,
    }
}

impl Scene<'_> {
    /// Where snapshots and results go: with --keep there, else to where everything goes in the end.
    fn work(&self, scratch: &Path) -> PathBuf {
        self.keep.as_ref().map_or(scratch, KeepDir::path).to_owned()
    }

    /// Whether the result of the application is that of the plain run; if not, `keep` keeps both.
    fn compare(
        &self,
        steps: &mut Steps,
        work: &Path,
        keep: impl FnOnce(),
    ) -> Result<bool, AnyError> {
        let name = work.join("undisturbed.txt");
        self.undisturbed
            .write(&name)
            .map_err(|e| format!("{}: {e}", name.display()))?;
        let restored = work.join(RESTORED);
        let identical = steps.run(
            "compare",
            "centres, inertia history, assignments",
            |bytes| {
                let other =
                    fs::read(&restored).map_err(|e| format!("{}: {e}", restored.display()))?;
                *bytes = other.len() as u64;
                Ok::<_, AnyError>(self.undisturbed.to_text().into_bytes() == other)
            },
        )?;
        if !identical {
            keep();
            eprintln!("both results are in {}", work.display());
        }
        Ok(identical)
    }
}

/// The card dies, and the host process goes on with another.
fn card_dies(scene: &Scene, steps: &mut Steps) -> Result<bool, AnyError> {
    let Scene {
        options,
        workload,
        deadline,
        ..
    } = scene;
    let mut rig = steps.run("boot", &format!("{} cards", options.cards), |_| {
        Rig::builder()
            .exe(std::env::current_exe()?)
            .cards(options.cards.into())
            .memory_bytes_each(&scene.memory)
            .platform(options.platform)
            .start()
            .map_err(AnyError::from)
    })?;
    // Without --keep everything goes when the rig's directory does.
    let work = scene.work(rig.dir());
    let restored = work.join(RESTORED);
    let mut host = steps.run("start", "host process, offload process on card 1", |_| {
        HostProcess::start(rig.dir(), workload, &restored, Stdio::inherit(), *deadline)
    })?;
    let mut control = Controlled::connect(rig.dir(), host.pid(), *deadline)?;
    let snapshot = work.join("snapshot");
    interrupt(&mut control, steps, &rig, &snapshot, scene.stop_at)?;
    let status = steps.run("finish", "the rest of the work, on card 2", |_| {
        host.wait(*deadline)
    })?;
    if !status.success() {
        return Err(format!("the host process failed: {status}").into());
    }
    scene.compare(steps, &work, || rig.keep())
}

/// Pause, capture, kill, restore, resume: the paper's sections 4.1 to 4.3 in a row.
fn interrupt(
    control: &mut Controlled,
    steps: &mut Steps,
    rig: &Rig,
    snapshot: &Path,
    stop_at: u64,
) -> Result<(), AnyError> {
    let name = format!("to run function {stop_at}, which is left in flight");
    steps.run("run", &name, |_| {
        control.run("run", &Control::BreakAtRunFunction(stop_at))
    })?;
    let report = control.run("pause", &Control::Pause(snapshot.to_owned()))?;
    add(
        steps,
        "pause",
        "agree, lock, drain, save the local store",
        &report,
    );
    control.run("capture", &Control::Capture(false))?;
    let report = control.run("capture", &Control::Wait)?;
    add(
        steps,
        "capture",
        "offload process, through Snapify-IO",
        &report,
    );
    let pid = rig.card(0).pid().ok_or("card 1 has no process")?;
    steps.run("kill", &format!("card 1, process {pid}, SIGKILL"), |_| {
        rig.card(0).kill().map_err(AnyError::from)
    })?;
    let report = control.run("restore", &Control::Restore(2))?;
    add(
        steps,
        "restore",
        "on card 2, windows registered anew",
        &report,
    );
    let report = control.run("resume", &Control::Resume)?;
    add(steps, "resume", "locks released", &report);
    Ok(())
}

fn add(steps: &mut Steps, name: &str, detail: &str, report: &control::Report) {
    steps.add(name, report.elapsed(), report.bytes, detail);
}

/// The verdict, for people or machines, and as exit code.
fn conclude(options: &Options, outcome: &Outcome) -> Result<ExitCode, AnyError> {
    if options.json {
        println!("{}", serde_json::to_string_pretty(outcome)?);
    } else if outcome.identical {
        println!("identical: the restored run equals the undisturbed one, bit for bit");
    } else {
        println!("DIFFERENT: the restored run does not equal the undisturbed one");
    }
    Ok(match outcome.identical {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
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

/// Where results and snapshot are kept. Nothing half-written stays in it.
struct KeepDir(PathBuf);

impl KeepDir {
    fn new(path: &Path) -> Result<Self, AnyError> {
        fs::create_dir_all(path)
            .and_then(|()| path.canonicalize())
            .map(Self)
            .map_err(|e| format!("{}: {e}", path.display()).into())
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for KeepDir {
    fn drop(&mut self) {
        // A host process that was killed could not do it. There may be none.
        let _ = fs::remove_dir_all(self.0.join("snapshot.partial"));
    }
}
