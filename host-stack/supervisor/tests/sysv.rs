//! System V objects: shared memory, semaphores, message queues.

mod common;

use std::{ptr, thread, time::Duration};

use common::{Job, Objects, compiled, ends_well, migrate_of_nobody, nobody, postgresql, rounds};

/// Checkpointed at moments that differ, killed, and restarted.
fn under_load(mut job: Job) {
    job.wait_for("ready");
    let _objects = Objects::of(&job);
    for round in 0..rounds(20) {
        // The moment is what is random, nothing is waited for.
        thread::sleep(Duration::from_micros(round * 7919 % 20_011));
        job.dump(false).unwrap();
        job.over_again();
    }
    ends_well(&job.path("go"), &mut job);
}

#[test]
fn objects_of_all_kinds_are_what_they_were() {
    let (_directory, sysv) = compiled("sysv.c", &[]);
    under_load(Job::launch(&[&sysv]));
}

#[test]
fn those_of_an_ordinary_user_are_as_well() {
    let (_directory, sysv) = compiled("sysv.c", &[]);
    under_load(Job::launch_as_nobody(&[&sysv]));
}

#[test]
fn what_is_copied_in_the_background_has_them() {
    let (_directory, sysv) = compiled("sysv.c", &[]);
    let mode = [("MODE", "background")];
    under_load(Job::launch_with(nobody(), &mode, &[&sysv]));
}

#[test]
fn they_migrate_with_their_program() {
    let (_directory, sysv) = compiled("sysv.c", &[]);
    let source = Job::launch_as_nobody(&[&sysv]);
    source.wait_for("ready");
    let _objects = Objects::of(&source);
    let (go, mut jobs) = migrate_of_nobody(source, 3);
    ends_well(&go, jobs.last_mut().unwrap());
}

/// Whoever else has one is named, and the program runs on.
#[test]
fn what_others_use_is_refused() {
    let (_directory, sysv) = compiled("sysv.c", &[]);
    let mut job = Job::launch(&[&sysv]);
    job.wait_for("ready");
    let objects = Objects::of(&job);
    let (segment, set) = (objects.0[0].1, objects.0[5].1);
    // SAFETY: without an address shmat(2) takes one that nothing is at, so no memory of ours changes.
    let attached = unsafe { libc::shmat(segment, ptr::null(), libc::SHM_RDONLY) };
    let why = job.dump(true).unwrap_err();
    let named = format!("System V shared memory {segment} (key");
    assert!(
        why.contains(&named) && why.contains("others have attached as well, 1 times"),
        "{why}"
    );
    // SAFETY: nothing refers to what shmat(2) has attached there.
    unsafe { libc::shmdt(attached) };
    job.over_again();
    // In a namespace of its own, nobody has what it has: and there it is no more.
    // SAFETY: the fourth argument of SETVAL is a number, which a union of C passes where an int is passed.
    unsafe { libc::semctl(set, 0, libc::SETVAL, 1) };
    job.dump(false).unwrap();
    ends_well(&job.path("go"), &mut job);
    drop(objects);

    let mut job = Job::launch(&[&sysv]);
    job.wait_for("ready");
    let objects = Objects::of(&job);
    let set = objects.0[5].1;
    // SAFETY: the fourth argument of SETVAL is a number, which a union of C passes where an int is passed.
    unsafe { libc::semctl(set, 0, libc::SETVAL, 1) };
    let why = job.dump(true).unwrap_err();
    let named = format!("the System V semaphores {set} (key");
    let me = format!("which process {} uses as well", std::process::id());
    assert!(why.contains(&named) && why.contains(&me), "{why}");
    job.kill();
}

/// The key of its data directory is a segment's.
#[test]
#[cfg_attr(
    not(has_postgresql),
    ignore = "PostgreSQL is not installed (ci/setup installs it)"
)]
fn postgresql_and_its_benchmark_lose_nothing() {
    postgresql(&[]);
}

/// All of its shared memory is System V's.
#[test]
#[cfg_attr(
    not(has_postgresql),
    ignore = "PostgreSQL is not installed (ci/setup installs it)"
)]
fn postgresql_in_segments_loses_nothing() {
    let types = ["shared_memory_type=sysv", "dynamic_shared_memory_type=sysv"];
    postgresql(&["-c", types[0], "-c", types[1]]);
}
