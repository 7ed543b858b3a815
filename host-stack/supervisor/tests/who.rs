//! Users, groups, capabilities, priorities.

mod common;

use common::{Job, program, wait_until};

fn try_with(mut job: Job) {
    wait_until("both are ready", || {
        job.output().matches("ready").count() == 2
    });
    job.dump(false).unwrap();
    for _ in 0..2 {
        job.over_again();
    }
    job.tell("go");
    let status = job.ended();
    assert_eq!(
        (status, job.output().as_str()),
        (0, "ready\nready\nright 0\n")
    );
}

#[test]
fn a_program_is_who_it_was() {
    try_with(Job::launch(&["/usr/bin/python3", &program("who.py")]));
}

#[test]
fn an_ordinary_user_is_who_it_was() {
    try_with(Job::launch_as_nobody(&[
        "/usr/bin/python3",
        &program("who.py"),
    ]));
}
