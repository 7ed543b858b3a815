//! Memory of every kind that a program can have.

mod common;

use std::fs;

use common::{HugePages, Job, compiled, nobody, program, wait_until};

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

/// Also in increments, and copied while the program runs.
#[test]
#[cfg_attr(not(has_guard_pages), ignore = "this kernel has no guard pages")]
fn guard_pages_are_what_they_were() {
    let (_directory, guards) = compiled("guards.c", &[]);
    for (user, mode) in [
        (None, "full"),
        (nobody(), "incremental"),
        (None, "background"),
    ] {
        let mut job = Job::launch_with(user, &[("MODE", mode)], &[&guards]);
        job.stays_what_it_was("ready\nright\n");
    }
}

/// What is written to it after a checkpoint was never, as with files that are open.
#[test]
fn a_mapped_file_goes_back_with_memory() {
    // With huge pages, if there may be some.
    let _pages = cfg!(is_root).then(|| HugePages::reserve(2048, 4));
    let (_directory, mapped) = compiled("mapped.c", &[]);
    for mut job in [Job::launch(&[&mapped]), Job::launch_as_nobody(&[&mapped])] {
        job.wait_for("ready");
        job.dump(false).unwrap();
        let before = fs::read(job.path("counter")).unwrap();
        wait_until("it counts on", || {
            fs::read(job.path("counter")).unwrap() != before
        });
        for pid in job.processes() {
            // SAFETY: kill(2) takes numbers alone; they are the job's processes, which have not been waited for.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
        job.ended();
        job.restart();
        job.tell("stop");
        assert_eq!(job.ended(), 0);
        assert!(job.output().ends_with("\nright\n"), "{}", job.output());
    }
}

/// A checkpoint does not make a program larger.
#[test]
fn what_relatives_share_stays_shared() {
    for mode in ["", "incremental", "background"] {
        let python = ["/usr/bin/python3", &program("relatives.py")];
        let mut job = Job::launch_with(nobody(), &[("MODE", mode)], &python);
        job.wait_for("ready");
        for _ in 0..2 {
            job.dump(false).unwrap();
        }
        job.tell("go");
        assert_eq!(
            (job.ended(), &*job.output()),
            (0, "ready\nright shared\n"),
            "{mode}"
        );
    }
}

/// Also that of who has made it, which is mapped by another name.
#[test]
fn a_named_semaphore_is_one() {
    let (_directory, semaphores) = compiled("semaphores.c", &["-Wno-unused-result"]);
    for launch in [Job::launch, Job::launch_as_nobody] {
        launch(&[&semaphores]).stays_what_it_was("ready\nright\n");
    }
}
