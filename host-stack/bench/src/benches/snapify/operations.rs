//! Checkpoint, restart, swap and migration of the workloads (the paper's Figure 10).
//!
//! ```text
//! checkpoint: a program on card 1 --> held --> `snaprig snapify checkpoint` --> killed --> `restart`, on another rig
//! swap:       a program on card 1 --> held --> out, to a directory of the host --> in, on card 1
//! migration:  a program on card 1 --> held --> to card 2
//! live:       a program on card 1 --> copied to card 2 while it works --> to card 2
//! ```
//! Each time it is a program of its own, which works when it is held: its run functions are under way. Of a live migration,
//! only that counts for which the program stands still. Where a step is one of Snapify's, its time is what the program
//! reports of it (`snaprig snapify list --json`).

use std::{
    collections::BTreeMap,
    fs::File,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use snaprig_card_platform::Kind;
use snaprig_rig::Rig;
use snaprig_snapify::{
    Step, StepReport,
    control::{Client, Command as Control, Report},
};

use super::{
    super::ckpt::{drop_cached, said, wait_for},
    Part,
    workloads::{WORKLOADS, Workload},
};
use crate::{AnyError, compile::Programs, progress};

/// The longest that a program may take for one of them.
const PATIENCE: Duration = Duration::from_secs(600);
/// A program is held when it has sent this many run functions.
const HELD_AT: u64 = 2;
/// Cards by their nodes: where a program is, and where it migrates to.
const HERE: u16 = 1;
const THERE: u16 = 2;

/// What is done to a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// Host process and offload process are saved, and run on.
    Checkpoint,
    /// Both are brought back.
    Restart,
    /// The offload process goes to another card.
    Migration,
    /// The same, of one that was copied while it worked.
    Live,
    /// The offload process leaves its card.
    SwapOut,
    /// It comes back.
    SwapIn,
}

/// What the time of an operation goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// All stop, and the local store is saved.
    Pause,
    /// The offload process is captured, and its snapshot complete on the disk.
    Capture,
    /// The host process stands still and is copied; of a restart: all that is done for the host process.
    Host,
    /// What was copied of the host process comes to the disk.
    Write,
    /// The offload process is brought back, and connected.
    Restore,
    /// All go on.
    Resume,
    /// What is left.
    Rest,
}

/// What a checkpoint consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Piece {
    /// The host process.
    HostImage,
    /// The offload process.
    OffloadImage,
    /// Files of its COI buffers.
    LocalStore,
}

impl Operation {
    /// What its time goes to, in order; together they are all of it.
    pub fn phases(self) -> &'static [Phase] {
        use Phase::{Capture, Host, Pause, Rest, Restore, Resume, Write};
        match self {
            Self::Checkpoint => &[Pause, Capture, Host, Write, Rest],
            Self::Restart => &[Host, Restore, Resume],
            Self::Migration | Self::Live => &[Pause, Capture, Restore, Resume, Rest],
            Self::SwapOut => &[Pause, Capture, Rest],
            Self::SwapIn => &[Restore, Resume, Rest],
        }
    }
}

impl Phase {
    /// The one that a step of Snapify belongs to.
    fn of(step: Step) -> Self {
        match step {
            Step::Copy | Step::Preload => Self::Rest,
            Step::Agree | Step::Lock | Step::Drain => Self::Pause,
            Step::Capture | Step::Commit => Self::Capture,
            Step::Verify | Step::Restore | Step::Reconnect => Self::Restore,
            Step::Resume => Self::Resume,
        }
    }
}

/// What one round of an operation took.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Sample {
    /// From beginning to end.
    pub total_ms: f64,
    /// Parts of that.
    pub phases_ms: BTreeMap<Phase, f64>,
    /// Of a checkpoint.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub bytes: BTreeMap<Piece, u64>,
}

/// All rounds of an operation on a workload.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The workload.
    pub workload: &'static str,
    /// The operation.
    pub operation: Operation,
    /// A sample a round.
    pub samples: Vec<Sample>,
}

/// Measures what these parts ask for, in so many rounds.
pub fn measure(
    programs: &Programs,
    parts: &[Part],
    rounds: u16,
    platform: Option<Kind>,
    base: &Path,
    scale: f64,
) -> Result<Vec<Row>, AnyError> {
    // Who kills the benchmark sees whose directory is left.
    let directory = tempfile::Builder::new()
        .prefix("snaprig-bench-")
        .tempdir_in(base)?;
    let scene = Scene {
        programs,
        platform,
        scale,
        rig: boot(platform, THERE)?,
        directory: directory.path().canonicalize()?,
    };
    let bar = progress::bar(usize::from(rounds) * WORKLOADS.len());
    let mut rows: BTreeMap<(Operation, usize), Vec<Sample>> = BTreeMap::new();
    for _ in 0..rounds {
        for (index, workload) in WORKLOADS.iter().enumerate() {
            bar.set_message(workload.name);
            for (operation, sample) in scene.round(workload, parts)? {
                rows.entry((operation, index)).or_default().push(sample);
            }
            bar.inc(1);
        }
    }
    let rows = rows.into_iter();
    let row = |((operation, index), samples): ((Operation, usize), Vec<Sample>)| Row {
        workload: WORKLOADS[index].name,
        operation,
        samples,
    };
    Ok(rows.map(row).collect())
}

/// A rig of so many cards.
fn boot(platform: Option<Kind>, cards: u16) -> Result<Rig, AnyError> {
    Ok(Rig::builder()
        .exe(std::env::current_exe()?)
        .platform(platform)
        .cards(usize::from(cards))
        .start()?)
}

/// Where programs run, and where their snapshots go.
struct Scene<'a> {
    programs: &'a Programs,
    platform: Option<Kind>,
    scale: f64,
    rig: Rig,
    directory: PathBuf,
}

impl Scene<'_> {
    fn round(
        &self,
        workload: &Workload,
        parts: &[Part],
    ) -> Result<Vec<(Operation, Sample)>, AnyError> {
        let mut samples = Vec::new();
        for part in parts {
            let place = self.place()?;
            let measured = match part {
                Part::Overhead => Ok(Vec::new()),
                Part::Checkpoint => self.checkpoint(workload, place.path()),
                Part::Swap => self.swap(workload, place.path()),
                Part::Migration => self.migrate(workload, place.path()),
            };
            samples.extend(measured.map_err(|error| format!("{}: {error}", workload.name))?);
        }
        Ok(samples)
    }

    fn place(&self) -> Result<tempfile::TempDir, AnyError> {
        // What was written before is on the disk: nobody waits for what others wrote.
        rustix::fs::syncfs(File::open(&self.directory)?)?;
        Ok(tempfile::tempdir_in(&self.directory)?)
    }

    /// A program that works, and sends no more run functions until it was resumed.
    fn held(&self, workload: &Workload) -> Result<Program, AnyError> {
        let mut command = workload.large(self.programs, self.rig.dir(), self.scale)?;
        let mut program = Program::start(&mut command)?;
        program.until(|pid| {
            let mut client = Client::connect(self.rig.dir(), pid).ok()?;
            let hold = Control::BreakAtRunFunction(HELD_AT);
            client.run(&hold, PATIENCE).ok()
        })?;
        Ok(program)
    }

    /// A program that works, and goes on.
    fn at_work(&self, workload: &Workload, place: &Path) -> Result<Program, AnyError> {
        let program = self.held(workload)?;
        let mut client = Client::connect(self.rig.dir(), program.child.id())?;
        for command in [Control::Pause(place.join("held")), Control::Resume] {
            client.run(&command, PATIENCE)?;
        }
        Ok(program)
    }

    fn checkpoint(
        &self,
        workload: &Workload,
        place: &Path,
    ) -> Result<Vec<(Operation, Sample)>, AnyError> {
        let mut program = self.held(workload)?;
        let pid = program.child.id();
        let saved: Saved = said(snapify("checkpoint", pid, place)?.arg("--json"))?;
        let steps = program.until(|pid| resumed(self.rig.dir(), pid))?;
        let checkpoint = saved.sample(&steps);
        drop(program);
        drop_cached(place)?;
        let rig = boot(self.platform, HERE)?;
        let begun = Instant::now();
        let mut command = snapify("restart", pid, place)?;
        command.arg("--rig").arg(rig.dir());
        let mut program = Program::start(command.stdout(Stdio::null()))?;
        let steps = program.until(|_| resumed(rig.dir(), pid))?;
        let restart = restarted(&steps, begun.elapsed());
        Ok(vec![
            (Operation::Checkpoint, checkpoint),
            (Operation::Restart, restart),
        ])
    }

    fn swap(
        &self,
        workload: &Workload,
        place: &Path,
    ) -> Result<Vec<(Operation, Sample)>, AnyError> {
        let program = self.held(workload)?;
        let (out, enter) = (
            Control::SwapOut(place.join("snapshot")),
            Control::SwapIn(HERE),
        );
        Ok(vec![
            (
                Operation::SwapOut,
                self.timed(&program, Operation::SwapOut, &out)?,
            ),
            (
                Operation::SwapIn,
                self.timed(&program, Operation::SwapIn, &enter)?,
            ),
        ])
    }

    fn migrate(
        &self,
        workload: &Workload,
        place: &Path,
    ) -> Result<Vec<(Operation, Sample)>, AnyError> {
        let go = |name| Control::Migrate(place.join(name), THERE);
        let program = self.held(workload)?;
        let stopped = self.timed(&program, Operation::Migration, &go("stopped"))?;
        drop(program);
        let program = self.at_work(workload, place)?;
        let copy = Control::Copy(place.join("live"), Some(THERE));
        Client::connect(self.rig.dir(), program.child.id())?.run(&copy, PATIENCE)?;
        let live = self.timed(&program, Operation::Live, &go("live"))?;
        Ok(vec![
            (Operation::Migration, stopped),
            (Operation::Live, live),
        ])
    }

    fn timed(
        &self,
        program: &Program,
        operation: Operation,
        command: &Control,
    ) -> Result<Sample, AnyError> {
        let mut client = Client::connect(self.rig.dir(), program.child.id())?;
        let begun = Instant::now();
        let report = client.run(command, PATIENCE)?;
        Ok(timed(operation, &report, begun.elapsed()))
    }
}

/// The steps of a program's last snapshot, from pause to resume.
fn resumed(rig: &Path, pid: u32) -> Option<Vec<StepReport>> {
    let mut client = Client::connect(rig, pid).ok()?;
    let report = client.run(&Control::List, PATIENCE).ok()?;
    let steps = report.processes.into_iter().next()?.steps;
    let is_over = steps.iter().any(|step| step.step == Step::Resume);
    is_over.then_some(steps)
}

/// A process that is ours: with it ends what it has started.
struct Program {
    child: Child,
}

impl Program {
    fn start(command: &mut Command) -> Result<Self, AnyError> {
        let child = command.stdin(Stdio::null()).spawn()?;
        Ok(Self { child })
    }

    /// Waits for something of it, which is told its number.
    fn until<T>(&mut self, mut of: impl FnMut(u32) -> Option<T>) -> Result<T, AnyError> {
        let (pid, mut found, mut ended) = (self.child.id(), None, None);
        wait_for(|| {
            found = of(pid);
            ended = self.child.try_wait().ok().flatten();
            found.is_some() || ended.is_some()
        })?;
        match (found, ended) {
            (Some(found), _) => Ok(found),
            (None, Some(status)) => Err(format!("it ended too early: {status}").into()),
            (None, None) => Err("it is not there".into()),
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            // A supervisor takes with it what it has restarted.
            // SAFETY: kill(2) takes numbers alone; the child has not been waited for.
            unsafe { libc::kill(self.child.id() as i32, libc::SIGTERM) };
            let _ = self.child.wait();
        }
    }
}

fn snapify(what: &str, pid: u32, place: &Path) -> Result<Command, AnyError> {
    let mut command = Command::new(std::env::current_exe()?);
    command
        .args(["snapify", what, &pid.to_string(), "--dir"])
        .arg(place)
        .stdin(Stdio::null());
    Ok(command)
}

/// What `snaprig snapify checkpoint` says.
#[derive(Deserialize)]
struct Saved {
    bytes: u64,
    stood_still_ms: f64,
    plugins_ms: f64,
    took_ms: f64,
}

impl Saved {
    /// With what the program says of its offload process.
    fn sample(&self, steps: &[StepReport]) -> Sample {
        let mut phases_ms = phases(steps);
        let of = |phase| phases_ms.get(&phase).copied().unwrap_or(0.0);
        let (pause, capture) = (of(Phase::Pause), of(Phase::Capture));
        // Resuming goes on while the host process is written; of the capture that counts which is not over by then.
        phases_ms.retain(|phase, _| *phase == Phase::Pause);
        let after = (self.took_ms - self.plugins_ms - self.stood_still_ms).max(0.0);
        let capture = (capture - self.stood_still_ms).clamp(0.0, after);
        phases_ms.insert(Phase::Host, self.stood_still_ms);
        phases_ms.insert(Phase::Capture, capture);
        phases_ms.insert(Phase::Write, after - capture);
        phases_ms.insert(Phase::Rest, (self.plugins_ms - pause).max(0.0));
        let of = |wanted| {
            let steps = steps.iter().filter(|step| step.step == wanted);
            steps.map(|step| step.bytes).sum()
        };
        Sample {
            total_ms: self.took_ms,
            phases_ms,
            bytes: BTreeMap::from([
                (Piece::HostImage, self.bytes),
                (Piece::OffloadImage, of(Step::Capture)),
                (Piece::LocalStore, of(Step::Drain)),
            ]),
        }
    }
}

fn restarted(steps: &[StepReport], took: Duration) -> Sample {
    let mut phases_ms = phases(steps);
    // These are the checkpoint's.
    phases_ms.retain(|phase, _| matches!(phase, Phase::Restore | Phase::Resume));
    remainder(phases_ms, Phase::Host, took)
}

fn timed(operation: Operation, report: &Report, took: Duration) -> Sample {
    let mut phases_ms = phases(&report.steps);
    phases_ms.retain(|phase, _| operation.phases().contains(phase));
    remainder(phases_ms, Phase::Rest, took)
}

/// What is not known of the time is of this phase.
fn remainder(mut phases_ms: BTreeMap<Phase, f64>, rest: Phase, took: Duration) -> Sample {
    let total_ms = milliseconds(took);
    let known: f64 = phases_ms.values().sum();
    phases_ms.insert(rest, (total_ms - known).max(0.0));
    Sample {
        total_ms,
        phases_ms,
        bytes: BTreeMap::new(),
    }
}

fn phases(steps: &[StepReport]) -> BTreeMap<Phase, f64> {
    let mut phases_ms = BTreeMap::new();
    for step in steps {
        let time = milliseconds(step.elapsed.unwrap_or_default());
        *phases_ms.entry(Phase::of(step.step)).or_default() += time;
    }
    phases_ms
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps() -> Vec<StepReport> {
        let step = |(bytes, step)| StepReport {
            step,
            elapsed: Some(Duration::from_millis(10)),
            bytes,
        };
        // What is copied before it is paused does not count.
        let live = [Step::Copy, Step::Preload];
        let steps = Step::ALL.into_iter().filter(|step| !live.contains(step));
        (0..).zip(steps).map(step).collect()
    }

    #[test]
    fn phases_are_all_of_an_operation() {
        let saved = Saved {
            bytes: 7,
            stood_still_ms: 20.0,
            plugins_ms: 60.0,
            took_ms: 100.0,
        };
        let checkpoint = saved.sample(&steps());
        let report = |operation: Operation| Report {
            steps: steps()
                .into_iter()
                .filter(|step| operation.phases().contains(&Phase::of(step.step)))
                .collect(),
            ..Report::default()
        };
        let took = Duration::from_millis(200);
        let run = |operation| (operation, timed(operation, &report(operation), took));
        let all = [
            (Operation::Checkpoint, checkpoint.clone()),
            (Operation::Restart, restarted(&steps(), took)),
            run(Operation::Migration),
            run(Operation::Live),
            run(Operation::SwapOut),
            run(Operation::SwapIn),
        ];
        for (operation, sample) in all {
            let phases = sample.phases_ms.keys().copied();
            let mut expected = operation.phases().to_vec();
            expected.sort();
            assert_eq!(phases.collect::<Vec<_>>(), expected, "{operation:?}");
            let sum: f64 = sample.phases_ms.values().sum();
            assert!((sum - sample.total_ms).abs() < 1e-9, "{operation:?}");
        }
        let expected = [30.0, 0.0, 20.0, 20.0, 30.0];
        let phases = Operation::Checkpoint.phases().iter();
        let phases = phases.map(|phase| checkpoint.phases_ms[phase]);
        assert_eq!(phases.collect::<Vec<_>>(), expected);
        let pieces = checkpoint.bytes.values().copied();
        assert_eq!(pieces.collect::<Vec<_>>(), [7, 3, 2]);
    }
}
