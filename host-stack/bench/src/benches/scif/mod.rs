//! `snaprig bench scif`: messages and RMA between two host programs, and between a host program and a
//! card, beside a Unix socket, shared memory and copies in one process; RMA that the card's DMA engine does, on
//! io_uring, beside pread(2) and pwrite(2) of a memfd; and that engine without a card, its copies queued at once.
//!
//! Through libscif as any program has it, by one C program (`fixtures/bench/scif.c`); ratios are of the same run.

mod dma;

use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    sync::mpsc,
};

use clap::Args;
use snaprig_card_platform::Kind;
use snaprig_coi::{Engine, native};
use snaprig_fixtures::programs::BENCH_SCIF;
use snaprig_rig::{
    Rig,
    files::CardFiles,
    libraries,
    sdk::{SCIF_LIBRARY, Sdk},
};

use crate::{
    AnyError, BenchWith,
    baselines::end,
    options::Common,
    table::{Aim, Row, Unit, print},
};

/// SCIF.
pub static BENCH: BenchWith<Options> = BenchWith::new(
    "scif",
    "Messages and RMA of SCIF, on the host and with a card, beside sockets and memcpy",
    run,
);

/// What the benchmark is told.
#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    common: Common,
    /// Kind of the card [default: the best that works here]
    #[arg(long)]
    platform: Option<Kind>,
}

/// RMA is to be as fast as a streaming copy, and a card's engine as pread(2), from here on.
const AIMED: [&str; 3] = ["1M", "16M", "64M"];
/// The card's memory: two windows, and room.
const MEMORY_BYTES: u64 = 512 << 20;

/// Runs the benchmark.
fn run(options: &Options) -> Result<ExitCode, AnyError> {
    let scene = Scene::new(options.platform)?;
    let mut rows: Vec<Row> = Vec::new();
    for _ in 0..options.common.runs {
        for node in [0, 1] {
            for line in scene.measure(node, options.common.scale)? {
                add(&mut rows, &line)?;
            }
        }
        for line in dma::measure(options.common.scale)? {
            add(&mut rows, &line)?;
        }
    }
    let pinned = std::thread::available_parallelism().is_ok_and(|cores| cores.get() >= 2);
    print(rows, options.common.runs, pinned, options.common.json)?;
    Ok(ExitCode::SUCCESS)
}

/// A line of the program's: `name|unit|ours|baseline|theirs|...`.
fn add(rows: &mut Vec<Row>, line: &str) -> Result<(), AnyError> {
    let fields: Vec<_> = line.split('|').collect();
    let [name, unit, ours, baselines @ ..] = fields.as_slice() else {
        return Err(format!("the program says {line:?}").into());
    };
    let unit = match *unit {
        "us" => Unit::Microseconds,
        _ => Unit::Rate,
    };
    for baseline in baselines.chunks_exact(2) {
        let known = match baseline[0] {
            "Unix socket" => "Unix socket",
            "shared memory" => "shared memory",
            "streaming" => "streaming",
            "pread" => "pread",
            "pwrite" => "pwrite",
            _ => "memcpy",
        };
        let is_long = AIMED.iter().any(|size| name.contains(size)) && !name.contains("no copy");
        let aim = match known {
            "streaming" if is_long => Some(Aim::AtLeast(0.8)),
            "pread" | "pwrite" if is_long => Some(Aim::AtLeast(1.0)),
            _ => None,
        };
        let at = rows
            .iter()
            .position(|row| row.measure == *name && row.baseline == known);
        let at = at.unwrap_or_else(|| {
            rows.push(Row::new((*name).to_owned(), unit, known, aim));
            rows.len() - 1
        });
        rows[at].ours.push(ours.parse()?);
        let sample = Some(baseline[1].parse()?);
        rows[at].samples.get_or_insert_default().push(sample);
    }
    Ok(())
}

/// A rig of one card, and the program.
struct Scene {
    rig: Rig,
    directory: tempfile::TempDir,
    program: PathBuf,
}

impl Scene {
    fn new(platform: Option<Kind>) -> Result<Self, AnyError> {
        let directory = tempfile::tempdir()?;
        let program = directory.path().join("scif");
        fs::write(&program, BENCH_SCIF)?;
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
        let exe = std::env::current_exe()?;
        let library = Sdk::of(&exe)?
            .lib()
            .join(SCIF_LIBRARY.name)
            .canonicalize()?;
        symlink(&library, directory.path().join("libscif.so.0"))?;
        let at = |host: &Path, card: &str| CardFiles {
            host: host.to_owned(),
            card: card.to_owned(),
        };
        let mut files = libraries::needed(&[program.clone(), library.clone()]);
        files.push(at(&library, "/usr/lib/libscif.so.0"));
        files.push(at(&program, "/bin/scif"));
        let rig = Rig::builder()
            .exe(exe)
            .platform(platform)
            .memory_bytes(MEMORY_BYTES)
            .files(files)
            .start()?;
        Ok(Self {
            rig,
            directory,
            program,
        })
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command
            .env("SNAPRIG_RIG", self.rig.dir())
            .env("LD_LIBRARY_PATH", self.directory.path())
            .stdin(Stdio::null());
        command
    }

    /// One run with the other side on this node: the program's lines.
    fn measure(&self, node: u16, scale: f64) -> Result<Vec<String>, AnyError> {
        let (send, lines) = mpsc::channel();
        let mut here = None;
        let serving = match node {
            0 => {
                let mut child = self.command().arg("serve").stdout(Stdio::piped()).spawn()?;
                let out = child.stdout.take().ok_or("no pipe")?;
                here = Some(child);
                std::thread::spawn(move || {
                    for line in BufReader::new(out).lines().map_while(Result::ok) {
                        let _ = send.send(line);
                    }
                })
            }
            _ => {
                let engine = Engine::get(self.rig.dir(), node - 1)?;
                std::thread::spawn(move || {
                    let argv = vec!["scif".into(), "serve".into()];
                    let env = vec!["LD_LIBRARY_PATH=/usr/lib".into()];
                    let said = |descriptor: u8, bytes: &[u8]| {
                        let text = String::from_utf8_lossy(bytes);
                        match descriptor {
                            1 => drop(send.send(text.trim_end().to_owned())),
                            _ => eprint!("{text}"),
                        }
                    };
                    let input = std::io::empty();
                    let ended = native::run_with(&engine, "/bin/scif", argv, env, input, said);
                    if let Err(error) = ended {
                        eprintln!("{error}");
                    }
                })
            }
        };
        let line = lines.recv().map_err(|_| "the other side does not listen")?;
        let port = line.strip_prefix("port ").ok_or("no port")?.to_owned();
        let output = self
            .command()
            .args(["measure", &node.to_string(), &port, &scale.to_string()])
            .stderr(Stdio::inherit())
            .output()?;
        if let Some(child) = &mut here {
            end(child);
        }
        let _ = serving.join();
        if !output.status.success() {
            return Err(format!("the program ended: {}", output.status).into());
        }
        let text = String::from_utf8(output.stdout)?;
        Ok(text.lines().map(str::to_owned).collect())
    }
}
