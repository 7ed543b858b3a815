//! `snaprig bench ckpt-ib`: what it costs an RDMA program to be checkpointable, beside the same program without that; how long
//! its queue pairs take to come to rest; and what a checkpoint of an MPI job over verbs is beside one of the same job over shared
//! memory (tables 1, 2, 3 and 6, figure 6 of Cao et al., HPDC '14).
//!
//! | rows | what is measured |
//! |---|---|
//! | post, poll | a program with two queue pairs, which are connected to each other: the least time of a step. What it may take is what it takes without the library, and 25 ns for each call. |
//! | write, send | perftest |
//! | MPI kernels | the time of a long run less that of a short one, so that how the job starts is left out |
//! | start | from the start of so many processes, each with a queue pair, until messages have come by all of these |
//! | drain | of processes at work, what plugins take of a checkpoint: until nothing is under way, and all is taken down |
//! | move | how long a member of a job stands still that moves, with so much registered or private memory |
//! | dump, restart, image | an MPI kernel that is at work |

mod scene;

use std::{path::Path, process::ExitCode};

use snaprig_fixtures::mpi::KERNELS;

use self::scene::{Dumped, Scene, Transport};
use crate::{
    AnyError, BenchWith,
    options::{Chosen, Common},
    progress,
    table::{Aim, Row, Unit, print},
};

/// RDMA programs in checkpoints.
pub static BENCH: BenchWith<Chosen> = BenchWith::new(
    "ckpt-ib",
    "What it costs an RDMA program to be checkpointable, and how long its queue pairs take to come to rest",
    run,
);

/// What a call of the library may take beside the one below, in nanoseconds.
const CALL_NS: f64 = 25.0;
/// What the network's part of a checkpoint may take, in milliseconds.
const NETWORK_MS: f64 = 2.0;
/// How long who moves may stand still, in milliseconds, and with how much memory.
const BLACKOUT_MS: f64 = 50.0;
const MOVED_MIB: u64 = 512;
/// The kernel that is checkpointed, and its ranks.
const KERNEL: &str = "lu";
const RANKS: u32 = 4;
/// Of pairs of processes: how many, and queue pairs of each process. The last one has four times as many as the one before.
const RESTS: [(u32, u32); 4] = [(1, 1), (1, 64), (8, 64), (8, 256)];

/// Something to measure, and the rows that its samples go to.
struct Measure {
    what: Measured,
    rows: Vec<Row>,
}

enum Measured {
    /// Steps of this kind, which call the library so often.
    Steps(&'static str, f64),
    /// Two programs: a number of the last line of figures that the client prints, by its column.
    Perftest(String, usize, f64),
    /// So many iterations of an MPI kernel, by its program.
    Kernel(String, u64),
    /// So many pairs of processes.
    Start(u32),
    /// Each of [`RESTS`].
    Rest,
    /// Memory of this kind.
    Move(&'static str),
    /// An MPI kernel, by its program.
    Checkpoint(String),
}

/// What it is, and what it is compared with; none where that failed.
type Sample = (f64, Option<f64>);

fn measures(scale: f64, directory: &Path) -> Vec<Measure> {
    let count = |usual: f64, least: f64| (usual * scale).max(least) as u64;
    let one = |what, row| Measure {
        what,
        rows: vec![row],
    };
    let mut all = Vec::new();
    for (kind, name, calls, allowed) in [
        ("post", "post, write 8 B", 1.0, "alone + 25 ns"),
        ("inline", "post, inline 8 B", 1.0, "alone + 25 ns"),
        ("poll", "poll, empty", 1.0, "alone + 25 ns"),
        ("write", "post and poll", 2.0, "alone + 50 ns"),
        ("send", "2 posts, 2 polls", 4.0, "alone +100 ns"),
    ] {
        let aim = Some(Aim::AtMost(1.0));
        let row = Row::new(name.into(), Unit::Nanoseconds, allowed, aim);
        all.push(one(Measured::Steps(kind, calls), row));
    }
    let mut perftest = |name: String, unit, program, column, by, aim| {
        let row = Row::new(name, unit, "alone", aim);
        let what = Measured::Perftest(program, column, by);
        all.push(one(what, row));
    };
    let n = count(1e6, 1e3);
    for verb in ["write", "send"] {
        let program = format!("ib_{verb}_lat -F -s 8 -n {n}");
        let unit = Unit::Microseconds;
        perftest(format!("{verb} 8 B"), unit, program, 4, 1.0, None);
    }
    // MB/s of 2^20 bytes.
    let rate = 1.048_576e-3;
    for (size, bytes, usual) in [("4 KiB", 4096, 2e6), ("64 KiB", 65536, 2e5)] {
        let n = count(usual, 1e3);
        for verb in ["write", "send"] {
            let program = format!("ib_{verb}_bw -F -s {bytes} -n {n}");
            let aim = Some(Aim::AtLeast(0.98));
            let name = format!("{verb} {size}");
            perftest(name, Unit::Rate, program, 3, rate, aim);
        }
    }
    for kernel in &KERNELS {
        let Ok(program) = kernel.compile("mpicc", directory) else {
            continue;
        };
        let program = program.display().to_string();
        if kernel.name == KERNEL {
            let row =
                |what, unit| Row::new(format!("{what} {KERNEL}"), unit, "shared memory", None);
            let rows = vec![
                row("dump", Unit::Milliseconds),
                row("image", Unit::Mebibytes),
                row("restart", Unit::Milliseconds),
            ];
            let what = Measured::Checkpoint(program.clone());
            all.push(Measure { what, rows });
        }
        let aim = Some(Aim::AtMost(1.005));
        let name = format!("{}, 2 ranks", kernel.name);
        let row = Row::new(name, Unit::Milliseconds, "alone", aim);
        let iterations = count(usual_iterations(kernel.name), 10.0);
        all.push(one(Measured::Kernel(program, iterations), row));
    }
    for pairs in [1, 4, 8] {
        let name = format!("start {} processes", 2 * pairs);
        let row = Row::new(name, Unit::Milliseconds, "alone", None);
        all.push(one(Measured::Start(pairs), row));
    }
    let rows = RESTS.iter().enumerate().map(|(index, (pairs, qps))| {
        let name = format!("drain {}x{qps} QPs", 2 * pairs);
        let allowed = match index {
            3 => "4 of 16x64",
            _ => "2 ms",
        };
        Row::new(name, Unit::Milliseconds, allowed, Some(Aim::AtMost(1.0)))
    });
    all.push(Measure {
        what: Measured::Rest,
        rows: rows.collect(),
    });
    for kind in ["registered", "private"] {
        let name = format!("move, {kind}");
        let aim = Some(Aim::AtMost(1.0));
        let row = Row::new(name, Unit::Milliseconds, "50 ms", aim);
        all.push(one(Measured::Move(kind), row));
    }
    all
}

/// How many iterations of a kernel take a second or two.
fn usual_iterations(kernel: &str) -> f64 {
    match kernel {
        "ring" => 1e4,
        "alltoall" => 4e3,
        "halo" => 1e4,
        "onesided" => 3e3,
        "lu" => 2e3,
        _ => 1e3,
    }
}

/// Runs the benchmark.
fn run(options: &Chosen) -> Result<ExitCode, AnyError> {
    let Common { json, runs, scale } = options.common;
    let directory = tempfile::tempdir()?;
    let scene = Scene::new(directory.path(), scale)?;
    let mut measures = measures(scale, directory.path());
    measures.retain(|measure| measure.rows.iter().any(|row| row.is_named(&options.only)));
    let bar = progress::bar(usize::from(runs) * measures.len());
    for run in 0..runs {
        for Measure { what, rows } in &mut measures {
            if !is_here(what) {
                rows.iter_mut().for_each(|row| row.samples = None);
                bar.inc(1);
                continue;
            }
            bar.set_message(rows[0].measure.clone());
            // Who comes first finds the machine as the one before left it: they take turns.
            let samples = measure(&scene, what, run % 2 == 1)?;
            for (row, (ours, theirs)) in rows.iter_mut().zip(samples) {
                row.ours.push(ours);
                row.samples.get_or_insert_default().push(theirs);
            }
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    let rows = measures.into_iter().flat_map(|measure| measure.rows);
    print(rows.collect(), runs, false, json)?;
    Ok(ExitCode::SUCCESS)
}

/// Whether the program that is measured is installed.
fn is_here(what: &Measured) -> bool {
    match what {
        Measured::Perftest(program, ..) => {
            let name = program.split(' ').next().unwrap_or_default();
            let path = std::env::var_os("PATH").unwrap_or_default();
            std::env::split_paths(&path).any(|directory| directory.join(name).is_file())
        }
        _ => true,
    }
}

/// Samples of each row.
fn measure(scene: &Scene, what: &Measured, is_ours_first: bool) -> Result<Vec<Sample>, AnyError> {
    let both = |take: &dyn Fn(bool) -> Result<f64, AnyError>| {
        let first = take(is_ours_first)?;
        let second = take(!is_ours_first)?;
        Ok::<_, AnyError>(match is_ours_first {
            true => (first, second),
            false => (second, first),
        })
    };
    Ok(match what {
        Measured::Steps(kind, calls) => {
            let (ours, alone) = both(&|is_supervised| scene.steps(kind, is_supervised))?;
            vec![(ours, Some(alone + calls * CALL_NS))]
        }
        Measured::Perftest(program, column, by) => {
            let take = |is_supervised| scene.perftest(program, *column, is_supervised);
            let (ours, alone) = both(&take)?;
            vec![(ours * by, Some(alone * by))]
        }
        Measured::Kernel(program, iterations) => {
            let (ours, alone) = both(&|is_supervised| {
                let long = scene.kernel(program, *iterations, is_supervised)?;
                let short = scene.kernel(program, iterations / 10, is_supervised)?;
                Ok(long - short)
            })?;
            vec![(ours, Some(alone))]
        }
        Measured::Start(pairs) => {
            let (ours, alone) = both(&|is_supervised| scene.start(*pairs, is_supervised))?;
            vec![(ours, Some(alone))]
        }
        Measured::Rest => {
            let mut all: Vec<Sample> = Vec::new();
            for (pairs, qps) in RESTS {
                let allowed = match all.get(2) {
                    Some((before, _)) => 4.0 * before,
                    None => NETWORK_MS,
                };
                all.push((scene.rest(pairs, qps)?, Some(allowed)));
            }
            all
        }
        Measured::Move(kind) => {
            let mib = (MOVED_MIB as f64 * scene.scale).max(1.0) as u64;
            vec![(scene.moved(kind, mib)?, Some(BLACKOUT_MS))]
        }
        Measured::Checkpoint(program) => {
            let (ours, restart) = scene.checkpoint(program, Transport::Verbs)?;
            let (theirs, their_restart) = scene.checkpoint(program, Transport::SharedMemory)?;
            let mib = |dumped: &Dumped| dumped.bytes as f64 / f64::from(1 << 20);
            vec![
                (ours.took_ms, Some(theirs.took_ms)),
                (mib(&ours), Some(mib(&theirs))),
                (restart, Some(their_restart)),
            ]
        }
    })
}
