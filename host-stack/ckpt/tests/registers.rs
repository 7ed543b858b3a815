//! Threads, and what is in their registers.

mod common;

use common::{Job, compiled};

#[test]
fn a_hundred_threads_have_the_registers_that_they_had() {
    let (_directory, registers) = compiled("registers.c", &["-Wno-unused-result"]);
    let mut job = Job::launch(&[&registers]);
    job.wait_for("ready");
    job.dump(false).unwrap();
    for _ in 0..2 {
        job.over_again();
    }
    job.tell("go");
    let status = job.ended();
    assert_eq!((status, job.output().as_str()), (0, "ready\nright\n"));
}
