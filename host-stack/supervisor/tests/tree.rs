//! Parents, process groups, sessions; who has ended; who is stopped.

mod common;

use common::{Job, compiled, program, wait_until};

fn try_with(mut job: Job) {
    wait_until("all are ready", || {
        job.output().matches("ready").count() == 5
    });
    job.dump(false).unwrap();
    for _ in 0..2 {
        job.over_again();
    }
    job.tell("go");
    let status = job.ended();
    let wanted = format!("{}right\n", "ready\n".repeat(5));
    assert_eq!((status, job.output()), (0, wanted));
}

#[test]
fn a_tree_is_what_it_was() {
    try_with(Job::launch(&["/usr/bin/python3", &program("tree.py")]));
}

#[test]
fn a_tree_of_an_ordinary_user() {
    try_with(Job::launch_as_nobody(&[
        "/usr/bin/python3",
        &program("tree.py"),
    ]));
}

/// Nothing stops a thread that waits in vfork(2): the checkpoint fails, and nobody is held; later, one succeeds.
#[test]
fn a_parent_in_vfork_runs_on() {
    let (_directory, vfork) = compiled("vfork.c", &["-Wno-unused-result"]);
    let mut job = Job::launch(&[&vfork]);
    job.wait_for("ready");
    let why = job.dump(false).unwrap_err();
    assert!(why.contains("vfork"), "{why}");
    job.tell("go");
    job.wait_for("gone on");
    job.over_again();
    job.tell("stop");
    assert_eq!(
        (job.ended(), job.output().as_str()),
        (0, "ready\ngone on\nright\n")
    );
}
