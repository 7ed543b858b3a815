//! Says which tests this machine can run.

use std::{fs, path::Path};

/// Debian installs each version of PostgreSQL in a directory of its own.
const POSTGRESQL: &str = "/usr/lib/postgresql";

fn main() {
    snaprig_test_needs::tell_root();
    snaprig_test_needs::tell_guard_pages();
    snaprig_test_needs::tell_mounts("mounts_tmpfs", "tmpfs", &[]);
    snaprig_test_needs::tell_mounts("mounts_hugetlbfs", "hugetlbfs", &[]);
    snaprig_test_needs::say("has_postgresql", has_postgresql(Path::new(POSTGRESQL)));
}

fn has_postgresql(directory: &Path) -> bool {
    let mut versions = fs::read_dir(directory).into_iter().flatten().flatten();
    versions.any(|version| version.path().join("bin/pgbench").is_file())
}
