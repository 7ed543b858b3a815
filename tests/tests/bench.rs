//! `snaprig bench card` measures what it says, on the platforms that are here.

use std::process::Command;

#[test]
fn a_card_is_measured_beside_the_host() {
    let output = Command::new(env!("CARGO_BIN_EXE_snaprig-under-test"))
        .args(["bench", "card", "--json", "--runs", "2", "--scale", "0.01"])
        .output()
        .expect("it starts");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    let json = String::from_utf8(output.stdout).expect("JSON is UTF-8");
    for measure in [
        "sgemm, ptrace",
        "futex, ptrace",
        "boot, ptrace",
        "restore 64M ptrace",
        "doorbell",
    ] {
        assert!(json.contains(&format!("{measure:?}")), "{measure}: {json}");
    }
}
