//! More offload processes than cards hold: programs that know nothing of each other take turns on them (`snaprig snapify
//! oversubscribe`), and compute what they would alone.

mod host;
mod offload;

use std::{
    io::{BufRead, BufReader, Read},
    path::Path,
    process::{Child, Command, Stdio},
};

use host::on_each_platform;
use offload::{Program, SNAPRIG, text};
use serde_json::Value;
use snaprig_rig::{Rig, sdk::Sdk};

on_each_platform! {
    twelve_processes_share_two_cards
}

/// Two processes fit on a card of this size.
const MEMORY_BYTES: u64 = 128 << 20;
/// As in `host.c`.
const ROUNDS: u64 = 4;
const VALUES: u64 = 5 << 20;
const STEPS: u64 = 4;

/// What the program of this number prints.
fn expected(number: u64) -> String {
    let mut values: Vec<u64> = (0..VALUES).map(|v| 1 + v + 1_000_003 * number).collect();
    let mut round = |rounds: u64| {
        let mut sum = 0_u64;
        for state in &mut values {
            for _ in 0..STEPS {
                *state ^= *state << 13;
                *state ^= *state >> 7;
                *state ^= *state << 17;
            }
            sum = sum.wrapping_add(*state);
        }
        format!("{:x}\n", sum.wrapping_add(rounds) >> 1)
    };
    let rounds: String = (1..=ROUNDS).map(&mut round).collect();
    rounds + "sink: main returned 0, termination code 0\n"
}

/// The arbiter, when it listens.
fn arbiter(rig: &Path) -> Child {
    let mut arbiter = Command::new(SNAPRIG)
        .args([
            "snapify",
            "oversubscribe",
            "--json",
            "--quantum",
            "50",
            "--rig",
        ])
        .arg(rig)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut said = String::new();
    let stderr = arbiter.stderr.as_mut().expect("a pipe");
    BufReader::new(stderr).read_line(&mut said).expect("a line");
    assert!(said.contains("take turns"), "{said}");
    arbiter
}

fn start(rig: &Path, program: &Program, number: u64) -> Child {
    let sdk = Sdk::of(Path::new(SNAPRIG)).expect("libraries");
    Command::new(program.directory().join("host"))
        .arg(program.directory().join("sink"))
        .arg(number.to_string())
        .envs(sdk.environment(rig).expect("an environment"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts")
}

fn twelve_processes_share_two_cards(platform: &str) {
    let program = Program::compile("snapify/turns", "", "");
    let platform = platform.parse().expect("a platform");
    let builder = Rig::builder().exe(SNAPRIG).cards(2);
    let builder = builder.memory_bytes(MEMORY_BYTES);
    let rig = builder.platform(Some(platform)).start().expect("a rig");
    let mut arbiter = arbiter(rig.dir());
    let programs: Vec<_> = (0..12)
        .map(|number| start(rig.dir(), &program, number))
        .collect();
    for (number, running) in (0..).zip(programs) {
        let output = running.wait_with_output().expect("it ends");
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(said, expected(number), "{number}: {}", text(&output));
    }
    let pid = arbiter.id().to_string();
    let interrupted = Command::new("kill").args(["-INT", &pid]).status();
    assert!(interrupted.expect("kill").success());
    let mut report = String::new();
    let stdout = arbiter.stdout.as_mut().expect("a pipe");
    stdout.read_to_string(&mut report).expect("it reports");
    assert!(arbiter.wait().expect("it ends").success());
    let report: Value = serde_json::from_str(&report).expect("JSON");
    let rows = report["processes"].as_array().expect("rows");
    assert_eq!(rows.len(), 12, "{report:#}");
    let number = |row: &Value, name: &str| row[name].as_u64().expect("a number");
    let sum = |name: &str| rows.iter().map(|row| number(row, name)).sum::<u64>();
    // Of twelve no more than four are on cards at a time.
    assert!(sum("swaps_out") >= 1, "{report:#}");
    // All have come back; who ends at once is gone before the arbiter hears that.
    let is_back = |row: &Value| number(row, "swaps_out") - number(row, "swaps_in") <= 1;
    assert!(rows.iter().all(is_back), "{report:#}");
    // A swap that meets a process at its end fails; one that goes on is not failed twice.
    assert!(
        rows.iter().all(|row| number(row, "failed") <= 1),
        "{report:#}"
    );
    assert!(report["fairness"].as_f64() > Some(0.5), "{report:#}");
}
