//! What cannot be saved is named, and the program runs on.

mod common;

use common::{Job, compiled, wait_until};

#[test]
fn namespaces_of_its_own() {
    let script = "echo ready; while [ ! -e go ]; do :; done; echo right";
    let mut job = Job::launch_as_nobody(&["unshare", "-r", "--uts", "sh", "-c", script]);
    job.wait_for("ready");
    let why = job.dump(true).unwrap_err();
    assert!(why.contains("a namespace of its own (user)"), "{why}");
    job.tell("go");
    assert_eq!((job.ended(), job.output().as_str()), (0, "ready\nright\n"));
}

/// Each says what it has, and counts on: it does not stand still for the answer.
#[test]
fn what_shows_while_it_runs_is_refused_before_anything_stops() {
    let (_directory, odd) = compiled("odd.c", &[]);
    for (kind, named) in [
        ("filter", "a seccomp filter"),
        ("traced", "traces it"),
        ("chroot", "a root directory of its own"),
        ("userfaultfd", "userfaultfd"),
        ("shmget", "System V shared memory"),
        ("ldt", "an LDT"),
        ("keyring", "a keyring of"),
    ] {
        let mut job = match kind {
            "chroot" => Job::launch(&[&odd, kind]),
            _ => Job::launch_as_nobody(&[&odd, kind]),
        };
        wait_until("it has what it says, or cannot", || {
            job.output().contains('\n')
        });
        if job.output().starts_with("ready") {
            let why = job.dump(true).expect_err(kind);
            assert!(why.contains(named), "{kind}: {why}");
        }
        job.tell("go");
        assert_eq!(job.ended(), 0, "{kind}: {}", job.output());
        assert!(job.output().ends_with("right\n"), "{kind}");
    }
}
