//! `snaprig ckpt branch`: one checkpoint, restarted with one fault after another; each branch by itself, the checkpoint as it was.

mod checkpointed;
mod fabric;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use checkpointed::{Checkpointed, JobOnNodes, long_enough};
use fabric::SNAPRIG;
use serde_json::Value;

/// `snaprig ckpt branch DIR --json ARGUMENTS`, and what it says.
fn branch(directory: &Path, arguments: &[&str]) -> (Output, Value) {
    let mut command = Command::new(SNAPRIG);
    command.args(["ckpt", "branch"]).arg(directory);
    let output = command.arg("--json").args(arguments).output();
    let output = output.expect("snaprig starts");
    let results = serde_json::from_slice(&output.stdout).unwrap_or_default();
    (output, results)
}

/// All files below a directory, with their contents and when they were written.
fn files(directory: &Path) -> BTreeMap<PathBuf, (Vec<u8>, std::time::SystemTime)> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(directory).expect("a directory") {
        let entry = entry.expect("an entry");
        let (path, kind) = (entry.path(), entry.file_type().expect("a kind"));
        if kind.is_dir() {
            found.extend(files(&path));
            continue;
        }
        let written = entry.metadata().expect("metadata").modified();
        let bytes = match kind.is_file() {
            true => fs::read(&path).expect("a file"),
            // A socket that nobody listens at.
            false => Vec::new(),
        };
        found.insert(path, (bytes, written.expect("a time")));
    }
    found
}

/// Writes a plan with these faults: its file.
fn plan(directory: &Path, name: &str, faults: &str) -> String {
    let text = format!(
        r#"{{"version": 1, "seed": 1, "cards": 1, "scenario": "verbs", "faults": [{faults}]}}"#
    );
    let path = directory.join(name);
    fs::write(&path, text).expect("a file");
    path.to_str().expect("a name").to_owned()
}

const FLAP: &str = r#"{"point": "fabric.time", "at_ns": 1000000, "kind": {"link_down": "hca1"}},
    {"point": "fabric.time", "at_ns": 60000000, "kind": {"link_up": "hca1"}}"#;
const MOVE: &str = r#"{"point": "fabric.time", "at_ns": 1000000, "kind": {"gid_change": "hca1"}}"#;
const DAMAGE: &str = r#"{"point": "hca.packet", "nth": 3, "kind": {"corrupt": 1000}}"#;
const DEATH: &str = r#"{"point": "fabric.time", "at_ns": 1000000, "kind": {"crash": "process1"}}"#;
const DEAF: &str = r#"{"point": "fabric.time", "at_ns": 1000000, "kind": {"hang": "process1"}}"#;

/// Verdicts, in their order.
fn verdicts(results: &Value) -> Vec<&str> {
    let branches = results["branches"].as_array().into_iter().flatten();
    branches
        .filter_map(|branch| branch["verdict"].as_str())
        .collect()
}

#[test]
#[cfg_attr(
    not(has_program = "ibv_rc_pingpong"),
    ignore = "ibv_rc_pingpong is not installed (ci/setup)"
)]
fn who_retransmits_survives_and_a_death_is_said() {
    let pair = long_enough(30_000, |count| {
        let pair = Checkpointed::new();
        let words = format!("ibv_rc_pingpong -p PORT -c -n {count}");
        let running = pair.launch_pair(&words, &format!("{words} 127.0.0.1"));
        pair.killed_before(" iters", running, ("ibv_rc_pingpong", 1), 1)?;
        Some(pair)
    });
    let (checkpoints, directory) = (pair.checkpoints(), pair.directory.path());
    let before = files(&checkpoints);
    let report = directory.join("report");
    let plans = [
        plan(directory, "flap.json", FLAP),
        plan(directory, "move.json", MOVE),
        plan(directory, "damage.json", DAMAGE),
        plan(directory, "death.json", DEATH),
        plan(directory, "deaf.json", DEAF),
    ];
    let plans: Vec<&str> = plans.iter().map(String::as_str).collect();
    let how = [
        "--any-output",
        "--report",
        report.to_str().expect("a name"),
        "--plan",
    ];
    let (output, results) = branch(&checkpoints, &[&how[..], &plans].concat());
    let said = String::from_utf8_lossy(&output.stderr);
    let expected = ["survived", "survived", "survived", "failed", "hung"];
    assert_eq!(verdicts(&results), expected, "{said}\n{results:#}");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(results["branches"][0]["faults"], 2);
    let replay = format!("--plan {}/branch-04/plan.json", report.display());
    assert!(said.contains(&replay), "{said}");
    assert!(files(&checkpoints) == before, "the checkpoint is as it was");
    for name in ["report.html", "report.json", "branch-05/stderr"] {
        assert!(report.join(name).is_file(), "{name}");
    }
    let (again, _) = branch(&checkpoints, &[&how[..], &plans].concat());
    let said = String::from_utf8_lossy(&again.stderr);
    assert!(said.contains("choose another directory"), "{said}");
    assert_eq!(again.status.code(), Some(2));
}

#[test]
fn what_cannot_be_branched_is_said() {
    let directory = tempfile::tempdir().expect("a directory");
    let directory = directory.path();
    let flap = plan(directory, "flap.json", FLAP);
    let (output, _) = branch(directory, &["--plan", &flap]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("no complete checkpoint"), "{said}");
    assert_eq!(output.status.code(), Some(2));
}

/// Branches a kernel of MPI jobs on two nodes: those that do not kill anybody survive with its golden result, and who survives has
/// that.
fn branches_of_a_job(count: u32) {
    let job = JobOnNodes::checkpointed("ring", 4, &["--pace-us", "50000"]);
    let directory = job.job();
    // The job's own coordinator may still be ending, beside them.
    let checkpoints = directory.join("checkpoints");
    let before = files(&checkpoints);
    let expected = directory.with_file_name("expected");
    let golden = job
        .kernel
        .golden
        .strip_prefix(&job.before)
        .expect("its beginning");
    fs::write(&expected, golden).expect("a file");
    let seeds = format!("0..{count}");
    let expected = expected.to_str().expect("a name");
    let expect = ["--expect", expected, "--ignore", " UCX "];
    let (output, results) = branch(&directory, &[&expect[..], &["--seeds", &seeds]].concat());
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(verdicts(&results).len(), count as usize, "{said}");
    for branch in results["branches"].as_array().into_iter().flatten() {
        let faults = branch["plan"]["faults"].to_string();
        // One that comes late finds that the job has ended, or that MPI_Finalize has let all go: then nobody misses who dies.
        let may_fail = faults.contains("crash") && branch["faults"] != 0;
        let is_right = branch["verdict"] == "survived" || may_fail && branch["verdict"] == "failed";
        assert!(is_right, "{branch:#}");
    }
    assert!(files(&checkpoints) == before, "the checkpoint is as it was");
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
fn an_mpi_job_survives_what_it_can() {
    let _alone = fabric::one_job();
    // How many; all runs of the tests have 50.
    let count = std::env::var("SNAPRIG_BRANCHES").ok();
    let count = count.map(|count| count.parse().expect("SNAPRIG_BRANCHES is a number"));
    branches_of_a_job(count.unwrap_or(4));
}
