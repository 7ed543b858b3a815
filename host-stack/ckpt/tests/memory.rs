//! Memory of every kind that a program can have.

mod common;

use std::fs;

use common::{Job, compiled};

fn try_with(mut job: Job) {
    job.stays_what_it_was("ready\nright\n");
    // 256 GiB of zeros cost nothing.
    let files = walk(&job.path("job"));
    assert!(files < 64 << 20, "{files} bytes");
}

/// Bytes of all files in a directory.
fn walk(directory: &std::path::Path) -> u64 {
    let entries = fs::read_dir(directory).unwrap().flatten();
    let sizes = entries.map(|entry| match entry.file_type().unwrap().is_dir() {
        true => walk(&entry.path()),
        false => entry.metadata().unwrap().len(),
    });
    sizes.sum()
}

#[test]
fn memory_is_what_it_was() {
    let (_directory, memory) = compiled("memory.c", &[]);
    try_with(Job::launch(&[&memory]));
}

#[test]
fn memory_of_an_ordinary_user() {
    let (_directory, memory) = compiled("memory.c", &[]);
    try_with(Job::launch_as_nobody(&[&memory]));
}
