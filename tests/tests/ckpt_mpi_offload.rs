//! Whole applications: ranks of an MPI job on nodes of a fabric, each with an offload process on a card, checkpointed together
//! and killed with nodes, cards and rig; restarted on others.

mod checkpointed;
mod fabric;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use checkpointed::{ckpt_of, lines_of};
use fabric::{SNAPRIG, TIMEOUT, assert_success, one_job, text};
use tempfile::TempDir;

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/workloads");

/// The host program and the sink, and the job's directory.
struct Application(TempDir);

impl Application {
    fn compile() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        // The pragmas are OpenMP's: here ranks share the processors.
        let script = "set -e
            flags='-O2 -Wall -Wextra -Werror -ffp-contract=off'
            mpicc $flags $from/mz_mpi/host.c $($snaprig include --host) -o host
            zones=\"$from/mz/sink.c $from/mz/lu.c $from/mz/sp.c $from/mz/bt.c\"
            $snaprig build-sink $flags -Wno-unknown-pragmas $from/mz_mpi/faces.c $zones -o sink";
        let compiled = Command::new("sh")
            .args(["-c", script])
            .current_dir(directory.path())
            .envs([("snaprig", SNAPRIG), ("from", FIXTURES)])
            .output()
            .expect("a shell");
        assert!(compiled.status.success(), "{}", text(&compiled));
        Self(directory)
    }

    fn job(&self) -> PathBuf {
        self.0.path().join("job")
    }

    /// `snaprig nodes` on a rig of its own.
    fn nodes(&self, (nodes, cards): (&str, &str), words: &[&str]) -> Command {
        let mut command = Command::new(SNAPRIG);
        command.args([
            "run", "--cards", cards, "--", SNAPRIG, "nodes", nodes, "--job",
        ]);
        command.arg(self.job()).args(words);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        command
    }

    fn launch(&self, on: (&str, &str), ranks: &str, solver: &str) -> Child {
        let [host, sink] = ["host", "sink"].map(|name| self.0.path().join(name));
        let [host, sink] = [&host, &sink].map(|path| path.to_str().expect("a name"));
        let mpirun = ["--", "mpirun", "-n", ranks, "--oversubscribe"];
        let ucx = [
            "--mca",
            "pml",
            "ucx",
            "--mca",
            "osc",
            "ucx",
            "-x",
            "UCX_TLS=rc,self",
        ];
        let rig = ["-x", "LD_LIBRARY_PATH", "-x", "SNAPRIG_RIG"];
        let run = [host, sink, "--solver", solver, "--pace", "60"];
        let words = [&mpirun[..], &ucx, &rig, &run].concat();
        self.nodes(on, &words).spawn().expect("it starts")
    }
}

/// Runs it with so many ranks and cards, and restarts it on so many nodes.
fn outlives_everything(name: &str, solver: &str, (ranks, nodes): (&str, &str), others: &str) {
    let _alone = one_job();
    let golden = Path::new(FIXTURES)
        .join("mz_mpi")
        .join(format!("golden.{name}"));
    let golden = fs::read_to_string(golden).expect("a golden output");
    let application = Application::compile();
    let mut running = application.launch((nodes, ranks), ranks, solver);
    let lines = lines_of(running.stdout.take().expect("it is piped"));
    // They reduce a sum for the first thing they say: then all of them have met.
    let mut said = lines.recv_timeout(TIMEOUT).expect("all ranks are at work");
    let dumped = ckpt_of(&application.job(), &["dump", "--kill"]);
    assert_success("ckpt dump", &[dumped]);
    running.wait().expect("it ends");
    said.extend(lines.iter());
    assert!(said.len() < golden.len(), "{name} has ended: {said}");
    let restart = application.nodes((others, ranks), &["--restart"]).output();
    let restarted = restart.expect("snaprig starts");
    said += &String::from_utf8_lossy(&restarted.stdout);
    assert_success(name, &[restarted]);
    assert_eq!(said, golden, "{name}");
}

#[test]
#[cfg_attr(
    not(has_program = "mpicc"),
    ignore = "mpicc is not installed (ci/setup)"
)]
#[cfg_attr(
    not(has_program = "mpirun"),
    ignore = "mpirun is not installed (ci/setup)"
)]
fn lu_on_four_cards() {
    outlives_everything("lu", "0", ("4", "4"), "2");
}

#[test]
#[cfg_attr(
    not(has_program = "mpicc"),
    ignore = "mpicc is not installed (ci/setup)"
)]
#[cfg_attr(
    not(has_program = "mpirun"),
    ignore = "mpirun is not installed (ci/setup)"
)]
fn sp_on_two_cards() {
    outlives_everything("sp", "1", ("2", "2"), "2");
}

#[test]
#[cfg_attr(
    not(has_program = "mpicc"),
    ignore = "mpicc is not installed (ci/setup)"
)]
#[cfg_attr(
    not(has_program = "mpirun"),
    ignore = "mpirun is not installed (ci/setup)"
)]
fn bt_on_one_card() {
    outlives_everything("bt", "2", ("1", "1"), "1");
}
