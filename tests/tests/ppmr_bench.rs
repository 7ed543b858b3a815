//! `snaprig bench ppmr`: migrations of an MPI job by each strategy, side by side.

use std::process::Command;

#[test]
#[cfg_attr(
    not(has_program = "mpicc"),
    ignore = "mpicc is not installed (ci/setup)"
)]
#[cfg_attr(
    not(has_program = "mpirun"),
    ignore = "mpirun is not installed (ci/setup)"
)]
fn each_strategy_is_measured_beside_the_pipeline() {
    let output = Command::new(env!("CARGO_BIN_EXE_snaprig-under-test"))
        .args(["bench", "ppmr", "--json", "--runs", "1", "--scale", "0.01"])
        .args(["--only", "migration"])
        .output()
        .expect("it starts");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let rows = report["rows"].as_array().expect("rows");
    for (measure, baseline) in [
        ("migration 320M", "local, 1gbit"),
        ("migration 320M", "shared"),
        ("migration 320M", "rdma-local"),
        ("migration 320M", "yardstick"),
        ("migration 320M", "local"),
        ("migration 3472M", "shared"),
    ] {
        let is_it = |row: &&serde_json::Value| {
            (&row["measure"], &row["baseline"]) == (&measure.into(), &baseline.into())
        };
        let row = rows.iter().find(is_it);
        let row = row.unwrap_or_else(|| panic!("{measure}, {baseline}: {report}"));
        let ours = row["ours"][0].as_f64().expect("a sample");
        assert!(ours > 0.0, "{row}");
        // What is not installed is said to be left out.
        let left_out = report["left_out"].to_string();
        let strategy = baseline.split(',').next().expect("a name");
        let is_left_out = left_out.contains(&format!("strategy {strategy} is left out"));
        assert_eq!(row["samples"].is_null(), is_left_out, "{report}");
    }
    let samples = report["samples"].to_string();
    assert!(
        samples.contains("8 processes, ppmr, links limited: stop"),
        "{samples}"
    );
}
