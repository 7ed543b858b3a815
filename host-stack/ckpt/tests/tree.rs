//! Parents, process groups, sessions; who has ended; who is stopped.

mod common;

use common::{Job, program, wait_until};

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
