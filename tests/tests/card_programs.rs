//! Unmodified Linux programs on a card: on every platform they say what they say on the host.
//!
//! Their sources are in `fixtures/yardsticks`.

mod host;

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
};

use host::on_each_platform;
use tempfile::TempDir;

const SNAPRIG: &str = env!("CARGO_BIN_EXE_snaprig-under-test");
const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/yardsticks");
/// The environment of every program. Nothing else of ours may show in its output.
const ENVIRONMENT: [(&str, &str); 4] = [
    ("PATH", "/usr/local/bin:/usr/bin:/bin"),
    ("HOME", "/"),
    ("LANG", "C"),
    ("OMP_NUM_THREADS", "3"),
];

fn run(program: &str, arguments: &[&str]) -> Output {
    Command::new(program)
        .args(arguments)
        .env_clear()
        .envs(ENVIRONMENT)
        .current_dir("/")
        .stdin(std::process::Stdio::null())
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error}; ci/setup installs what is needed"))
}

fn card_run(options: &[&str], command: &[&str]) -> Output {
    let arguments = [&["card", "run"], options, &["--"], command].concat();
    run(SNAPRIG, &arguments)
}

/// Runs a command on the host and on cards that have these `files`; the host's output.
fn same(platform: &str, command: &[&str], files: &[&str]) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let host = run(command[0], &command[1..]);
    let expected = text(&host.stdout);
    assert!(host.status.success(), "{command:?}: {}", text(&host.stderr));
    let mut options = vec!["--platform", platform];
    options.extend(files.iter().flat_map(|files| ["--files", files]));
    let card = card_run(&options, command);
    let errors = text(&card.stderr);
    assert_eq!(
        text(&card.stdout),
        expected,
        "{command:?} {platform}: {errors}"
    );
    assert_eq!(
        card.status.code(),
        Some(0),
        "{command:?} {platform}: {errors}"
    );

    expected
}

/// A directory whose path is the same on the host and on a card.
fn directory() -> TempDir {
    tempfile::Builder::new()
        .prefix("yardsticks-")
        .tempdir()
        .expect("a directory")
}

fn utf8(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

fn a_dynamic_program_brings_its_libraries(platform: &str) {
    let dir = directory();
    for (name, text) in [("b", "two\n"), ("a", "one\n"), ("sub/c", "three\n")] {
        let path = dir.path().join(name);
        std::fs::create_dir_all(path.parent().expect("it has one")).expect("made");
        std::fs::write(path, text).expect("written");
    }
    std::os::unix::fs::symlink("sub/c", dir.path().join("link")).expect("made");
    let path = utf8(dir.path());
    let listed = same(platform, &["/bin/ls", "-R", path], &[path]);
    assert!(listed.contains("link"));
    same(platform, &["/bin/cat", &format!("{path}/link")], &[path]);
}

#[test]
fn programs_without_a_directory_are_those_of_path() {
    let output = card_run(&[], &["echo", "from PATH"]);
    assert_eq!(output.stdout, b"from PATH\n");
    let missing = card_run(&[], &["no-such-program"]);
    let errors = String::from_utf8_lossy(&missing.stderr);
    assert_eq!(errors, "error: no `no-such-program` on PATH\n");
    let shell = "$snaprig card exec -- echo from PATH, too";
    let output = Command::new(SNAPRIG)
        .args(["run", "--", "sh", "-c", shell])
        .env("snaprig", SNAPRIG)
        .output();
    assert_eq!(output.expect("it starts").stdout, b"from PATH, too\n");
}

#[test]
fn files_come_from_a_tar_image_to_where_they_are_wanted() {
    let dir = directory();
    std::fs::write(dir.path().join("inside"), "from an image\n").expect("written");
    let image = dir.path().join("image.tar");
    let (image, path) = (utf8(&image), utf8(dir.path()));
    assert!(
        run("/bin/tar", &["-cf", image, "-C", path, "inside"])
            .status
            .success()
    );
    for (files, path) in [
        (image.to_owned(), "/inside"),
        (format!("{image}:/opt/data"), "/opt/data/inside"),
    ] {
        let output = card_run(&["--files", &files], &["/bin/cat", path]);
        assert_eq!(output.stdout, b"from an image\n");
    }
    let missing = card_run(&["--files", "/nonexistent.tar"], &["/bin/true"]);
    assert!(!missing.status.success());
    assert!(String::from_utf8_lossy(&missing.stderr).contains("/nonexistent.tar"));
}

/// Compiles a yardstick: with `arguments`, into `dir`.
fn compile(compiler: &str, source: &str, arguments: &[&str], dir: &TempDir) -> PathBuf {
    let program = dir.path().join("program");
    let output = Command::new(compiler)
        .arg(Path::new(SOURCES).join(source))
        .args(arguments)
        .arg("-o")
        .arg(&program)
        .output()
        .unwrap_or_else(|error| panic!("{compiler}: {error}; ci/setup installs what is needed"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{compiler} {source}: {errors}");
    program
}

/// Runs a yardstick that is linked with shared libraries only, and one that is not.
fn dynamic_and_static(
    platform: &str,
    compiler: &str,
    source: &str,
    arguments: &[&str],
    linked: &str,
) {
    for link in ["-pie", linked] {
        let dir = directory();
        let program = compile(compiler, source, &[arguments, &[link]].concat(), &dir);
        same(platform, &[utf8(&program)], &[]);
    }
}

const C: [&str; 4] = ["-O1", "-Wall", "-Wextra", "-Werror"];

fn a_shell_script_with_everything(platform: &str) {
    let script = format!("{SOURCES}/shell.sh");
    let busybox = "/bin/busybox";
    let said = same(platform, &[busybox, "sh", &script, busybox], &[&script]);
    assert!(said.ends_with("end of the script\n"), "{said}");
}

fn bash_and_the_usual_tools_over_files(platform: &str) {
    const TOOLS: &str = "mktemp mkdir chmod touch ln mkfifo chown find sed sort stat cp diff tr cut \
        install mv ls tar grep truncate dd cmp split cat sha256sum seq shuf gzip tail wc xargs \
        flock rmdir realpath readlink rm true echo";
    let script = format!("{SOURCES}/files.sh");
    let tools = TOOLS.split_whitespace();
    let tools: Vec<_> = tools.map(|name| format!("/usr/bin/{name}")).collect();
    let files: Vec<&str> = tools.iter().map(String::as_str).chain([&*script]).collect();
    let said = same(platform, &["/bin/bash", &script], &files);
    assert!(said.ends_with("through\n"), "{said}");
}

fn posix_threads(platform: &str) {
    dynamic_and_static(
        platform,
        "gcc",
        "threads.c",
        &[&C[..], &["-pthread"]].concat(),
        "-static",
    );
}

fn openmp(platform: &str) {
    dynamic_and_static(
        platform,
        "gcc",
        "openmp.c",
        &[&C[..], &["-fopenmp"]].concat(),
        "-static",
    );
}

fn cpp(platform: &str) {
    let arguments = [&["-std=c++17"], &C[..], &["-pthread"]].concat();
    dynamic_and_static(platform, "g++", "runtime.cpp", &arguments, "-static");
}

fn fortran(platform: &str) {
    dynamic_and_static(
        platform,
        "gfortran",
        "files.f90",
        &["-O1", "-Wall", "-fopenmp"],
        "-static-libgfortran",
    );
}

fn rust(platform: &str) {
    for linked in [
        "-Ctarget-feature=-crt-static",
        "-Ctarget-feature=+crt-static",
    ] {
        let dir = directory();
        let arguments = ["--edition=2024", "-Copt-level=1", linked];
        let program = compile("rustc", "std.rs", &arguments, &dir);
        same(platform, &[utf8(&program)], &[]);
    }
}

fn job_control(platform: &str) {
    let dir = directory();
    let script = format!("{SOURCES}/jobs.sh");
    let files: Vec<_> = [
        "/usr/bin/cat",
        "/usr/bin/mkfifo",
        "/usr/bin/rm",
        "/usr/bin/sed",
        "/usr/bin/sleep",
    ]
    .into();
    let files = [&files[..], &["/bin/bash", &script, utf8(dir.path())]].concat();
    same(platform, &["/bin/bash", &script, utf8(dir.path())], &files);
}

/// Runs a script of the yardsticks with Python and its library.
fn python_script(platform: &str, name: &str) {
    let python = "/usr/bin/python3";
    let library = run(
        python,
        &["-c", "import os; print(os.path.dirname(os.__file__))"],
    );
    let library = String::from_utf8(library.stdout).expect("UTF-8");
    let script = format!("{SOURCES}/{name}");
    same(
        platform,
        &[python, &script],
        &[&script, library.trim(), "/bin/echo"],
    );
}

fn python(platform: &str) {
    python_script(platform, "library.py");
}

fn python_sockets(platform: &str) {
    python_script(platform, "network.py");
}

fn python_processes(platform: &str) {
    python_script(platform, "processes.py");
}

fn descriptors_and_rare_calls(platform: &str) {
    dynamic_and_static(platform, "gcc", "descriptors.c", &C, "-static");
}

#[test]
fn the_system_calls_of_a_card_are_listed() {
    let listed = run(SNAPRIG, &["card", "syscalls", "--json"]);
    let calls: Vec<serde_json::Value> = serde_json::from_slice(&listed.stdout).expect("JSON");
    let call = |name: &str| {
        let mut calls = calls.iter();
        calls
            .find(|call| call["name"] == name)
            .expect("it is there")
    };
    assert_eq!(
        (&call("read")["number"], &call("read")["support"]),
        (&0.into(), &"full".into())
    );
    assert!(
        call("socket")["limits"]
            .as_str()
            .is_some_and(|limits| !limits.is_empty())
    );
    assert_eq!(call("reboot")["support"], "absent");
    let table = run(SNAPRIG, &["card", "syscalls"]);
    let table = String::from_utf8(table.stdout).expect("UTF-8");
    assert_eq!(table.lines().count(), calls.len());
}

/// What a program says on a card of two cores with four hardware threads each.
fn of_two_cores(platform: &str, command: &[&str]) -> String {
    let options = "--cores 2 --threads-per-core 4 --platform".split(' ');
    let options: Vec<_> = options.chain([platform]).collect();
    let output = card_run(&options, command);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (printed, errors) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{command:?}: {errors}");
    printed
}

fn processors_have_cores_and_caches(platform: &str) {
    let printed = of_two_cores(platform, &["lscpu"]);
    let lines: Vec<_> = printed
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    for expected in [
        "CPU(s): 8",
        "On-line CPU(s) list: 0-7",
        "Thread(s) per core: 4",
        "Core(s) per socket: 2",
        "Socket(s): 1",
        "L1d cache: 64 KiB (2 instances)",
        "L2 cache: 1 MiB (2 instances)",
    ] {
        assert!(
            lines.iter().any(|line| line == expected),
            "no {expected:?}:\n{printed}"
        );
    }
    assert_eq!(of_two_cores(platform, &["nproc", "--all"]), "8\n");
    let table = of_two_cores(platform, &["lscpu", "--parse=CPU,CORE,SOCKET"]);
    assert!(
        table.ends_with("\n3,0,0\n4,1,0\n5,1,0\n6,1,0\n7,1,0\n"),
        "{table}"
    );
    let one = card_run(
        &["--cores", "1", "--platform", platform],
        &["nproc", "--all"],
    );
    assert_eq!(one.stdout, b"1\n");
}

fn programs_with_hwloc_see_the_card(platform: &str) {
    let tree = of_two_cores(
        platform,
        &["lstopo-no-graphics", "--of", "console", "--no-io"],
    );
    let (cores, threads) = (
        tree.matches("Core L#").count(),
        tree.matches("PU L#").count(),
    );
    assert_eq!((cores, threads), (2, 8), "{tree}");
    assert_eq!(tree.matches("L2 L#").count(), 2, "{tree}");
}

mod hwloc {
    #[test]
    #[cfg_attr(
        not(all(has_kvm, has_program = "lstopo-no-graphics")),
        ignore = "no /dev/kvm, or no hwloc"
    )]
    fn on_kvm() {
        super::programs_with_hwloc_see_the_card("kvm");
    }

    #[test]
    #[cfg_attr(not(has_program = "lstopo-no-graphics"), ignore = "no hwloc")]
    fn on_ptrace() {
        super::programs_with_hwloc_see_the_card("ptrace");
    }
}

on_each_platform! {
    processors_have_cores_and_caches
    a_dynamic_program_brings_its_libraries
    a_shell_script_with_everything
    bash_and_the_usual_tools_over_files
    posix_threads
    openmp
    cpp
    fortran
    rust
    job_control
    python
    python_sockets
    python_processes
    descriptors_and_rare_calls
}
