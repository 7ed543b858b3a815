//! The main job and `card run`, as a user runs them.

mod host;

use std::process::{Command, Output};

use host::on_each_platform;

const SNAPRIG: &str = env!("CARGO_BIN_EXE_snaprig-under-test");

fn snaprig(arguments: &[&str]) -> Output {
    Command::new(SNAPRIG)
        .args(arguments)
        .output()
        .expect("it starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn demo(arguments: &[&str]) -> serde_json::Value {
    let output = snaprig(&[&["demo", "--json"], arguments].concat());
    assert!(
        output.status.success(),
        "{arguments:?}: {}",
        text(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).expect("the output is one JSON document")
}

fn the_restored_run_equals_the_undisturbed_one_wherever_it_is_interrupted(platform: &str) {
    for seed in ["1", "2", "3", "11"] {
        let outcome = demo(&["--platform", platform, "--seed", seed]);
        assert_eq!(outcome["identical"], true);
        for name in ["pause", "capture", "kill", "restore", "resume"] {
            let steps = outcome["steps"].as_array().expect("a list");
            let step = steps.iter().find(|step| step["name"] == name).expect(name);
            assert!(step["milliseconds"].as_f64().expect("a number") > 0.0);
        }
    }
}

fn host_cards_and_rig_die_and_the_application_goes_on_elsewhere(platform: &str) {
    for (kill, seed) in [("all", "1"), ("all", "5"), ("host", "2")] {
        let outcome = demo(&["--platform", platform, "--seed", seed, "--kill", kill]);
        assert_eq!(
            (&outcome["identical"], &outcome["killed"]),
            (&true.into(), &kill.into())
        );
        let steps = outcome["steps"].as_array().expect("a list");
        let checkpoint = steps.iter().find(|step| step["name"] == "checkpoint");
        let bytes = checkpoint.expect("a step")["bytes"].as_u64();
        // Of both processes: neither is that small.
        assert!(bytes.is_some_and(|bytes| bytes > 1 << 20), "{bytes:?}");
    }
}

fn generated_points_of_the_papers_shape(platform: &str) {
    let outcome = demo(&["--platform", platform, "--scale", "20000"]);
    assert_eq!(outcome["identical"], true);
}

#[test]
fn a_bad_input_file_is_named() {
    let output = snaprig(&["demo", "--input", "/nonexistent.csv"]);
    assert!(!output.status.success());
    assert!(text(&output.stderr).contains("/nonexistent.csv"));
}

fn programs_run_on_a_card_and_their_exit_status_is_ours(platform: &str) {
    use snaprig_fixtures::programs;
    let dir = tempfile::tempdir().expect("a directory");
    let run = |name: &str, program: &[u8]| {
        use std::os::unix::fs::PermissionsExt;
        let path = dir.path().join(name);
        std::fs::write(&path, program).expect("written");
        let executable = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(&path, executable).expect("set");
        let path = path.to_string_lossy().into_owned();
        snaprig(&["card", "run", "--platform", platform, "--", &path])
    };
    for (name, program) in [
        ("hello", programs::HELLO),
        ("hello_rust", programs::HELLO_RUST),
    ] {
        let output = run(name, program);
        assert!(
            text(&output.stdout).contains("hello"),
            "{}",
            text(&output.stderr)
        );
    }
    let crashed = run("crash", programs::CRASH);
    assert_eq!(crashed.status.code(), Some(128 + libc::SIGSEGV));
    let refused = run("text", b"this is no program");
    assert!(!refused.status.success());
}

#[test]
fn a_kept_snapshot_can_be_verified_and_a_flipped_bit_is_named() {
    let dir = tempfile::tempdir().expect("a directory");
    let keep = dir.path().to_string_lossy().into_owned();
    assert_eq!(demo(&["--keep", &keep])["identical"], true);
    let snapshot = dir.path().join("snapshot");
    let verify = || snaprig(&["snapshot", "verify", &snapshot.to_string_lossy()]);
    let output = verify();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("offload_process.img"));
    let image = snapshot.join("offload_process.img");
    let mut bytes = std::fs::read(&image).expect("it is there");
    bytes[1 << 20] ^= 1;
    std::fs::write(&image, bytes).expect("written");
    let output = verify();
    let error = text(&output.stderr);
    assert!(!output.status.success());
    assert!(
        error.contains("offload_process.img") && error.contains("offset 1048576"),
        "{error}"
    );
}

on_each_platform! {
    the_restored_run_equals_the_undisturbed_one_wherever_it_is_interrupted
    host_cards_and_rig_die_and_the_application_goes_on_elsewhere
    generated_points_of_the_papers_shape
    programs_run_on_a_card_and_their_exit_status_is_ours
}
