//! Threads, and what is in their registers.

mod common;

use common::{Job, compiled};

#[test]
fn a_hundred_threads_have_the_registers_that_they_had() {
    let (_directory, registers) = compiled("registers.c", &["-Wno-unused-result"]);
    let mut job = Job::launch(&[&registers]);
    job.stays_what_it_was("ready\nright\n");
}
