//! `snaprig ppmr migrate`: all that a node of a running MPI job has goes on at a spare node, by each way that its memory may take,
//! while the others pause.

mod checkpointed;
mod fabric;

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
};

use checkpointed::{JobOnNodes, lines_of, migrate};
use fabric::{SNAPRIG, TIMEOUT, assert_success, one_job};
use rustix::process::{Pid, Signal, kill_process};

/// So slowly that a kernel is at work while it is migrated a few times.
const SLOWLY: [&str; 2] = ["--pace-us", "300000"];

/// What comes of a migration that must succeed.
fn migrated(job: &Path, from: &str, to: &str, how: &[&str]) -> serde_json::Value {
    let migrated = migrate(job, from, &[&["--to", to], how].concat());
    assert_success(&format!("{how:?}"), std::slice::from_ref(&migrated));
    serde_json::from_slice(&migrated.stdout).expect("JSON")
}

/// The file system of a directory, as findmnt(8) has it.
fn file_system(directory: &Path) -> String {
    let mut findmnt = Command::new("findmnt");
    findmnt.args([
        "--noheadings",
        "--raw",
        "--output",
        "FSTYPE,SOURCE",
        "--target",
    ]);
    let found = findmnt.arg(directory).output().expect("util-linux has it");
    let found = String::from_utf8_lossy(&found.stdout).into_owned();
    found.trim().replacen(' ', ", ", 1)
}

/// There and back, each time by the next of these ways; no image is left.
fn comes_and_goes(kernel: &str, ways: &[&[&str]]) {
    let _alone = one_job();
    let mut job = JobOnNodes::launched_beside_a_spare(kernel, &SLOWLY);
    let directory = job.job();
    let files = directory.join("files");
    fs::create_dir(&files).expect("a directory");
    let path = files.to_str().expect("a name");
    let mut places = ["node3", "node5"];
    for way in ways {
        let migrated = migrated(
            &directory,
            places[0],
            places[1],
            &[*way, &["--files", path]].concat(),
        );
        assert_eq!(migrated["to"], places[1]);
        let said = migrated["strategy"].as_str().expect("a name");
        let strategy = way.get(1).unwrap_or(&"ppmr");
        let transport = match *strategy {
            "local" | "shared" => None,
            _ if cfg!(feature = "rdma") && !way.contains(&"tcp") => Some("rdma"),
            _ => Some("tcp"),
        };
        assert_eq!(migrated["transport"].as_str(), transport);
        match *strategy {
            "ppmr" => assert_eq!(said, "ppmr"),
            by_file => assert_eq!(said, format!("{by_file} ({})", file_system(&files))),
        }
        assert!(migrated["blackout_ms"].as_f64() <= migrated["took_ms"].as_f64());
        places.reverse();
    }
    assert_eq!(job.ended(), job.kernel.golden);
    assert_eq!(fs::read_dir(&files).expect("a directory").count(), 0);
}

macro_rules! migrations {
    ($($test:ident: $kernel:literal, $ways:expr;)*) => {
        $(
            #[test]
            #[cfg_attr(not(has_program = "mpicc"), ignore = "mpicc is not installed (ci/setup)")]
            #[cfg_attr(not(has_program = "mpirun"), ignore = "mpirun is not installed (ci/setup)")]
            #[cfg_attr(not(has_file = "/usr/sbin/sshd"), ignore = "sshd is not installed (ci/setup)")]
            fn $test() {
                comes_and_goes($kernel, $ways);
            }
        )*
    };
}

migrations! {
    pipelined_by_reads_by_writes_and_ahead: "lu", &[
        &["--strategy", "ppmr"],
        &["--strategy", "ppmr", "--push", "--pool", "1M", "--chunk", "64K"],
        &["--strategy", "ppmr", "--pre-copy"],
        &["--strategy", "ppmr", "--post-copy"],
    ];
    by_files: "bt", &[
        &["--strategy", "rdma-local"],
        &["--strategy", "local"],
        &["--strategy", "shared"],
    ];
    again_and_again: "sp", &[&[], &["--strategy", "ppmr", "--transport", "tcp"], &[]];
}

/// What scp takes goes from the node where processes are, though they have the network of the one that they were on first.
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
#[cfg_attr(not(is_root), ignore = "root makes networks")]
fn files_go_over_links_there_and_back() {
    // A few times as slow as a machine that is busy with other tests.
    const LINK: [&str; 2] = ["--link", "40mbit"];
    const BYTES_A_MS: f64 = 40e6 / 8.0 / 1e3;
    /// What two ranks have of their own, at least.
    const BYTES_MIN: f64 = 6e6;
    let _alone = one_job();
    let mut job = JobOnNodes::launched_over("lu", &LINK, &SLOWLY);
    for (from, to) in [("node3", "node5"), ("node5", "node3")] {
        let migrated = migrated(&job.job(), from, to, &["--strategy", "local"]);
        let steps = migrated["members"][0]["steps_ms"].as_array().cloned();
        let steps = steps.expect("steps");
        let write = steps.iter().find(|step| step[0] == "write");
        let took_ms = write.and_then(|step| step[1].as_f64()).expect("a step");
        assert!(took_ms > BYTES_MIN / BYTES_A_MS, "{migrated}");
    }
    assert_eq!(job.ended(), job.kernel.golden);
}

/// A small file system, for as long as a test runs.
struct Small(tempfile::TempDir);

impl Small {
    fn mounted() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=1m", "none"]);
        let mounted = mount.arg(directory.path()).status().expect("mount(8)");
        assert!(mounted.success());
        Self(directory)
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount")
            .arg("--lazy")
            .arg(self.0.path())
            .status();
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
#[cfg_attr(
    not(has_file = "/usr/sbin/sshd"),
    ignore = "sshd is not installed (ci/setup)"
)]
#[cfg_attr(not(is_root), ignore = "root mounts file systems")]
fn without_room_for_an_image_all_stays_where_it_is() {
    let _alone = one_job();
    // Nodes have the mounts that there are when they start.
    let small = Small::mounted();
    let mut job = JobOnNodes::launched_beside_a_spare("lu", &SLOWLY);
    for strategy in ["shared", "rdma-local", "local"] {
        let small = small.0.path().to_str().expect("a name");
        let how = ["--strategy", strategy, "--files", small];
        let refused = migrate(&job.job(), "node3", &how);
        let why = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success(), "{why}");
        assert!(why.contains("node3 stays where it is"), "{why}");
    }
    migrated(&job.job(), "node3", "node5", &[]);
    assert_eq!(job.ended(), job.kernel.golden);
}

/// A file names a node, then a signal comes; where processes go is a command's to say.
#[test]
#[cfg_attr(
    not(has_program = "mpicc"),
    ignore = "mpicc is not installed (ci/setup)"
)]
#[cfg_attr(
    not(has_program = "mpirun"),
    ignore = "mpirun is not installed (ci/setup)"
)]
fn a_node_that_is_about_to_fail_is_left() {
    const FIRST_SPARE: &str = r#"sed -n 's/.*"spares":\["\([^"]*\).*/\1/p'"#;
    let _alone = one_job();
    let mut job = JobOnNodes::launched_beside_a_spare("lu", &SLOWLY);
    let directory = job.job();
    let failing = directory.join("failing");
    let mut watch = Command::new(SNAPRIG);
    watch
        .args(["ppmr", "watch", "--json", "--job"])
        .arg(&directory);
    watch.args(["--every", "0.2", "--times", "2", "--node", "node2"]);
    watch.args(["--above", "70", "--policy", FIRST_SPARE]);
    watch.arg("--health-file").arg(&failing);
    let mut watch = watch
        .stdout(Stdio::piped())
        .spawn()
        .expect("snaprig starts");
    let said = lines_of(watch.stdout.take().expect("it is piped"));
    let next = || -> serde_json::Value {
        let line = said.recv_timeout(TIMEOUT).expect("a migration");
        serde_json::from_str(&line).expect("JSON")
    };
    fs::write(&failing, "node1 69.5\nnode3 70.5\n").expect("a file");
    let left = next();
    assert_eq!(
        (&left["from"], &left["to"]),
        (&"node3".into(), &"node5".into())
    );
    fs::remove_file(&failing).expect("a file");
    kill_process(Pid::from_child(&watch), Signal::USR1).expect("it runs");
    let left = next();
    assert_eq!(
        (&left["from"], &left["to"]),
        (&"node2".into(), &"node3".into())
    );
    assert_eq!(job.ended(), job.kernel.golden);
    assert!(watch.wait().expect("it ends with the job").success());
}

/// A plan has two nodes fail, one after the other; the second one does not go where the first one was.
#[test]
#[cfg_attr(
    not(has_program = "mpicc"),
    ignore = "mpicc is not installed (ci/setup)"
)]
#[cfg_attr(
    not(has_program = "mpirun"),
    ignore = "mpirun is not installed (ci/setup)"
)]
fn nodes_fail_as_a_plan_says() {
    const PLAN: &str = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../fixtures/plans/health/node-fails.json"
    );
    let _alone = one_job();
    let mut job = JobOnNodes::launched_beside_spares("lu", (4, 2, 2), &SLOWLY);
    let mut watch = Command::new(SNAPRIG);
    watch.args(["ppmr", "watch", "--json", "--every", "0.2", "--times", "2"]);
    watch.args(["--health-plan", PLAN, "--job"]).arg(job.job());
    let mut watch = watch
        .stdout(Stdio::piped())
        .spawn()
        .expect("snaprig starts");
    let said = lines_of(watch.stdout.take().expect("it is piped"));
    for (from, to) in [("node3", "node5"), ("node2", "node6")] {
        let line = said.recv_timeout(TIMEOUT).expect("a migration");
        let left: serde_json::Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!((&left["from"], &left["to"]), (&from.into(), &to.into()));
    }
    assert_eq!(job.ended(), job.kernel.golden);
    assert!(watch.wait().expect("it ends with the job").success());
}
