//! A demo that is ended at any moment leaves no process and no directory, and one that takes too
//! long gives up.

mod children;

use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Command, Stdio},
};

use children::ends;
use rustix::process::Pid;

const SNAPRIG: &str = env!("CARGO_BIN_EXE_snaprig-under-test");

/// A demo whose temporary files go below `tmp`.
fn demo(tmp: &Path, arguments: &[&str]) -> Child {
    Command::new(SNAPRIG)
        .arg("demo")
        .args(arguments)
        .env("TMPDIR", tmp)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .expect("it starts")
}

fn children(pid: u32) -> Vec<Pid> {
    let mut children = Vec::new();
    for task in fs::read_dir(format!("/proc/{pid}/task")).expect("it runs") {
        let path = task.expect("a thread").path().join("children");
        let text = fs::read_to_string(path).unwrap_or_default();
        let pids = text.split_whitespace().filter_map(|pid| pid.parse().ok());
        children.extend(pids.filter_map(Pid::from_raw));
    }
    children
}

#[test]
fn a_demo_that_is_killed_takes_everything_along() {
    for signal in [libc::SIGKILL, libc::SIGTERM, libc::SIGINT] {
        for step in [
            "boot", "start", "run", "pause", "capture", "kill", "restore", "resume",
        ] {
            let tmp = tempfile::tempdir().expect("a directory");
            let mut demo = demo(tmp.path(), &[]);
            let stdout = BufReader::new(demo.stdout.take().expect("it is piped"));
            let mut lines = stdout.lines().map_while(Result::ok);
            assert!(lines.any(|line| line.trim_start().starts_with(step)));
            let children = children(demo.id());
            // To the whole group, as a terminal does it.
            // SAFETY: kill(2) takes numbers alone; the group is that of our process, which is not waited for yet.
            unsafe { libc::kill(-(demo.id() as i32), signal) };
            demo.wait().expect("it ends");
            for pid in children {
                assert!(ends(pid, 30), "{step}: process {pid:?} is left");
            }
            let left: Vec<_> = fs::read_dir(tmp.path()).expect("it is there").collect();
            assert!(left.is_empty(), "{step}: {left:?}");
        }
    }
}

#[test]
fn a_demo_that_ends_leaves_nothing() {
    let tmp = tempfile::tempdir().expect("a directory");
    for (arguments, well) in [
        (&[][..], true),
        (&["--timeout", "1", "--scale", "1000000"][..], false),
    ] {
        let output = demo(tmp.path(), arguments)
            .wait_with_output()
            .expect("it ends");
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.success(), well, "{error}");
        assert!(well || error.contains("--timeout"), "{error}");
        let left: Vec<_> = fs::read_dir(tmp.path()).expect("it is there").collect();
        assert!(left.is_empty(), "{left:?}");
    }
}
