//! MPI jobs on nodes: the kernels print what they should, bit for bit, with any number of ranks and by any MPI; and what
//! they verify by notices damage.

use std::{
    path::Path,
    process::{Command, Output, Stdio},
};

use snaprig_fixtures::mpi::KERNELS;

/// The `snaprig` program.
const SNAPRIG: &str = env!("CARGO_BIN_EXE_snaprig-under-test");
/// A job that hangs is ended; none takes longer, however busy the machine is.
const TIMEOUT_SECONDS: &str = "120";
/// Over HCAs alone: not through memory that the ranks of a node share.
const OPEN_MPI: [&str; 9] = [
    "mpirun",
    "--mca",
    "pml",
    "ucx",
    "--mca",
    "osc",
    "ucx",
    "-x",
    "UCX_TLS=rc,self",
];

/// A job of this many ranks on four nodes.
fn run(launcher: &[&str], ranks: &str, program: &Path, flags: &[&str]) -> Output {
    let mut job = Command::new(SNAPRIG);
    job.args(["nodes", "4", "--", "timeout", TIMEOUT_SECONDS]);
    job.args(launcher)
        .args(["-n", ranks])
        .arg(program)
        .args(flags);
    job.stdin(Stdio::null()).output().expect("snaprig starts")
}

/// Both of what a job printed.
fn texts(output: &Output) -> [String; 2] {
    [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned())
}

fn check(mpicc: &str, launcher: &[&str], ranks: &str) {
    let directory = tempfile::tempdir().expect("a directory");
    for kernel in &KERNELS {
        let program = kernel
            .compile(mpicc, directory.path())
            .expect("it compiles");
        let output = run(launcher, ranks, &program, &[]);
        let [stdout, stderr] = texts(&output);
        let what = format!("{}: {}: {stderr}", kernel.name, output.status);
        assert!(output.status.success(), "{what}");
        assert_eq!(stdout, kernel.golden, "{what}");
    }
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
fn open_mpi_has_the_golden_results() {
    check("mpicc", &OPEN_MPI, "8");
}

#[test]
#[cfg_attr(
    not(has_file = "/usr/include/x86_64-linux-gnu/mpich/mpi.h"),
    ignore = "/usr/include/x86_64-linux-gnu/mpich/mpi.h is not there (ci/setup)"
)]
#[cfg_attr(
    not(has_program = "mpiexec.hydra"),
    ignore = "mpiexec.hydra is not installed (ci/setup)"
)]
fn mpich_has_them_too_with_another_number_of_ranks() {
    // One rank a node: MPICH has ranks wait without a pause, which takes minutes where many share a processor.
    check("mpicc.mpich", &["mpiexec.hydra"], "4");
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
fn one_flipped_bit_ends_a_job() {
    let directory = tempfile::tempdir().expect("a directory");
    for kernel in &KERNELS {
        let name = kernel.name;
        let program = kernel
            .compile("mpicc", directory.path())
            .expect("it compiles");
        let output = run(&OPEN_MPI, "2", &program, &["--damage", "3"]);
        let [stdout, stderr] = texts(&output);
        let place = format!("{name}: rank 1, iteration 3: ");
        assert!(
            !output.status.success() && !stdout.contains("OK"),
            "{stdout}{stderr}"
        );
        assert!(
            stderr.contains(&place) && stderr.contains(", got "),
            "{stdout}{stderr}"
        );
    }
}
