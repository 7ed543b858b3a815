//! The example of a plugin (`libckpt-plugin/examples/ring.c`): two processes drain a ring in shared memory into each other,
//! in one tree and as trees of a job over TCP, and everything is killed at moments that are drawn anew each time.

mod common;

use std::{
    fs,
    process::{Child, Stdio},
    thread,
    time::Duration,
};

use common::{Job, PluginProgram, Trees, wait_until};
use snaprig_supervisor::Request;

/// How often everything is killed: `SNAPRIG_KILLS`, or this.
const KILLS: u64 = 10;
/// A checkpoint takes about so long.
const CHECKPOINT: Duration = Duration::from_millis(40);

fn kills() -> u64 {
    let set = std::env::var("SNAPRIG_KILLS").ok();
    set.and_then(|set| set.parse().ok()).unwrap_or(KILLS)
}

fn ring() -> PluginProgram {
    PluginProgram::compile(&format!(
        "{}/../libckpt-plugin/examples/ring.c",
        env!("CARGO_MANIFEST_DIR")
    ))
}

/// A moment within a checkpoint, or a bit after it.
fn moment() -> Duration {
    let state = std::hash::BuildHasher::build_hasher(&std::hash::RandomState::new());
    let drawn = std::hash::Hasher::finish(&state);
    CHECKPOINT.mul_f64((drawn % 1000) as f64 / 800.0)
}

fn is_right(output: &str) {
    let right = output.lines().filter(|line| *line == "right").count();
    assert!(right == 2 && !output.contains("wrong"), "{output}");
}

#[test]
fn a_ring_within_a_tree_loses_nothing_whenever_all_is_killed() {
    let ring = ring();
    let mut job = Job::launch(&[&ring.path, ".", "both"]);
    wait_until("both are ready", || {
        job.output().matches("ready").count() == 2
    });
    job.dump(false).unwrap();
    job.over_again();
    for _ in 0..kills() {
        let directory = job.path("job");
        let dump = thread::spawn(move || {
            let request = Request::Dump {
                kill: false,
                full: false,
            };
            // Nobody may be left to answer.
            drop(snaprig_supervisor::ask(&directory, request));
        });
        thread::sleep(moment());
        job.kill();
        dump.join().unwrap();
        // What they have said since is not the checkpoint's.
        fs::write(job.path("out"), "").unwrap();
        job.restart();
    }
    job.tell("stop");
    assert_eq!(job.ended(), 0, "{}", job.output());
    is_right(&job.output());
}

/// Two trees of a job, whose coordinator listens at a port.
struct Rings {
    trees: Trees,
    coordinator: Child,
}

impl Rings {
    fn launch(ring: &PluginProgram) -> Self {
        let mut trees = Trees::new();
        let mut coordinator = trees.driver();
        coordinator.args(["coordinate", "job", "127.0.0.1:0"]);
        let coordinator = coordinator.stdout(Stdio::null()).spawn().unwrap();
        wait_until("the coordinator listens", || trees.coordinator().is_some());
        for own in ["0", "1"] {
            trees.launch(own, &[&ring.path, ".", own]);
        }
        wait_until("both are ready", || {
            trees.output().matches("ready").count() == 2
        });
        Self { trees, coordinator }
    }
}

impl Drop for Rings {
    fn drop(&mut self) {
        self.trees.kill_coordinator();
        // It has ended, or ends now.
        let _ = self.coordinator.kill();
        let _ = self.coordinator.wait();
    }
}

#[test]
fn a_ring_between_trees_of_a_job_over_tcp_loses_nothing_whenever_all_is_killed() {
    let ring = ring();
    let mut rings = Rings::launch(&ring);
    rings.trees.dump(false).unwrap();
    rings.trees.dump(true).unwrap();
    rings.trees.ended();
    rings.trees.restart();
    for _ in 0..kills() {
        let mut dump = rings.trees.driver();
        dump.args(["dump-job", "job"]);
        dump.stdout(Stdio::null()).stderr(Stdio::null());
        let mut dump = dump.spawn().unwrap();
        thread::sleep(moment());
        rings.trees.kill_all();
        // Nobody may be left to answer.
        let _ = dump.wait();
        fs::write(rings.trees.directory.path().join("out"), "").unwrap();
        rings.trees.restart();
    }
    rings.trees.tell("stop");
    let (ended, output) = (rings.trees.ended(), rings.trees.output());
    assert_eq!(ended, [0], "{output}");
    is_right(&output);
}

#[test]
fn a_plugin_that_fails_in_a_restart_ends_all_of_its_job_before_any_of_it_has_run() {
    let ring = ring();
    let mut rings = Rings::launch(&ring);
    rings.trees.dump(true).unwrap();
    rings.trees.ended();
    let before = rings.trees.output();
    rings.trees.tell("broken");
    rings.trees.begin_restart(None);
    let ended = rings.trees.ended();
    let said = rings.trees.output()[before.len()..].to_owned();
    assert!(
        ended != [0] && said.contains("plugin ring"),
        "{ended:?}: {said}"
    );
    assert!(!said.contains("right"), "{said}");
    fs::remove_file(rings.trees.directory.path().join("broken")).unwrap();
    rings.trees.restart();
    rings.trees.tell("stop");
    assert_eq!(rings.trees.ended(), [0], "{}", rings.trees.output());
}
