//! A process ends in the middle of a checkpoint, when plugins of others wait for what it has promised: with the patience of
//! an hour, and no longer than it takes to say so. The checkpoint is one of the rest.

mod common;

use std::{fs, thread};

use common::{Job, PluginProgram, Trees, program, wait_until};
use snaprig_supervisor::{Reply, Request};

fn promise() -> PluginProgram {
    PluginProgram::compile(&program("promise.c"))
}

/// A shell that has these as its children.
fn all_of(promise: &PluginProgram, roles: &[&str]) -> String {
    let one = |role: &&str| format!("{} log {role} & ", promise.path);
    roles.iter().map(one).collect::<String>() + "wait"
}

/// The process with this role, as the test sees it.
fn process_of(output: &str, role: &str) -> i32 {
    let line = format!("ready {role} ");
    let said = output.lines().find_map(|said| said.strip_prefix(&line));
    said.and_then(|pid| pid.parse().ok()).expect("it is ready")
}

fn kill(pid: i32) {
    // SAFETY: kill(2) takes numbers alone; it is a descendant of a child that has not been waited for.
    unsafe { libc::kill(pid, libc::SIGKILL) };
}

/// How often this was said.
fn said(log: &str, what: &str) -> usize {
    log.lines().filter(|line| *line == what).count()
}

/// Whether all of these wait in a drain, or have left it.
fn wait(log: &str, roles: &[&str]) -> bool {
    roles
        .iter()
        .all(|role| said(log, &format!("waits {role}")) == 1)
}

/// Each of these has gone on after the round that failed, and after the one that did not.
fn went_on(log: &str, roles: &[&str]) {
    for role in roles {
        let counts =
            ["waits", "drains", "resumes"].map(|what| said(log, &format!("{what} {role}")));
        assert_eq!(counts, [1, 1, 2], "{role}: {log}");
    }
}

const SURVIVORS: [&str; 4] = ["looks", "meets", "polls", "rests"];

#[test]
fn in_a_tree() {
    let promise = promise();
    for victim in ["holds", "leaves"] {
        let roles = [&SURVIVORS[..], &[victim]].concat();
        let mut job = Job::launch(&["/bin/sh", "-c", &all_of(&promise, &roles)]);
        wait_until("all are ready", || said_ready(&job.output()) == roles.len());
        let log = || fs::read_to_string(job.path("log")).unwrap_or_default();
        let directory = job.path("job");
        let dump = thread::spawn(move || {
            let (kill, full) = (false, false);
            snaprig_supervisor::ask(&directory, Request::Dump { kill, full })
        });
        wait_until("all wait", || wait(&log(), &roles));
        kill(process_of(&job.output(), victim));
        let dumped = dump.join().unwrap();
        assert!(matches!(dumped, Ok(Reply::Dumped(_))), "{dumped:?}");
        wait_until("all have resumed", || {
            let resumed = |role: &&str| said(&log(), &format!("resumes {role}"));
            SURVIVORS.iter().map(resumed).sum::<usize>() == 2 * SURVIVORS.len()
        });
        went_on(&log(), &SURVIVORS);
        job.over_again();
        job.tell("go");
        assert_eq!(job.ended(), 0, "{}", job.output());
        assert_eq!(job.output().matches("right").count(), SURVIVORS.len());
    }
}

fn said_ready(output: &str) -> usize {
    output.matches("ready").count()
}

/// Trees of a job: each waits for one of another tree, and that is alone in its own or is not.
#[test]
fn in_another_tree_of_a_job() {
    let promise = promise();
    for (victim, beside) in [
        ("holds", None),
        ("leaves", None),
        ("holds", Some("rests")),
        ("leaves", Some("rests")),
    ] {
        let mut trees = Trees::new();
        let mut survivors = vec!["looks", "polls", "meets"];
        for role in &survivors {
            trees.launch(role, &[&promise.path, "log", role]);
        }
        let its: Vec<_> = [victim].into_iter().chain(beside).collect();
        match beside {
            None => trees.launch("its", &[&promise.path, "log", victim]),
            Some(_) => trees.launch("its", &["/bin/sh", "-c", &all_of(&promise, &its)]),
        }
        survivors.extend(beside);
        let roles = [&survivors[..], &[victim]].concat();
        wait_until("all are ready", || {
            said_ready(&trees.output()) == roles.len()
        });
        let path = trees.directory.path().join("log");
        let log = || fs::read_to_string(&path).unwrap_or_default();
        let mut dump = trees.driver();
        let mut dump = dump.args(["dump-job", "job"]).spawn().unwrap();
        wait_until("all wait", || wait(&log(), &roles));
        kill(process_of(&trees.output(), victim));
        let dumped = dump.wait().unwrap();
        assert!(dumped.success(), "{victim}, {beside:?}: {}", trees.output());
        wait_until("all have resumed", || {
            let resumed = |role: &&str| said(&log(), &format!("resumes {role}")) >= 2;
            survivors.iter().all(resumed)
        });
        trees.tell("go");
        trees.ended();
        let output = trees.output();
        assert_eq!(output.matches("right").count(), survivors.len(), "{output}");
    }
}
