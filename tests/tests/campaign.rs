//! Campaigns as a user runs them: exit codes, reports that are resumed and merged, failures that
//! replay from one line.

use std::{
    fs,
    io::Read,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

const SNAPRIG: &str = env!("CARGO_BIN_EXE_snaprig-under-test");

fn snaprig(arguments: &[&str]) -> Output {
    let output = Command::new(SNAPRIG).args(arguments).output();
    output.expect("it starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn results(arguments: &[&str]) -> serde_json::Value {
    let output = snaprig(&[&["campaign", "--json"], arguments].concat());
    serde_json::from_slice(&output.stdout).expect("the output is one JSON document")
}

fn path(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

#[test]
fn a_canary_fails_the_campaign_and_its_stored_failure_fails_again_the_same_way() {
    for (canary, code) in [
        ("uncounted-drain", 1),
        ("believing-link", 3),
        ("rash-daemon", 4),
    ] {
        let dir = tempfile::tempdir().expect("a directory");
        let report = path(dir.path());
        let seeds = ["--seeds", "0..500", "--report", &report, "--canary", canary];
        let output = snaprig(&[&["campaign"][..], &seeds].concat());
        assert_eq!(output.status.code(), Some(code), "{}", text(&output.stdout));
        let failures = fs::read_dir(dir.path().join("failures")).expect("it is there");
        let failure = failures.flatten().next().expect("there is one").path();
        for file in ["plan.json", "failure.json", "trace.json", "timeline.html"] {
            assert!(failure.join(file).exists(), "{file}");
        }
        let line = fs::read_to_string(failure.join("repro.txt")).expect("it is there");
        let words: Vec<_> = line.split_whitespace().skip(1).collect();
        let again = snaprig(&words);
        assert_eq!(again.status.code(), Some(code), "{}", text(&again.stdout));
        let said = text(&again.stdout);
        assert!(said.ends_with("it fails the same way\n"), "{said}");
        // A hang may come before any snapshot.
        if code != 3 {
            let state = snaprig(&["repro", "--until", "snapify.drain", &path(&failure)]);
            let state = text(&state.stdout);
            assert!(state.contains("Draining"), "{state}");
        }
        let healthy = snaprig(&["repro", &path(&failure.join("plan.json"))]);
        assert!(healthy.status.success(), "{}", text(&healthy.stdout));
    }
}

#[test]
fn a_campaign_is_of_the_scenarios_that_are_named() {
    let reached = |arguments: &[&str]| {
        let results = results(&[&["--seeds", "0..150"], arguments].concat());
        assert_eq!(results["failures"], 0);
        let points = [
            "scif.message",
            "snapify.drain",
            "scif.call",
            "hca.packet",
            "coord.phase",
        ];
        points.map(|point| !results["reached"][point].is_null())
    };
    assert_eq!(reached(&[]), [true; 5]);
    assert_eq!(
        reached(&["--scenario", "verbs"]),
        [false, false, false, true, false]
    );
    assert_eq!(
        reached(&["--scenario", "swap"]),
        [true, true, false, false, false]
    );
    assert_eq!(
        reached(&["--scenario", "scif"]),
        [true, false, true, false, false]
    );
    assert_eq!(
        reached(&["--scenario", "coord"]),
        [false, false, false, false, true]
    );
    let both = ["--scenario", "swap", "--scenario", "verbs"];
    assert_eq!(reached(&both), [true, true, false, true, false]);
}

/// A planted bug of one scenario is found; its failure fails again, with this event, and with this to be seen as it
/// comes to this fault point.
fn is_found_and_fails_again(canary: &[&str], seeds: &str, event: &str, point: &str, seen: &str) {
    let dir = tempfile::tempdir().expect("a directory");
    let report = path(dir.path());
    let seeds = ["--seeds", seeds, "--report", &report];
    let output = snaprig(&[&["campaign"][..], canary, &seeds].concat());
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stdout));
    let failures = fs::read_dir(dir.path().join("failures")).expect("it is there");
    let failure = path(&failures.flatten().next().expect("there is one").path());
    let again = snaprig(&["repro", "--events", &failure]);
    let said = text(&again.stdout);
    assert!(said.contains(event), "{said}");
    assert!(said.ends_with("it fails the same way\n"), "{said}");
    let state = text(&snaprig(&["repro", "--until", point, &failure]).stdout);
    assert!(state.contains(seen), "{state}");
}

#[test]
fn a_bug_of_the_hca_is_found_and_its_failure_fails_again() {
    let canary = ["--canary", "early-read", "--scenario", "verbs"];
    let seen = "connection 0: process";
    is_found_and_fails_again(&canary, "0..500", "ibv_post_send", "hca.packet", seen);
}

#[test]
fn a_bug_of_a_scif_node_is_found_and_its_failure_fails_again() {
    let canary = ["--canary", "early-answer", "--scenario", "scif"];
    let seen = "side 0: program";
    is_found_and_fails_again(&canary, "0..300", "scif: Unwindow", "scif.copy", seen);
}

#[test]
fn a_bug_of_a_coordinator_is_found_and_its_failure_fails_again() {
    let canary = ["--canary", "believed-write", "--scenario", "coord"];
    let seen = "agent1: ";
    is_found_and_fails_again(&canary, "0..300", "Begin {", "coord.commit", seen);
}

#[test]
fn a_campaign_that_was_killed_goes_on_and_ends_with_the_same_results() {
    let whole = results(&["--sim", "--seeds", "0..2000"]);
    assert_eq!(whole["failures"], 0);
    let dir = tempfile::tempdir().expect("a directory");
    let report = path(dir.path());
    let chunks = dir.path().join("chunks");
    let arguments = ["--seeds", "0..2000", "--jobs", "1", "--report", &report];
    let mut campaign = Command::new(SNAPRIG)
        .arg("campaign")
        .args(arguments)
        .stdout(Stdio::null())
        .spawn()
        .expect("it starts");
    // Somewhere in the middle: as soon as the first chunk is there.
    while fs::read_dir(&chunks).map_or(0, Iterator::count) == 0 {
        assert!(campaign.try_wait().expect("it is ours").is_none());
        std::thread::yield_now();
    }
    campaign.kill().expect("killed");
    campaign.wait().expect("gone");
    assert_eq!(results(&arguments), whole);
    let merged = snaprig(&["campaign", "merge", "--json", &report]);
    let merged: serde_json::Value = serde_json::from_slice(&merged.stdout).expect("JSON");
    assert_eq!(merged, whole);
}

#[test]
fn plans_written_by_hand_hold_and_bad_ones_are_refused() {
    let plans = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../fixtures/plans");
    for (folder, how) in [(plans.clone(), &[][..]), (plans.join("rig"), &["--rig"])] {
        let mut count = 0;
        for plan in fs::read_dir(folder).expect("it is there").flatten() {
            let plan = plan.path();
            if plan.is_dir() {
                continue;
            }
            let output = snaprig(&[&["repro"], how, &[&path(&plan)]].concat());
            let said = text(&output.stdout) + &text(&output.stderr);
            assert!(output.status.success(), "{plan:?}: {said}");
            let idle = said.contains("happened: 0") && !said.contains("in the plan: 0");
            assert!(!idle, "{plan:?}: {said}");
            count += 1;
        }
        assert!(count >= 7);
    }
    let dir = tempfile::tempdir().expect("a directory");
    let bad = dir.path().join("bad.json");
    let head = r#""seed": 1, "cards": 2, "scenario": "migrate", "faults": "#;
    let many = r#"{"point": "scif.message", "nth": 1, "kind": {"delay": 1}},"#.repeat(20_000);
    for (plan, says) in [
        (r#"{"version": 9}"#.to_owned(), "version 9"),
        (
            format!(
                r#"{{"version": 1, {head} [{{"point": "no.where", "nth": 1, "kind": "drop"}}]}}"#
            ),
            "no.where",
        ),
        (
            format!(
                r#"{{"version": 1, {head} [{{"point": "scif.message", "at_ns": -1, "kind": {{"delay": 1}}}}]}}"#
            ),
            "bad.json",
        ),
        (
            format!(
                r#"{{"version": 1, {head} [{}]}}"#,
                many.trim_end_matches(',')
            ),
            "bad.json",
        ),
        (
            r#"{"version": 1, "seed": 1, "cards": 99, "scenario": "migrate"}"#.into(),
            "99 cards",
        ),
        (
            r#"{"version": 1, "seed": 1, "cards": 2, "scenario": "dance"}"#.into(),
            "dance",
        ),
        (
            r#"{"version": 1, "seed": 1, "cards": 9, "scenario": "verbs"}"#.into(),
            "1 to 8 cards",
        ),
        (
            r#"{"version": 1, "seed": 1, "cards": 9, "scenario": "scif"}"#.into(),
            "with scif, 1 to 8 cards",
        ),
        (
            r#"{"version": 1, "seed": 1, "cards": 1, "scenario": "coord",
                "workload": {"processes": 9}}"#
                .into(),
            "with coord, 1 to 8 processes",
        ),
        (
            r#"{"version": 1, "seed": 1, "cards": 1, "scenario": "verbs", "faults":
                [{"point": "hca.post", "nth": 1, "kind": {"crash": "hca1"}}]}"#
                .into(),
            "hca1 does not",
        ),
        ("not JSON".into(), "bad.json"),
    ] {
        fs::write(&bad, plan).expect("written");
        for command in [&["repro"][..], &["campaign", "--plan"]] {
            let output = snaprig(&[command, &[&path(&bad)]].concat());
            let error = text(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{error}");
            assert!(error.contains(says), "{says}: {error}");
        }
    }
    for arguments in [
        ["--shard", "2/2"],
        ["--shard", "1"],
        ["--seeds", "5..5"],
        ["--seeds", "9..5"],
        ["--seeds", "0..18446744073709551615"],
        ["--jobs", "0"],
        ["--report", "/dev/null"],
        ["--canary", "sparrow"],
        ["--scenario", "dance"],
    ] {
        let output = snaprig(&[&["campaign"][..], &arguments].concat());
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    }
    let report = path(&dir.path().join("report"));
    for (canary, code) in [("early-rename", 1), ("deaf-daemon", 2)] {
        let seeds = ["--seeds", "0..500", "--report", &report, "--canary", canary];
        let output = snaprig(&[&["campaign"][..], &seeds].concat());
        assert_eq!(output.status.code(), Some(code), "{}", text(&output.stderr));
    }
}

#[test]
fn fault_points_are_listed_with_their_kinds() {
    let mut listed = String::new();
    let output = snaprig(&["faults"]);
    output
        .stdout
        .as_slice()
        .read_to_string(&mut listed)
        .expect("UTF-8");
    for point in [
        "scif.message",
        "scif.call",
        "snapify.capture",
        "snapify_io.write",
        "hca.packet",
        "coord.committed",
        "tracee.ask_table",
        "ckpt.restart_held",
    ] {
        assert!(listed.contains(point));
    }
    assert!(listed.lines().all(|line| line.len() <= 80), "{listed}");
}

#[test]
fn an_exhaustive_campaign_says_how_many_states_it_saw() {
    // A part of it: all of it is `ci/run --all`'s.
    let output = snaprig(&["campaign", "--exhaustive", "--shard", "0/32"]);
    let said = text(&output.stdout);
    assert!(output.status.success(), "{said}");
    let (before, _) = said
        .split_once(" states of the protocols' machines")
        .expect("it says so");
    let states = before.split_whitespace().next_back().expect("a number");
    let states: u64 = states.parse().expect("a number");
    assert!(states > 1000, "{said}");
}

#[test]
fn real_rigs_survive_real_faults_and_their_campaigns_go_on_after_sigkill() {
    let dir = tempfile::tempdir().expect("a directory");
    let report = path(dir.path());
    let seeds = ["--rig", "--seeds", "0..10", "--report", &report];
    let temporary = dir.path().join("tmp");
    fs::create_dir(&temporary).expect("made");
    let mut campaign = Command::new(SNAPRIG)
        .arg("campaign")
        .args(seeds)
        .env("TMPDIR", &temporary)
        .stdout(Stdio::null())
        .spawn()
        .expect("it starts");
    let chunks = dir.path().join("chunks");
    let done = || fs::read_dir(&chunks).map_or(0, Iterator::count);
    while done() < 3 {
        assert!(campaign.try_wait().expect("it is ours").is_none());
        std::thread::yield_now();
    }
    campaign.kill().expect("killed");
    campaign.wait().expect("gone");
    assert!(done() < 10);
    let output = snaprig(&[&["campaign", "--jobs", "2"], &seeds[..]].concat());
    let said = text(&output.stdout) + &text(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(
        said.contains("10 runs") && said.contains(" 0 violations"),
        "{said}"
    );
    assert_eq!(done(), 10);
    let merged = snaprig(&["campaign", "merge", "--json", &report]);
    let merged: serde_json::Value = serde_json::from_slice(&merged.stdout).expect("JSON");
    assert_eq!(merged["runs"], 10);
    assert!(merged["reached"]["snapify.agree"][0].as_u64() >= Some(10));
}
