//! Real programs, each checkpointed, killed and restarted many times in a row at random moments.

mod common;

use std::{thread, time::Duration};

use common::{Job, compiled, draw, program, rounds};

fn stress(mut job: Job, seed: u64) {
    for round in 0..rounds(50) {
        // The moment is what is random, nothing is waited for.
        thread::sleep(Duration::from_micros(draw(seed, round) % 30_000));
        if draw(seed, round) >> 60 == 0 {
            job.dump(false).unwrap();
        }
        job.over_again();
    }
    job.tell("stop");
    let status = job.ended();
    let output = job.output();
    assert!(
        status == 0 && output.contains("right") && !output.contains("wrong"),
        "{status}: {output}"
    );
}

#[test]
fn a_pipeline_of_shells() {
    stress(Job::launch(&["bash", &program("pipeline.sh")]), 1);
}

#[test]
fn a_pipeline_of_an_ordinary_user() {
    stress(Job::launch_as_nobody(&["bash", &program("pipeline.sh")]), 2);
}

#[test]
fn python_with_threads_and_processes() {
    let job = Job::launch(&["/usr/bin/python3", &program("threads.py")]);
    job.wait_for("begun");
    stress(job, 3);
}

#[test]
fn python_of_an_ordinary_user() {
    let job = Job::launch_as_nobody(&["/usr/bin/python3", &program("threads.py")]);
    job.wait_for("begun");
    stress(job, 4);
}

#[test]
fn sqlite_in_transactions() {
    let job = Job::launch(&["/usr/bin/python3", &program("bank.py")]);
    job.wait_for("begun");
    stress(job, 5);
}

#[test]
fn openmp() {
    let (_directory, sums) = compiled("sums.c", &["-fopenmp"]);
    let job = Job::launch(&[&sums]);
    job.wait_for("begun");
    stress(job, 6);
}
