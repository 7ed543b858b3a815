//! `snaprig ppmr migrate`: all that a node of a running MPI job has goes on at a spare node, by each way that its memory may take,
//! while the others pause.

mod checkpointed;
mod fabric;

use std::{path::Path, process::Command};

use checkpointed::JobOnNodes;
use fabric::{SNAPRIG, assert_success, one_job};

/// So slowly that a kernel is at work while it is migrated a few times.
const SLOWLY: [&str; 2] = ["--pace-us", "300000"];

/// `snaprig ppmr migrate --job DIR ...`, as JSON.
fn migrate(job: &Path, from: &str, to: &str, how: &[&str]) -> serde_json::Value {
    let mut command = Command::new(SNAPRIG);
    command
        .args(["ppmr", "migrate", "--json", "--job"])
        .arg(job);
    command.args(["--from", from, "--to", to]).args(how);
    let migrated = command.output().expect("snaprig starts");
    assert_success(&format!("{how:?}"), std::slice::from_ref(&migrated));
    serde_json::from_slice(&migrated.stdout).expect("JSON")
}

/// There and back, and there once more.
fn comes_and_goes(kernel: &str, how: &[&str]) {
    let _alone = one_job();
    let mut job = JobOnNodes::launched_beside_a_spare(kernel, &SLOWLY);
    let directory = job.job();
    let how: Vec<String> = how
        .iter()
        .map(|word| word.replace("FILES", &directory.display().to_string()))
        .collect();
    let how: Vec<&str> = how.iter().map(String::as_str).collect();
    for (from, to) in [("node3", "node5"), ("node5", "node3"), ("node2", "node5")] {
        let migrated = migrate(&directory, from, to, &how);
        assert_eq!(migrated["to"], to);
        assert!(migrated["blackout_ms"].as_f64() <= migrated["took_ms"].as_f64());
    }
    assert_eq!(job.ended(), job.kernel.golden);
    let left: Vec<_> = std::fs::read_dir(&directory)
        .expect("a directory")
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.len() >= 32)
        .collect();
    assert!(left.is_empty(), "images are left: {left:?}");
}

macro_rules! migrations {
    ($($test:ident: $kernel:literal, $how:expr;)*) => {
        $(
            #[test]
            #[cfg_attr(not(has_program = "mpicc"), ignore = "mpicc is not installed (ci/setup)")]
            #[cfg_attr(not(has_program = "mpirun"), ignore = "mpirun is not installed (ci/setup)")]
            fn $test() {
                comes_and_goes($kernel, &$how);
            }
        )*
    };
}

migrations! {
    pipelined: "lu", ["--strategy", "ppmr"];
    pipelined_by_writes: "lu", ["--strategy", "ppmr", "--push", "--pool", "1M", "--chunk", "64K"];
    pipelined_ahead: "onesided", ["--strategy", "ppmr", "--pre-copy"];
    pipelined_to_a_file: "lu", ["--strategy", "rdma-local"];
    shared: "lu", ["--strategy", "shared", "--files", "FILES"];
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
#[cfg_attr(
    not(has_file = "/usr/sbin/sshd"),
    ignore = "sshd is not installed (ci/setup)"
)]
fn copied() {
    comes_and_goes("lu", &["--strategy", "local"]);
}
