//! Random programs of system calls: on every platform a card answers them as Linux does.
//!
//! `fixtures/yardsticks/calls.c` draws them. `SNAPRIG_CALL_SEEDS=A..B` chooses the seeds.

mod host;

use std::{
    path::PathBuf,
    process::{Command, Output, Stdio},
};

use host::on_each_platform;
use tempfile::TempDir;

const SNAPRIG: &str = env!("CARGO_BIN_EXE_snaprig-under-test");
const SOURCE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../fixtures/yardsticks/calls.c"
);
const SEEDS: &str = "0..100";
/// A card's files are in memory, so the host's are: other file systems count sizes and links of
/// directories, holes and what they refuse in ways of their own.
const MEMORY: &str = "/dev/shm";

fn compile(dir: &TempDir) -> PathBuf {
    let program = dir.path().join("calls");
    let output = Command::new("gcc")
        .args([
            "-O1",
            "-static",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-Wno-unused-result",
            SOURCE,
        ])
        .arg("-o")
        .arg(&program)
        .output()
        .expect("ci/setup installs gcc");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    program
}

fn run(command: &mut Command) -> Output {
    let output = command.env_clear().current_dir("/").stdin(Stdio::null());
    output
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

/// Lines that differ, the first of each seed: what follows it may be its consequence.
fn differences<'a>(host: &'a str, card: &'a str) -> Vec<(&'a str, &'a str)> {
    let mut card = card.lines().peekable();
    let mut differences = Vec::new();
    let mut last = None;
    for expected in host.lines() {
        let key = expected.split(' ').next();
        let got = card.next_if(|line| line.split(' ').next() == key);
        let seed = expected.split(['.', ' ']).next();
        if got != Some(expected) && seed != last {
            differences.push((expected, got.unwrap_or("no such line")));
            last = seed;
        }
    }
    differences.extend(card.next().map(|line| ("no such line", line)));
    differences
}

fn a_card_answers_random_programs_as_linux_does(platform: &str) {
    let seeds = std::env::var("SNAPRIG_CALL_SEEDS").unwrap_or_else(|_| SEEDS.into());
    let (first, end) = seeds.split_once("..").expect("SNAPRIG_CALL_SEEDS is A..B");
    let dir = tempfile::tempdir().expect("a directory");
    let world = tempfile::tempdir_in(MEMORY).expect("a directory in memory");
    let program = compile(&dir);
    let host = run(Command::new(&program).args([first, end]).arg(world.path()));
    let expected = String::from_utf8_lossy(&host.stdout);
    assert!(host.status.success(), "{host:?}");
    let card = run(Command::new(SNAPRIG)
        .args(["card", "run", "--platform", platform, "--"])
        .arg(&program)
        .args([first, end, "/tmp"]));
    let got = String::from_utf8_lossy(&card.stdout);
    let differences = differences(&expected, &got);
    for (host, card) in differences.iter().take(20) {
        println!("{platform}, seed.index of the call:\n  host {host}\n  card {card}");
    }
    let Some((line, _)) = differences.first() else {
        assert!(card.status.success(), "{platform}: {:?}", card.status);
        return;
    };
    let seed: u64 = line
        .split(['.', ' '])
        .next()
        .unwrap_or("")
        .parse()
        .unwrap_or(0);
    panic!(
        "{} seeds differ on {platform}: {}\nagain: SNAPRIG_CALL_SEEDS={seed}..{} cargo test \
         -p snaprig-tests --test card_calls",
        differences.len(),
        String::from_utf8_lossy(&card.stderr),
        seed + 1,
    );
}

on_each_platform! {
    a_card_answers_random_programs_as_linux_does
}
