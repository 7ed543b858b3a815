//! `snaprig bench ckpt-ib`: what it costs an RDMA program to be checkpointable, beside the same program without that; and how long
//! its queue pairs take to come to rest (tables 1, 2 and 6 of Cao et al., HPDC '14).
//!
//! The programs are those that users take: perftest, and mpirun where it is installed.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde::Deserialize;
use snaprig_fabric::place::DIRECTORY_ENV;
use snaprig_fixtures::mpi::KERNELS;

use crate::{
    AnyError, BenchWith,
    options::Common,
    table::{Aim, Row, Unit, print},
};

/// RDMA programs in checkpoints.
pub static BENCH: BenchWith<Common> = BenchWith::new(
    "ckpt-ib",
    "What it costs an RDMA program to be checkpointable, and how long its queue pairs take to come to rest",
    run,
);

/// What the network's part of a checkpoint is to take at most, in milliseconds.
const NETWORK_MS: f64 = 2.0;
/// How long programs may take to be at work.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long pairs of programs have worked before they are checkpointed.
const WORKS: Duration = Duration::from_millis(300);

/// What is measured.
#[derive(Clone)]
enum Measured {
    /// Two programs: a number of the last line of figures that the client prints, by its column.
    Pair(String, usize, f64),
    /// A kernel of an MPI job, in seconds.
    Kernel(PathBuf, u64),
    /// So many pairs with so many queue pairs each: until they have come to rest.
    Rest(u32, u32),
}

struct Measure {
    what: Measured,
    row: Row,
}

fn measures(scale: f64, directory: &Path) -> Vec<Measure> {
    let count = |usual: f64| (usual * scale).max(1000.0) as u64;
    let mut all = Vec::new();
    let mut pair = |name: &str, unit, program: String, column, by, aim| {
        let row = Row::new(name.into(), unit, "alone", Some(aim));
        let what = Measured::Pair(program, column, by);
        all.push(Measure { what, row });
    };
    // 25 ns of the 400 that either takes.
    let latency = Aim::AtMost(1.06);
    let bandwidth = Aim::AtLeast(0.98);
    let n = count(1e6);
    pair(
        "write 8 B",
        Unit::Microseconds,
        format!("ib_write_lat -s 8 -n {n}"),
        4,
        1.0,
        latency,
    );
    pair(
        "send 8 B",
        Unit::Microseconds,
        format!("ib_send_lat -s 8 -n {n}"),
        4,
        1.0,
        latency,
    );
    // MB/s of 2^20 bytes.
    let rate = 1.048_576e-3;
    for (name, bytes, usual) in [("4 KiB", 4096, 4e6), ("64 KiB", 65536, 4e5)] {
        let n = count(usual);
        let program = format!("ib_write_bw -s {bytes} -n {n}");
        pair(
            &format!("write {name}"),
            Unit::Rate,
            program,
            3,
            rate,
            bandwidth,
        );
        let program = format!("ib_send_bw -s {bytes} -n {n}");
        pair(
            &format!("send {name}"),
            Unit::Rate,
            program,
            3,
            rate,
            bandwidth,
        );
    }
    for kernel in &KERNELS {
        if let Ok(program) = kernel.compile("mpicc", directory) {
            let aim = Some(Aim::AtMost(1.005));
            let name = format!("{}, 2 ranks", kernel.name);
            let row = Row::new(name, Unit::Milliseconds, "alone", aim);
            let what = Measured::Kernel(program, count(2000.0) / 10);
            all.push(Measure { what, row });
        }
    }
    for (pairs, qps) in [(1, 1), (1, 64), (8, 64)] {
        let name = format!("rest, {}x{qps} QPs", pairs * 2);
        let row = Row::new(name, Unit::Milliseconds, "2 ms", Some(Aim::AtMost(1.0)));
        let what = Measured::Rest(pairs, qps);
        all.push(Measure { what, row });
    }
    all
}

/// Runs the benchmark.
fn run(options: &Common) -> Result<ExitCode, AnyError> {
    let directory = tempfile::tempdir()?;
    let scene = Scene {
        snaprig: std::env::current_exe()?,
        directory: directory.path().into(),
    };
    let mut measures = measures(options.scale, directory.path());
    for run in 0..options.runs {
        for Measure { what, row } in &mut measures {
            match what {
                Measured::Rest(pairs, qps) => {
                    row.ours.push(scene.rest(*pairs, *qps)?);
                    row.samples.get_or_insert_default().push(Some(NETWORK_MS));
                }
                _ => {
                    // Who comes first finds the machine as the one before left it: they take turns.
                    let mut samples = [None, None];
                    for turn in [0, 1] {
                        let is_ours = (turn + usize::from(run)) % 2 == 0;
                        samples[usize::from(is_ours)] = Some(scene.measure(what, is_ours)?);
                    }
                    row.ours.extend(samples[1]);
                    row.samples.get_or_insert_default().push(samples[0]);
                }
            }
        }
    }
    let rows = measures.into_iter().map(|measure| measure.row);
    print(rows.collect(), options.runs, false, options.json)?;
    Ok(ExitCode::SUCCESS)
}

/// Where programs run.
struct Scene {
    snaprig: PathBuf,
    directory: PathBuf,
}

/// A program that ends with the benchmark.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[derive(Deserialize)]
struct Dumped {
    plugins_ms: f64,
}

impl Scene {
    fn checkpoints(&self) -> PathBuf {
        self.directory.join("checkpoints")
    }

    /// Words of a shell, in a fabric, and supervised with `--verbs` or not.
    fn shell(&self, words: &str, is_supervised: bool) -> Command {
        let mut command = Command::new(&self.snaprig);
        command.args(["verbs", "--"]);
        if is_supervised {
            let _ = fs::remove_dir_all(self.checkpoints());
            command.arg(&self.snaprig).args(["ckpt", "launch", "--dir"]);
            command.arg(self.checkpoints()).args(["--verbs", "--"]);
        }
        command.args(["sh", "-c", words]);
        command
            .env(DIRECTORY_ENV, &self.directory)
            .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
            .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
            .stdin(Stdio::null());
        command
    }

    fn measure(&self, what: &Measured, is_supervised: bool) -> Result<f64, AnyError> {
        match what {
            Measured::Pair(program, column, by) => {
                let words = pair(program);
                let output = self.shell(&words, is_supervised).output()?;
                let said = String::from_utf8_lossy(&output.stdout).into_owned();
                let figure = figure_of(&said, *column);
                figure
                    .map(|figure| figure * by)
                    .ok_or_else(|| format!("{program} said nothing to measure: {said}").into())
            }
            Measured::Kernel(program, iterations) => {
                let program = program.display();
                let words = format!(
                    "exec mpirun --oversubscribe -n 2 --mca pml ucx -x UCX_TLS=rc,self {program} \
                     --iterations {iterations}"
                );
                let begun = Instant::now();
                let output = self.shell(&words, is_supervised).output()?;
                match output.status.success() {
                    true => Ok(begun.elapsed().as_secs_f64() * 1e3),
                    false => Err(String::from_utf8_lossy(&output.stderr).into_owned().into()),
                }
            }
            Measured::Rest(..) => Err("it is measured by itself".into()),
        }
    }

    /// Milliseconds until pairs at work have come to rest.
    fn rest(&self, pairs: u32, qps: u32) -> Result<f64, AnyError> {
        let port = |number: u32| 21000 + number;
        let all = (0..pairs).map(|number| {
            let port = port(number);
            pair(&format!(
                "ib_send_bw --run_infinitely -D 60 -s 4096 -q {qps} -p {port}"
            ))
        });
        let words: Vec<String> = all
            .map(|words| format!("({words}) > /dev/null & "))
            .collect();
        let words = words.concat() + "wait";
        let mut command = self.shell(&words, true);
        let running = Running(
            command
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()?,
        );
        let begun = Instant::now();
        while self.at_work() < pairs as usize * 2 {
            if begun.elapsed() > PATIENCE {
                return Err("perftest does not come to work".into());
            }
            thread::sleep(Duration::from_millis(10));
        }
        thread::sleep(WORKS);
        let mut dump = Command::new(&self.snaprig);
        dump.args(["ckpt", "dump", "--kill", "--json", "--dir"]);
        let output = dump.arg(self.checkpoints()).output()?;
        drop(running);
        let dumped: Dumped = serde_json::from_slice(&output.stdout)
            .map_err(|_| String::from_utf8_lossy(&output.stderr).into_owned())?;
        Ok(dumped.plugins_ms)
    }

    /// How many of its processes have queue pairs.
    fn at_work(&self) -> usize {
        let mut status = Command::new(&self.snaprig);
        status.args(["ckpt", "status", "--dir"]);
        let Ok(output) = status.arg(self.checkpoints()).output() else {
            return 0;
        };
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        said.lines()
            .filter(|line| line.ends_with("ib_send_bw"))
            .count()
    }
}

/// A server, and a client of it when it listens, for a shell.
fn pair(program: &str) -> String {
    format!(
        "{program} > /dev/null & until {program} 127.0.0.1 2> /dev/null; do sleep 0.02; done; wait"
    )
}

/// The number in a column of the last line that is of numbers alone.
fn figure_of(said: &str, column: usize) -> Option<f64> {
    let numbers = |line: &str| {
        let all: Option<Vec<f64>> = line
            .split_whitespace()
            .map(|word| word.parse().ok())
            .collect();
        all.filter(|all| all.len() > column)
    };
    let last = said.lines().filter_map(numbers).next_back()?;
    last.get(column).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_of_the_last_line_of_figures() {
        let said = " #bytes #iterations t_min[usec]\n 8  1000  0.41  14.73  0.51\n---\n";
        assert_eq!(figure_of(said, 4), Some(0.51));
        assert_eq!(figure_of(said, 5), None);
    }
}
