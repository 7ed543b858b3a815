//! Signals, timers, and calls that a stop interrupts.

mod common;

use std::fs;

use common::{Job, compiled, wait_until};

/// Threads of the program but the first.
const THREADS: usize = 13;

/// Waits until each thread but the first is in a call.
fn wait_for_calls(job: &Job) {
    let pid = *job.processes().last().unwrap();
    wait_until("all threads are in their calls", || {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
        let waits = tasks.filter(|task| {
            let path = task.path().join("syscall");
            let call = fs::read_to_string(path).unwrap_or_default();
            let is_first = task.file_name().to_str() == Some(&pid.to_string());
            !is_first && !call.starts_with("running")
        });
        waits.count() == THREADS
    });
}

#[test]
fn nothing_is_interrupted_when_a_program_runs_on() {
    let (_directory, signals) = compiled("signals.c", &["-Wno-unused-result"]);
    let mut job = Job::launch(&[&signals]);
    job.wait_for("ready");
    wait_for_calls(&job);
    for _ in 0..3 {
        job.dump(false).unwrap();
    }
    finish(&mut job);
}

#[test]
fn nothing_is_interrupted_when_a_program_is_restarted() {
    let (_directory, signals) = compiled("signals.c", &["-Wno-unused-result"]);
    for mut job in [Job::launch(&[&signals]), Job::launch_as_nobody(&[&signals])] {
        job.wait_for("ready");
        wait_for_calls(&job);
        for _ in 0..3 {
            job.dump(false).unwrap();
            job.over_again();
        }
        finish(&mut job);
    }
}

fn finish(job: &mut Job) {
    job.tell("go");
    let status = job.ended();
    assert_eq!((status, job.output().as_str()), (0, "ready\nright\n"));
}
