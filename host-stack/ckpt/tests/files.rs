//! Open files of every kind.

mod common;

use common::{Job, program};

fn stays(name: &str) {
    for launch in [Job::launch, Job::launch_as_nobody] {
        launch(&["/usr/bin/python3", &program(name)]).stays_what_it_was("ready\nall right\n");
    }
}

#[test]
fn locks_leases_and_owners() {
    stays("locks.py");
}

#[test]
fn pipes_and_fifos() {
    stays("pipes.py");
}

#[test]
fn files_with_and_without_names() {
    stays("paths.py");
}

#[test]
fn watches() {
    stays("watches.py");
}
