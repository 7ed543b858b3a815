//! `snaprig bench ckpt`: checkpoint and restart of processes beside what the disk does, and beside CRIU and DMTCP
//! where they are on the PATH.
//!
//! All of them are measured until the checkpoint is on the disk, and from a disk whose files nobody has in memory.

mod peers;

use std::{
    fs::{self, File},
    io::{Read, Write},
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, Stdio},
    thread,
    time::{Duration, Instant},
};

use clap::Args;
use snaprig_fixtures::programs::{BENCH_CALLS, BENCH_COMPUTE};
use snaprig_supervisor::Request;

use self::peers::Peer;
use crate::{
    AnyError, BenchWith,
    baselines::Baseline,
    host::on_the_host,
    table::{Aim, Row, Unit, print},
};

/// Checkpoints of processes.
pub static BENCH: BenchWith<Options> = BenchWith::new(
    "ckpt",
    "Checkpoint and restart of processes beside the disk, and CRIU and DMTCP where they are installed",
    run,
);

const PROGRAM: &str = include_str!("../../../../../fixtures/bench/ckpt.c");

/// What the benchmark is told.
#[derive(Args)]
pub struct Options {
    /// Print JSON, with every sample
    #[arg(long)]
    json: bool,
    /// How often everything is measured
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    runs: u16,
    /// Only measures whose name has this in it
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
    /// Where checkpoints are written [default: a new directory in the current one]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Use this share of the usual memory
    #[arg(long, value_name = "SHARE", default_value_t = 1.0, hide = true)]
    scale: f64,
}

/// How long a program, a supervisor or a peer may take to be ready.
const PATIENCE: Duration = Duration::from_secs(120);
const MIB: u64 = 1 << 20;
/// What a pause is to be at most.
const PAUSE_MS: f64 = 20.0;
/// Most that it may cost to be ready for a checkpoint: 0.3%.
const OVERHEAD: f64 = 0.003;
/// How long a program writes to its memory between two checkpoints: all that is to be dirty.
const DIRTYING: Duration = Duration::from_millis(400);

/// Something to measure, and the rows that its samples go to.
struct Measure {
    what: Measured,
    rows: Vec<Row>,
}

#[derive(Clone, Copy)]
enum Measured {
    /// Checkpoint and restart of so many MiB with so many threads.
    Full(u64, u32),
    /// An increment, so much percent of whose memory is dirty.
    Increment(u64, f64),
    /// How long a program of so many MiB stands still, so much percent of whose memory is dirty.
    Background(u64, f64),
    /// How long a program of so many MiB runs nowhere while it moves, so much percent of whose memory is dirty.
    Migration(u64, f64),
    /// What it costs a program to be supervised.
    Overhead(&'static [u8], &'static str),
}

fn measures() -> Vec<Measure> {
    let mut all = Vec::new();
    for (size, mib) in [("64M", 64), ("512M", 512), ("4G", 4096)] {
        for threads in [1, 16] {
            let mut rows = Vec::new();
            for what in ["write", "restart"] {
                let name = format!("{what} {size} {threads} t.");
                let row = |baseline, aim| Row::new(name.clone(), Unit::Rate, baseline, aim);
                rows.push(row("memcpy", None));
                rows.push(row("file", Some(Aim::AtLeast(0.8))));
                for peer in Peer::ALL {
                    rows.push(row(peer.name(), Some(Aim::AtLeast(1.0))));
                }
            }
            let what = Measured::Full(mib, threads);
            all.push(Measure { what, rows });
        }
        for percent in [1.0, 10.0] {
            let name = format!("{percent}% of {size}");
            let rows = vec![Row::new(name, Unit::Milliseconds, "whole", None)];
            let what = Measured::Increment(mib, percent);
            all.push(Measure { what, rows });
        }
        let aim = Some(Aim::AtMost(1.0));
        let rows = vec![
            Row::new(format!("pause {size}"), Unit::Milliseconds, "20 ms", aim),
            Row::new(format!("pause {size}"), Unit::Milliseconds, "whole", None),
            Row::new(
                format!("pause {size}, seen"),
                Unit::Milliseconds,
                "20 ms",
                None,
            ),
        ];
        let what = Measured::Background(mib, 1.0);
        all.push(Measure { what, rows });
        let name = format!("blackout {size}");
        let rows = vec![Row::new(name, Unit::Milliseconds, "restart", None)];
        let what = Measured::Migration(mib, 1.0);
        all.push(Measure { what, rows });
    }
    for (name, program, argument, unit, aim) in [
        (
            "sgemm, supervised",
            BENCH_COMPUTE,
            "sgemm",
            Unit::Arithmetic,
            Aim::AtLeast(1.0 - OVERHEAD),
        ),
        (
            "null, supervised",
            BENCH_CALLS,
            "null",
            Unit::Microseconds,
            Aim::AtMost(1.0 + OVERHEAD),
        ),
    ] {
        let rows = vec![Row::new(name.into(), unit, "alone", Some(aim))];
        let what = Measured::Overhead(program, argument);
        all.push(Measure { what, rows });
    }
    all
}

/// Runs the benchmark.
fn run(options: &Options) -> Result<ExitCode, AnyError> {
    let base = options.dir.clone().unwrap_or(".".into());
    let scene = Scene::new(&base, options.scale)?;
    let mut measures = measures();
    measures.retain(|measure| measure.rows.iter().any(|row| row.is_named(&options.only)));
    for run in 0..options.runs {
        for measure in &mut measures {
            // Who comes first finds memory and disk as the one before left them: they take turns.
            let samples = scene.measure(measure.what, run % 2 == 1)?;
            for (row, (ours, theirs)) in measure.rows.iter_mut().zip(samples) {
                row.ours.push(ours);
                match theirs {
                    Theirs::Missing => row.samples = None,
                    Theirs::Is(sample) => row.samples.get_or_insert_default().push(sample),
                }
            }
        }
    }
    let rows = measures.into_iter().flat_map(|measure| measure.rows);
    print(rows.collect(), options.runs, false, options.json)?;
    Ok(ExitCode::SUCCESS)
}

/// A baseline's sample.
#[derive(Clone, Copy)]
enum Theirs {
    /// It is not installed.
    Missing,
    /// None: it failed.
    Is(Option<f64>),
}

impl Theirs {
    fn map(self, change: impl Fn(f64) -> f64) -> Self {
        match self {
            Self::Is(Some(sample)) => known(change(sample)),
            other => other,
        }
    }
}

fn known(sample: f64) -> Theirs {
    Theirs::Is(Some(sample))
}

/// Seconds that something takes.
fn timed<T>(work: impl FnOnce() -> Result<T, AnyError>) -> Result<(f64, T), AnyError> {
    let begun = Instant::now();
    let made = work()?;
    Ok((begun.elapsed().as_secs_f64(), made))
}

/// What all measures share.
struct Scene {
    directory: tempfile::TempDir,
    program: PathBuf,
    scale: f64,
}

impl Scene {
    fn new(base: &Path, scale: f64) -> Result<Self, AnyError> {
        // Who kills the benchmark sees whose directory is left.
        let directory = tempfile::Builder::new()
            .prefix("snaprig-bench-")
            .tempdir_in(base)?;
        let (source, program) = (
            directory.path().join("ckpt.c"),
            directory.path().join("program"),
        );
        fs::write(&source, PROGRAM)?;
        let gcc = Command::new("gcc")
            .args(["-O2", "-pthread", "-o"])
            .args([&program, &source])
            .status();
        match gcc {
            Ok(status) if status.success() => {}
            Ok(status) => return Err(format!("gcc: {status}").into()),
            Err(error) => return Err(format!("gcc: {error}; ci/setup installs it").into()),
        }
        Ok(Self {
            directory,
            program,
            scale,
        })
    }

    /// A sample for each row.
    fn measure(
        &self,
        what: Measured,
        are_peers_first: bool,
    ) -> Result<Vec<(f64, Theirs)>, AnyError> {
        match what {
            Measured::Full(mib, threads) => self.full(mib, threads, are_peers_first),
            Measured::Increment(mib, percent) => self.increment(mib, percent),
            Measured::Background(mib, percent) => self.background(mib, percent),
            Measured::Migration(mib, percent) => self.migration(mib, percent),
            Measured::Overhead(program, argument) => self.overhead(program, argument),
        }
    }

    fn mib(&self, usual: u64) -> u64 {
        ((usual as f64 * self.scale) as u64).max(1)
    }

    fn full(
        &self,
        mib: u64,
        threads: u32,
        are_peers_first: bool,
    ) -> Result<Vec<(f64, Theirs)>, AnyError> {
        let bytes = self.mib(mib) * MIB;
        let rate = |seconds: f64| bytes as f64 / seconds / 1e9;
        let image = self.directory.path().join("file");
        let copy = Baseline::Memcpy(MIB as usize, true).measure(false, 1.0);
        let (written, ()) = timed(|| write_file(&image, bytes))?;
        drop_cached(&image)?;
        let (read, ()) = timed(|| read_file(&image, bytes))?;
        fs::remove_file(&image)?;
        let all_peers = || {
            let seconds = Peer::ALL.map(|peer| self.peer(peer, mib, threads));
            seconds.map(|both| both.map(|theirs| theirs.map(rate)))
        };
        let ((write, restart), peers) = match are_peers_first {
            false => (self.ours(mib, threads)?, all_peers()),
            true => {
                let peers = all_peers();
                (self.ours(mib, threads)?, peers)
            }
        };
        let mut samples = Vec::new();
        for (index, ours, file) in [(0, write, written), (1, restart, read)] {
            let ours = rate(ours);
            samples.push((ours, Theirs::Is(copy)));
            samples.push((ours, known(rate(file))));
            samples.extend(peers.iter().map(|peer| (ours, peer[index])));
        }
        Ok(samples)
    }

    /// Seconds of a checkpoint and of a restart.
    fn ours(&self, mib: u64, threads: u32) -> Result<(f64, f64), AnyError> {
        let place = self.place()?;
        let mut job = self.launch(place.path(), &[], mib, threads, 0.0)?;
        let dumped = job.dump(&["--kill"])?;
        job.child.wait()?;
        drop_cached(place.path())?;
        let begun = Instant::now();
        let mut command = snaprig()?;
        command.arg("restart").arg(job.store());
        job.child = command.stdout(Stdio::null()).spawn()?;
        job.wait_for_supervisor()?;
        let restart = begun.elapsed().as_secs_f64();
        job.stop()?;
        Ok((dumped.took_ms / 1e3, restart))
    }

    /// As [`Scene::ours`], of what may be missing.
    fn peer(&self, peer: Peer, mib: u64, threads: u32) -> [Theirs; 2] {
        if !peer.is_here() {
            return [Theirs::Missing; 2];
        }
        match self.peers(peer, mib, threads) {
            Ok((write, restart)) => [known(write), known(restart)],
            Err(error) => {
                eprintln!("{}: {error}", peer.name());
                [Theirs::Is(None); 2]
            }
        }
    }

    fn peers(&self, peer: Peer, mib: u64, threads: u32) -> Result<(f64, f64), AnyError> {
        let place = self.place()?;
        let (ready, stop) = (place.path().join("ready"), place.path().join("stop"));
        let arguments = self.arguments(mib, threads, 0.0, &ready, &stop);
        let images = place.path().join("images");
        fs::create_dir(&images)?;
        let mut running = peer.launch(&self.program, &arguments, &images)?;
        wait_for(|| ready.exists())?;
        let (write, ()) = timed(|| {
            running.checkpoint()?;
            Ok(rustix::fs::syncfs(File::open(&images)?)?)
        })?;
        drop_cached(&images)?;
        let (restart, ()) = timed(|| running.restart())?;
        File::create(&stop)?;
        running.end()?;
        Ok((write, restart))
    }

    fn increment(&self, mib: u64, percent: f64) -> Result<Vec<(f64, Theirs)>, AnyError> {
        let place = self.place()?;
        let mode = ["--mode", "incremental"];
        let job = self.launch(place.path(), &mode, mib, 1, percent)?;
        let whole = job.dump(&[])?;
        thread::sleep(DIRTYING);
        let increment = job.dump(&[])?;
        job.stop()?;
        Ok(vec![(increment.took_ms, known(whole.took_ms))])
    }

    fn background(&self, mib: u64, percent: f64) -> Result<Vec<(f64, Theirs)>, AnyError> {
        let place = self.place()?;
        let job = self.launch(place.path(), &[], mib, 1, percent)?;
        let whole = job.dump(&[])?;
        job.stop()?;
        let place = self.place()?;
        let mode = ["--mode", "background"];
        let job = self.launch(place.path(), &mode, mib, 1, percent)?;
        job.dump(&[])?;
        thread::sleep(DIRTYING);
        let dumped = job.dump(&[])?;
        let seen = job.stop()?;
        let pause = dumped.stood_still_ms;
        Ok(vec![
            (pause, known(PAUSE_MS)),
            (pause, known(whole.stood_still_ms)),
            (seen, known(PAUSE_MS)),
        ])
    }

    /// Beside a checkpoint and a restart of it.
    fn migration(&self, mib: u64, percent: f64) -> Result<Vec<(f64, Theirs)>, AnyError> {
        let (write, restart) = self.ours(mib, 1)?;
        let (source, target) = (self.place()?, self.place()?);
        let mut job = self.launch(source.path(), &[], mib, 1, percent)?;
        let socket = target.path().join("socket");
        let mut command = snaprig()?;
        command
            .arg("receive")
            .arg("--dir")
            .arg(target.path().join("store"));
        let child = command.arg(&socket).stdout(Stdio::null()).spawn()?;
        // It ends when there is the file that it was told of where it began.
        let moved = Job {
            child,
            place: source.path().to_owned(),
        };
        wait_for(|| socket.exists())?;
        let mut command = snaprig()?;
        command
            .args(["migrate", "--json", "--dir"])
            .arg(job.store());
        let migrated: Migrated = said(command.arg(&socket))?;
        job.child.wait()?;
        moved.stop()?;
        Ok(vec![(migrated.blackout_ms, known((write + restart) * 1e3))])
    }

    fn overhead(&self, program: &[u8], argument: &str) -> Result<Vec<(f64, Theirs)>, AnyError> {
        let arguments = [argument.to_owned(), self.scale.to_string()];
        let alone = on_the_host(self.directory.path(), program, &arguments, &[], true)?;
        let place = self.place()?;
        let store = place.path().join("store");
        let store = store.to_str().ok_or("a directory's name is not UTF-8")?;
        let exe = std::env::current_exe()?;
        let exe = exe.to_str().ok_or("a program's name is not UTF-8")?;
        let under = [exe, "ckpt", "launch", "--dir", store, "--"];
        let supervised = on_the_host(self.directory.path(), program, &arguments, &under, true)?;
        Ok(vec![(supervised, known(alone))])
    }

    fn place(&self) -> Result<tempfile::TempDir, AnyError> {
        // What was written before is on the disk: nobody waits for what others wrote.
        rustix::fs::syncfs(File::open(self.directory.path())?)?;
        Ok(tempfile::tempdir_in(self.directory.path())?)
    }

    fn arguments(
        &self,
        mib: u64,
        threads: u32,
        percent: f64,
        ready: &Path,
        stop: &Path,
    ) -> Vec<String> {
        vec![
            self.mib(mib).to_string(),
            threads.to_string(),
            percent.to_string(),
            ready.display().to_string(),
            stop.display().to_string(),
        ]
    }

    /// The program under a supervisor, with its memory filled.
    fn launch(
        &self,
        place: &Path,
        options: &[&str],
        mib: u64,
        threads: u32,
        percent: f64,
    ) -> Result<Job, AnyError> {
        let (ready, stop) = (place.join("ready"), place.join("stop"));
        let mut command = snaprig()?;
        command.arg("launch").arg("--dir").arg(place.join("store"));
        command.args(options).arg("--").arg(&self.program);
        command.args(self.arguments(mib, threads, percent, &ready, &stop));
        let out = place.join("out");
        let child = command.stdout(File::create(&out)?).spawn()?;
        let job = Job {
            child,
            place: place.to_owned(),
        };
        wait_for(|| ready.exists())?;
        job.wait_for_supervisor()?;
        Ok(job)
    }
}

fn snaprig() -> Result<Command, AnyError> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("ckpt").stdin(Stdio::null());
    Ok(command)
}

/// A program under a supervisor; it ends with this.
struct Job {
    child: Child,
    place: PathBuf,
}

/// What a checkpoint says of itself.
#[derive(serde::Deserialize)]
struct Dumped {
    stood_still_ms: f64,
    took_ms: f64,
}

/// What a migration says of itself.
#[derive(serde::Deserialize)]
struct Migrated {
    blackout_ms: f64,
}

/// What a command says as JSON.
pub(super) fn said<T: serde::de::DeserializeOwned>(command: &mut Command) -> Result<T, AnyError> {
    let output = command.output()?;
    match output.status.success() {
        true => Ok(serde_json::from_slice(&output.stdout)?),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned().into()),
    }
}

impl Job {
    fn store(&self) -> PathBuf {
        self.place.join("store")
    }

    fn wait_for_supervisor(&self) -> Result<(), AnyError> {
        wait_for(|| snaprig_supervisor::ask(&self.store(), Request::Status).is_ok())
    }

    fn dump(&self, options: &[&str]) -> Result<Dumped, AnyError> {
        let mut command = snaprig()?;
        command.arg("dump").arg("--dir").arg(self.store());
        said(command.arg("--json").args(options))
    }

    /// Has the program end; for how long it did not run at most, in ms, if it said so.
    fn stop(mut self) -> Result<f64, AnyError> {
        File::create(self.place.join("stop"))?;
        let status = self.child.wait()?;
        if !status.success() {
            return Err(format!("the program failed: {status}").into());
        }
        let said = fs::read_to_string(self.place.join("out")).unwrap_or_default();
        Ok(said.trim().parse().unwrap_or_default())
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        // What the supervisor starts ends when it is told to.
        if matches!(self.child.try_wait(), Ok(None)) {
            // SAFETY: kill(2) takes numbers alone; the child has not been waited for.
            unsafe { libc::kill(self.child.id() as i32, libc::SIGTERM) };
            let _ = self.child.wait();
        }
    }
}

pub(super) fn wait_for(mut is_so: impl FnMut() -> bool) -> Result<(), AnyError> {
    let begun = Instant::now();
    while !is_so() {
        if begun.elapsed() > PATIENCE {
            return Err("a program did not get ready in time".into());
        }
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Writes a file of so many bytes to the disk.
fn write_file(path: &Path, bytes: u64) -> Result<(), AnyError> {
    let mut file = File::create(path)?;
    let part = vec![1; MIB as usize];
    for _ in 0..bytes / MIB {
        file.write_all(&part)?;
    }
    Ok(file.sync_data()?)
}

/// Reads a file into memory that is new, as that of a restarted process is.
fn read_file(path: &Path, bytes: u64) -> Result<(), AnyError> {
    let mut file = File::open(path)?;
    let mut room = vec![0; bytes as usize];
    for part in room.chunks_mut(MIB as usize) {
        file.read_exact(part)?;
    }
    std::hint::black_box(room);
    Ok(())
}

/// Has the kernel forget what it has in memory of a file, or of all files of a directory.
pub(super) fn drop_cached(path: &Path) -> Result<(), AnyError> {
    if path.is_dir() {
        for entry in fs::read_dir(path)? {
            drop_cached(&entry?.path())?;
        }
        return Ok(());
    }
    if let Ok(file) = File::open(path)
        && file.metadata()?.is_file()
    {
        file.sync_all()?;
        // Advice: what cannot be dropped stays.
        let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
    }
    Ok(())
}
