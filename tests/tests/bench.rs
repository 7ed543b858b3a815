//! `snaprig bench card`, `bench scif`, `bench coi`, `bench snapify`, `bench snapify-io`, `bench ckpt-ib` and `bench ppmr` measure what they say, on the platforms that are here.

use std::process::Command;

/// That the benchmark succeeds, and has these rows.
fn measures(name: &str, runs: &str, expected: &[&str]) {
    measures_only(name, runs, "", expected);
}

/// The same, of measures that have this in their names.
fn measures_only(name: &str, runs: &str, only: &str, expected: &[&str]) {
    let output = Command::new(env!("CARGO_BIN_EXE_snaprig-under-test"))
        .args(["bench", name, "--json", "--runs", runs, "--scale", "0.01"])
        .args((!only.is_empty()).then(|| format!("--only={only}")))
        .output()
        .expect("it starts");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    let json = String::from_utf8(output.stdout).expect("JSON is UTF-8");
    for measure in expected {
        assert!(json.contains(&format!("{measure:?}")), "{measure}: {json}");
    }
}

#[test]
fn a_card_is_measured_beside_the_host() {
    let expected = [
        "sgemm, ptrace",
        "futex, ptrace",
        "boot, ptrace",
        "restore 64M ptrace",
        "doorbell",
    ];
    measures("card", "2", &expected);
}

#[test]
fn scif_is_measured_between_host_programs_and_with_a_card() {
    let expected = [
        "half trip 8B host",
        "stream 4K card",
        "write 64M host",
        "read 1M card",
        "engine write 64K",
        "engine read 16M",
    ];
    measures("scif", "1", &expected);
}

#[test]
fn coi_is_measured_beside_the_host() {
    let expected = [
        "run, ptrace",
        "run, 8 p., ptrace",
        "write 16M, ptrace",
        "read 4K, ptrace",
    ];
    measures("coi", "1", &expected);
}

#[test]
fn files_go_to_the_host_and_back_by_every_way_that_is_here() {
    let expected = ["local", "snapify", "checkpoint", "restart", "paper_times"];
    measures("snapify-io", "2", &expected);
}

#[test]
fn what_snapify_costs_is_measured() {
    let expected = [
        "MD",
        "KM",
        "BT-MZ",
        "average",
        "checkpoint",
        "restart",
        "local_store",
        "migration",
        "live",
        "swap_out",
        "swap_in",
    ];
    measures("snapify", "1", &expected);
}

#[test]
fn what_is_measured_of_snapify_is_a_page_too() {
    let directory = tempfile::tempdir().expect("a directory");
    let report = directory.path().join("report.html");
    let output = Command::new(env!("CARGO_BIN_EXE_snaprig-under-test"))
        .args([
            "bench",
            "snapify",
            "--only",
            "migration",
            "--runs",
            "1",
            "--scale",
            "0.01",
        ])
        .arg("--report")
        .arg(&report)
        .arg("--dir")
        .arg(directory.path())
        .output()
        .expect("it starts");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    let text = String::from_utf8(output.stdout).expect("text is UTF-8");
    assert!(text.lines().all(|line| line.len() <= 80), "{text}");
    assert!(
        text.contains("Figure 10 (d)") && text.contains("BT-MZ"),
        "{text}"
    );
    assert!(!text.contains("Figure 10 (a)"), "{text}");
    let page = std::fs::read_to_string(report).expect("a page");
    assert!(
        page.contains("Figure 10 (d)") && page.contains("<svg"),
        "{page}"
    );
    let left = directory.path().read_dir().expect("a directory").count();
    assert_eq!(left, 1, "only the page is left");
}

#[test]
fn what_checkpoints_cost_an_rdma_program_is_measured() {
    let expected = [
        "post, write 8 B",
        "poll, empty",
        "2 posts, 2 polls",
        "write 4 KiB",
        "lu, 2 ranks",
        "image lu",
        "start 16 processes",
        "drain 16x64 QPs",
    ];
    measures("ckpt-ib", "1", &expected);
}

#[test]
fn pipelines_of_images_are_measured_stage_by_stage() {
    let expected = [
        "aggregation 1M 64K x8",
        "network TCP 32M 128K x8",
        "pipeline TCP 8M 1M x8",
        "delivery TCP 8M 128K x8",
        "TCP 8M 128K x8",
    ];
    measures_only("ppmr", "1", "x8", &expected);
    measures_only("ppmr", "1", "read 16K", &["read 16K"]);
}

#[test]
fn what_is_measured_of_pipelines_is_a_page_too() {
    let directory = tempfile::tempdir().expect("a directory");
    let report = directory.path().join("report.html");
    let output = Command::new(env!("CARGO_BIN_EXE_snaprig-under-test"))
        .args(["bench", "ppmr", "--only", "pipeline", "--runs", "1"])
        .args(["--scale", "0.01", "--report"])
        .arg(&report)
        .output()
        .expect("it starts");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    let text = String::from_utf8(output.stdout).expect("text is UTF-8");
    assert!(text.lines().all(|line| line.len() <= 80), "{text}");
    // What a pipeline is compared with is measured, too; what is not compared is not.
    let is_there = |figure| text.contains(figure);
    assert!(
        is_there("Figure 8 (b)") && is_there("Figure 8 (a)") && !is_there("Figure 6"),
        "{text}"
    );
    let page = std::fs::read_to_string(report).expect("a page");
    assert!(
        page.contains("Figure 8 (b)") && page.contains("<svg"),
        "{page}"
    );
}
