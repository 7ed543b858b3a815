//! Sockets of real programs, with what is on its way through them.

mod common;

use common::{Job, program};

fn all_kinds(mut job: Job) {
    job.stays_what_it_was("ready\nall right\n");
}

#[test]
fn sockets_of_all_kinds_are_what_they_were() {
    all_kinds(Job::launch(&["/usr/bin/python3", &program("sockets.py")]));
}

#[test]
fn those_of_an_ordinary_user_are_as_well() {
    all_kinds(Job::launch_as_nobody(&[
        "/usr/bin/python3",
        &program("sockets.py"),
    ]));
}

fn under_load(mut job: Job) {
    job.wait_for("ready");
    for _ in 0..20 {
        job.dump(false).unwrap();
        job.over_again();
    }
    job.tell("stop");
    let (status, output) = (job.ended(), job.output());
    assert!(
        status == 0 && output.contains("right") && !output.contains("wrong"),
        "{status}: {output}"
    );
}

#[test]
fn a_python_server_and_its_clients_lose_nothing() {
    under_load(Job::launch(&["/usr/bin/python3", &program("echo.py")]));
}

#[test]
fn redis_and_its_benchmark_lose_nothing() {
    under_load(Job::launch(&["bash", &program("redis.sh")]));
}
