//! What processes and threads are set to.

mod common;

use common::{Job, compiled};

fn stays(name: &str, options: &[&str]) {
    let (_directory, program) = compiled(name, options);
    for mut job in [Job::launch(&[&program]), Job::launch_as_nobody(&[&program])] {
        job.stays_what_it_was("ready\nright\n");
    }
}

#[test]
fn whatever_can_be_set_is_what_it_was() {
    stays("state.c", &["-Wno-unused-result"]);
}

#[test]
fn a_first_thread_may_have_ended() {
    stays("headless.c", &[]);
}

#[test]
fn another_kernels_vdso_leads_to_this_ones() {
    stays("vdso.c", &[]);
}
