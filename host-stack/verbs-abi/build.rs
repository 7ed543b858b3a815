//! Says which tests this machine can run.

use std::{fs, process::Command};

const LIBRARY: &str = "/usr/lib/x86_64-linux-gnu/libibverbs.so.1";
const LIBRARY_44: &str = "libibverbs.so.1.14.44.0";

fn main() {
    let library = fs::canonicalize(LIBRARY).is_ok_and(|path| path.ends_with(LIBRARY_44));
    snaprig_test_needs::say("has_libibverbs_44", library);
    snaprig_test_needs::say("has_verbs_h_44", headers().starts_with("44."));
}

/// The version of the headers, if they are installed.
fn headers() -> String {
    let query = ["-W", "-f", "${Version}", "libibverbs-dev"];
    let found = Command::new("dpkg-query").args(query).output();
    found.map_or_else(
        |_| String::new(),
        |found| String::from_utf8_lossy(&found.stdout).into_owned(),
    )
}
