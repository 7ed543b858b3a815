//! What cannot be saved is named, and the program runs on.

mod common;

use common::Job;

#[test]
fn namespaces_of_its_own() {
    let script = "echo ready; while [ ! -e go ]; do :; done; echo right";
    let mut job = Job::launch_as_nobody(&["unshare", "-r", "--uts", "sh", "-c", script]);
    job.wait_for("ready");
    let why = job.dump(true).unwrap_err();
    assert!(why.contains("a namespace of its own (user)"), "{why}");
    job.tell("go");
    assert_eq!((job.ended(), job.output().as_str()), (0, "ready\nright\n"));
}
