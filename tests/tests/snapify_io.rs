//! Snapify-IO for users: a program in C on a card reads and writes files of the host, as descriptors.

mod host;

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use host::on_each_platform;
use tempfile::TempDir;

const SNAPRIG: &str = env!("CARGO_BIN_EXE_snaprig-under-test");
const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/snapify/io/io.c");
/// More than both slots of a stream's buffer, and no multiple of anything.
const BYTES: usize = 9_000_001;

on_each_platform! {
    files_of_the_host_are_read_and_written
    files_of_cards_are_read_and_written
    what_goes_wrong_is_told_and_leaves_nothing
}

/// A directory to share, and beside it the program.
struct Scene {
    directory: TempDir,
}

impl Scene {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let scene = Self { directory };
        let script = "gcc -O2 -Wall -Wextra -Werror -o $io $source $($snaprig include --snapify-io) -lpthread";
        let compiled = scene.shell(script);
        assert!(compiled.status.success(), "{}", said(&compiled));
        fs::create_dir(scene.shared()).expect("made");
        scene
    }

    fn shared(&self) -> std::path::PathBuf {
        let directory = self.directory.path().canonicalize();
        directory.expect("it is there").join("shared")
    }

    fn shell(&self, script: &str) -> Output {
        Command::new("sh")
            .args(["-c", script])
            .env("snaprig", SNAPRIG)
            .env("source", SOURCE)
            .env("io", self.directory.path().join("io"))
            .env("shared", self.shared())
            .output()
            .expect("a shell")
    }

    /// Runs a script for which `on_card` is the program on a card; what that says.
    fn run(&self, platform: &str, script: &str) -> String {
        let output = self.shell(&format!(
            "$snaprig run --platform {platform} --cards 2 --share $shared -- sh -c '
                on_card() {{ $snaprig card exec -- $io \"$@\"; }}
                other_card() {{ $snaprig card exec --node 2 -- $io \"$@\"; }}
                {script}'"
        ));
        assert!(output.status.success(), "{}", said(&output));
        String::from_utf8(output.stdout).expect("UTF-8")
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.shared()).expect("it is there");
        let name = |entry: std::io::Result<fs::DirEntry>| {
            let name = entry.expect("an entry").file_name();
            name.into_string().expect("UTF-8")
        };
        let mut names: Vec<_> = entries.map(name).collect();
        names.sort();
        names
    }
}

fn said(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}

/// What the program writes.
fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 7 + at / 4096) as u8).collect()
}

fn check(file: &Path, bytes: usize) {
    let there = fs::read(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    assert!(there == pattern(bytes), "{}", file.display());
}

/// By the host, by other cards, and by their own programs.
fn files_of_cards_are_read_and_written(platform: &str) {
    let scene = Scene::new();
    let script = format!(
        "$io write 1:/tmp/file {BYTES}; $io read 1:/tmp/file; on_card read 1:/tmp/file
        $io many 1:/tmp/many 3000000; $io read 1:/tmp/many11
        $io drop 1:/tmp/dropped 100; $io read 1:/tmp/dropped
        $io write 1:/etc/hosts_own 10; $io read 1:/etc/hosts_own; $io read 1:etc/hosts_own; $io read 1:/tmp
        other_card write 1:/tmp/others {BYTES}; other_card read 1:/tmp/others; $io read 1:/tmp/others
        other_card read 1:/etc/hosts_own; other_card write 1:/etc/others 10
        other_card read 1:/tmp/../etc/hosts_own; other_card read 1:/nowhere/file
        on_card write 2:/tmp/back 5000; $io read 2:/tmp/back
        $io read 3:/tmp/file
        $snaprig card exec -- ls /tmp | grep partial"
    );
    let said = scene.run(platform, &format!("{script} || true"));
    let expected = format!(
        "written: all
read: {BYTES} bytes
read: {BYTES} bytes
many: 0 failed
read: 3000000 bytes
open: No such file or directory
written: all
read: 10 bytes
open: Invalid argument
open: Invalid argument
written: all
read: {BYTES} bytes
read: {BYTES} bytes
open: Permission denied
open: Permission denied
open: Invalid argument
open: No such file or directory
written: all
read: 5000 bytes
open: No such device or address
"
    );
    assert_eq!(said, expected);
}

fn files_of_the_host_are_read_and_written(platform: &str) {
    let scene = Scene::new();
    let shared = scene.shared();
    fs::write(shared.join("hosts"), pattern(5000)).expect("written");
    let script = format!(
        "on_card read $shared/hosts
        on_card write $shared/file {BYTES} && on_card read $shared/file
        on_card write $shared/hosts 0 && on_card read $shared/hosts
        on_card many $shared/many 3000000"
    );
    let said = scene.run(platform, &script);
    let expected = format!(
        "read: 5000 bytes\nwritten: all\nread: {BYTES} bytes\nwritten: all\nread: 0 bytes\nmany: 0 failed\n"
    );
    assert_eq!(said, expected);
    check(&shared.join("file"), BYTES);
    for number in 0..12 {
        check(&shared.join(format!("many{number}")), 3_000_000);
    }
    assert_eq!(scene.names().len(), 14, "{:?}", scene.names());
}

fn what_goes_wrong_is_told_and_leaves_nothing(platform: &str) {
    let scene = Scene::new();
    let shared = scene.shared();
    fs::write(shared.join("file"), pattern(BYTES)).expect("written");
    std::os::unix::fs::symlink("/etc", shared.join("link")).expect("made");
    let script = "on_card read /etc/passwd
        on_card read $shared/none
        on_card write $shared/none/file 1
        on_card write $shared/../file 1
        on_card read $shared/link/passwd
        on_card drop $shared/file 5000000
        on_card die $shared/file 5000000
        on_card lonely $shared/file 5000000";
    let said = scene.run(platform, script);
    let lines: Vec<_> = said.lines().collect();
    let expected = [
        "open: Permission denied",
        "open: No such file or directory",
        "open: No such file or directory",
        "open: Invalid argument",
        "open: Too many levels of symbolic links",
        "read: Connection reset by peer",
        "written: Broken pipe",
        "finish: Connection reset by peer",
    ];
    assert_eq!(lines, expected);
    // An earlier file is as it was, and nothing half made is beside it.
    check(&shared.join("file"), BYTES);
    assert_eq!(scene.names(), ["file", "link"]);
}

#[test]
#[cfg_attr(
    not(has_user_namespaces),
    ignore = "unshare(1) makes no user namespace in which a disk can be mounted"
)]
fn a_full_disk_is_told_at_the_end_of_the_file() {
    let scene = Scene::new();
    // The shell goes on in a namespace of its own.
    let script = "exec unshare --map-root-user --mount sh -ec '
        mount -t tmpfs -o size=4m none $shared
        $snaprig run --share $shared -- sh -c \"
            \\$snaprig card exec -- \\$io write \\$shared/file 1000000
            \\$snaprig card exec -- \\$io write \\$shared/file 9000000\" || true
        ls $shared; stat -c %s $shared/file'";
    let output = scene.shell(script);
    assert!(output.status.success(), "{}", said(&output));
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let expected = "written: all\nfinish: No space left on device\nfile\n1000000\n";
    assert_eq!(text, expected);
}
