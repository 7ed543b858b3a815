//! Programs that ask for more than a card has: they hear of it, the card goes on, the host does not
//! notice.

mod host;

use std::{path::Path, process::Command};

use host::on_each_platform;

const SNAPRIG: &str = env!("CARGO_BIN_EXE_snaprig-under-test");

fn who_asks_for_more_than_a_card_has_does_not_get_it(platform: &str) {
    let directory = tempfile::tempdir().expect("a directory");
    let program = directory.path().join("limits");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("card/limits.c");
    let mut gcc = Command::new("gcc");
    gcc.args(["-O1", "-static", "-pthread", "-o"]);
    let status = gcc.arg(&program).arg(source).status();
    assert!(status.expect("gcc").success());
    for (what, status, says) in [
        ("memory", 0, "malloc: Cannot allocate memory"),
        ("reserve", 128 + libc::SIGKILL, "out of memory: process"),
        ("largest", 0, "the child: signal 9, the parent has less: 1"),
        ("forks", 0, "fork: "),
        (
            "threads",
            0,
            "pthread_create: Resource temporarily unavailable",
        ),
    ] {
        let mut run = Command::new(SNAPRIG);
        run.args([
            "card",
            "run",
            "--memory",
            "64M",
            "--platform",
            platform,
            "--",
        ]);
        let output = run.arg(&program).arg(what).output().expect("it runs");
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        assert_eq!(
            output.status.code(),
            Some(status),
            "{platform} {what}: {text}"
        );
        assert!(text.contains(says), "{platform} {what}: {text}");
    }
}

on_each_platform! {
    who_asks_for_more_than_a_card_has_does_not_get_it
}
