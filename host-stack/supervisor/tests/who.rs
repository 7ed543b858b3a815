//! Users, groups, capabilities, priorities.

mod common;

use common::{Job, WITHOUT, nobody, program, wait_until};

fn try_with(mut job: Job) {
    wait_until("both are ready", || {
        job.output().matches("ready").count() == 2
    });
    job.dump(false).unwrap();
    for _ in 0..2 {
        job.over_again();
    }
    job.tell("go");
    let status = job.ended();
    assert_eq!(
        (status, job.output().as_str()),
        (0, "ready\nready\nright 0\n")
    );
}

#[test]
fn a_program_is_who_it_was() {
    try_with(Job::launch(&["/usr/bin/python3", &program("who.py")]));
}

#[test]
fn an_ordinary_user_is_who_it_was() {
    try_with(Job::launch_as_nobody(&[
        "/usr/bin/python3",
        &program("who.py"),
    ]));
}

/// As in a container: its other processes have the users and groups that they had, too.
#[test]
fn root_without_all_rights_is_who_it_was() {
    for capabilities in ["-sys_admin", "-sys_time"] {
        // Who is not root has none to lose.
        let without = nobody().map(|_| (WITHOUT, capabilities));
        let program = ["/usr/bin/python3", &program("who.py"), "traceable"];
        try_with(Job::launch_with(None, without.as_slice(), &program));
    }
}

#[test]
fn what_root_without_all_rights_cannot_restart_is_named() {
    let Some(_) = nobody() else {
        return;
    };
    let program = ["/usr/bin/python3", &program("who.py")];
    let mut job = Job::launch_with(None, &[(WITHOUT, "-sys_admin")], &program);
    wait_until("both are ready", || {
        job.output().matches("ready").count() == 2
    });
    job.dump(true).unwrap();
    job.ended();
    let why = job.refuses_to_restart();
    assert!(
        why.contains("CAP_SYS_ADMIN") && why.contains("PR_SET_DUMPABLE"),
        "{why}"
    );
}
