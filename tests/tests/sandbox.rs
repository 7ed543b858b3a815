//! A card's process can do what a card needs, and nothing else.

mod host;

use std::{
    fs,
    os::unix::process::ExitStatusExt,
    process::{Command, Output},
};

use host::on_each_platform;
use snaprig_rig::{Rig, sandbox::FORBIDDEN};

const SNAPRIG: &str = env!("CARGO_BIN_EXE_snaprig-under-test");

fn forbidden(platform: &str, role: &str, deed: &str, mode: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forbidden"));
    command.args([platform, role, deed]);
    command
        .env("SNAPRIG_SECCOMP", mode)
        .output()
        .expect("it runs")
}

#[test]
fn a_forbidden_call_ends_the_process_and_is_named() {
    for platform in ["kvm", "ptrace"] {
        for (role, deed, call) in [
            ("any", "connect", "socket"),
            ("any", "run a program", "execve"),
            ("any", "map code", "mmap"),
            ("any", "change to code", "mprotect"),
            ("any", "make a namespace", "clone"),
            ("any", "make a ring", "io_uring_setup"),
            ("any", "kill", "kill"),
            ("any", "ask a terminal", "ioctl"),
            ("any", "become dumpable", "prctl"),
            ("any", "raise a limit", "prlimit64"),
            ("guest", "read a file", "openat"),
            ("guest", "run a program", "execve"),
            ("host", "read a file", "openat"),
            ("host", "debug", "ptrace"),
            ("rig", "debug", "ptrace"),
        ] {
            let output = forbidden(platform, role, deed, "on");
            let text = String::from_utf8_lossy(&output.stderr);
            let what = format!("{platform} {role} {deed}: {:?}: {text}", output.status);
            assert_eq!(output.status.code(), Some(FORBIDDEN), "{what}");
            let says = format!("thread culprit made the forbidden system call {call}");
            assert!(text.contains(&says), "{what}");
        }
        for role in ["any", "guest", "host", "rig"] {
            let output = forbidden(platform, role, "nothing", "on");
            assert!(output.status.success(), "{role}: {output:?}");
        }
    }
}

#[test]
fn another_architectures_calls_end_it_too() {
    let output = forbidden("kvm", "any", "32-bit call", "on");
    assert_eq!(output.status.signal(), Some(libc::SIGSYS), "{output:?}");
}

#[test]
fn the_filters_can_be_left_out_and_a_typing_error_is_not_that() {
    assert!(
        forbidden("kvm", "guest", "read a file", "off")
            .status
            .success()
    );
    assert!(
        forbidden("kvm", "guest", "read a file", "log")
            .status
            .success()
    );
    let output = forbidden("kvm", "guest", "nothing", "of");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && text.contains("SNAPRIG_SECCOMP=of"),
        "{text}"
    );
}

fn every_thread_of_a_running_card_is_under_filters(platform: &str) {
    let rig = Rig::builder().exe(SNAPRIG);
    let platform = platform.parse().expect("a platform");
    let rig = rig.platform(Some(platform)).start().expect("a rig");
    let process = format!("/proc/{}", rig.cards()[0].pid().expect("it runs"));
    let mut filters = Vec::new();
    for task in fs::read_dir(format!("{process}/task")).expect("its threads") {
        let status = task.expect("a thread").path().join("status");
        let status = fs::read_to_string(status).expect("its status");
        let value = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key));
            line.map(str::trim).unwrap_or_default().to_owned()
        };
        let what = format!("{platform}: {status}");
        assert_eq!(value("Seccomp:"), "2", "{what}");
        assert_eq!(value("NoNewPrivs:"), "1", "{what}");
        let count: u32 = value("Seccomp_filters:").parse().expect("a count");
        filters.push((value("Name:"), count));
    }
    // However long the chain of threads that started each other: two for all, and one of the role.
    for (name, count) in &filters {
        assert!((2..=3).contains(count), "{name}: {filters:?}");
        if ["guest", "vfio-user", "rig"]
            .iter()
            .any(|role| name.starts_with(role))
        {
            assert_eq!(*count, 3, "{name}: {filters:?}");
        }
    }
    for role in ["guest", "vfio-user", "rig", "dma"] {
        assert!(
            filters.iter().any(|(name, _)| name.starts_with(role)),
            "{role}: {filters:?}"
        );
    }
    let limits = fs::read_to_string(format!("{process}/limits")).expect("its limits");
    let core = limits
        .lines()
        .find(|line| line.starts_with("Max core file size"));
    let core: Vec<_> = core
        .expect("the limit")
        .split_whitespace()
        .skip(4)
        .collect();
    assert_eq!(core[..2], ["0", "0"]);
}

on_each_platform! {
    every_thread_of_a_running_card_is_under_filters
}
