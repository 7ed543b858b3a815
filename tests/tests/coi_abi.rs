//! The C interface of COI's source side, as C programs see it: layouts and values of the headers, what
//! every call says without a card and with two, names and versions; that programs that were linked
//! elsewhere start with it; and that Snapify moves the processes of programs that know nothing of it.

mod host;

use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead, BufReader},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::Duration,
};

use host::on_each_platform;
use snaprig_rig::{Rig, sdk::Sdk};
use snaprig_snapify::control::{Client, Command as Snapify};

/// Where the headers are, from this package.
const INCLUDE: &str = "../guest-agent/include";
/// What programs are linked with.
const NAME: &str = "libcoi_host.so.0";

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// A directory of a test's own, with the library under the names that programs ask for.
struct Scratch(tempfile::TempDir);

impl Scratch {
    fn new() -> Self {
        let scratch = Self(tempfile::tempdir().expect("a directory"));
        for name in ["libcoi_host.so", NAME] {
            symlink(library(), scratch.path("lib").join(name)).expect("a link");
        }
        scratch
    }

    /// A place in it, in a directory that is there.
    fn path(&self, name: &str) -> PathBuf {
        let path = self.0.path().join(name);
        fs::create_dir_all(if name == "lib" { &path } else { self.0.path() }).expect("a directory");
        path
    }

    /// Compiles a program of `tests/coi`.
    fn compile(&self, name: &str, flags: &[&str]) -> PathBuf {
        let program = self.path(name);
        let mut gcc = Command::new("gcc");
        gcc.args(["-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror"])
            .arg("-I")
            .arg(here(INCLUDE))
            .arg(here("coi").join(name).with_extension("c"))
            .arg("-o")
            .arg(&program)
            .arg("-L")
            .arg(self.path("lib"))
            .args(["-lcoi_host", "-lpthread"])
            .args(flags);
        succeeds(&mut gcc);
        program
    }

    /// A program's command, with our library.
    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.env("LD_LIBRARY_PATH", self.path("lib"));
        command.env_remove("SNAPRIG_RIG");
        command
    }
}

/// The library, as cargo leaves it beside this test.
fn library() -> PathBuf {
    let test = std::env::current_exe().expect("it runs");
    let library = test.with_file_name("libsnaprig_libcoi.so");
    assert!(library.is_file(), "no {}", library.display());
    library
}

/// Runs a command that must end well; what it says.
fn succeeds(command: &mut Command) -> String {
    let output = command.output().expect("it starts");
    let Output {
        status,
        stdout,
        stderr,
    } = &output;
    let (stdout, stderr) = (
        String::from_utf8_lossy(stdout).into_owned(),
        String::from_utf8_lossy(stderr),
    );
    assert!(status.success(), "{command:?}: {status}\n{stdout}{stderr}");
    stdout
}

#[test]
fn layouts_and_values_are_those_of_the_public_headers() {
    let scratch = Scratch::new();
    for standard in ["-std=gnu11", "-std=gnu17"] {
        let program = scratch.compile("layouts", &[standard, "-DCOI_LIBRARY_VERSION=1"]);
        assert_eq!(succeeds(&mut scratch.command(&program)), "right\n");
    }
}

#[test]
fn the_headers_are_c_of_old_and_cpp_too() {
    let scratch = Scratch::new();
    let source = scratch.path("all.c");
    let headers = [
        "COIBuffer",
        "COIEngine",
        "COIEvent",
        "COIPipeline",
        "COIProcess",
    ]
    .map(|name| format!("#include <intel-coi/source/{name}_source.h>\n"));
    let common = [
        "Engine", "Event", "Macros", "Perf", "Result", "SysInfo", "Types",
    ]
    .map(|name| format!("#include <intel-coi/common/COI{name}_common.h>\n"));
    let text = format!(
        "{}{}int main(void) {{ return 0; }}\n",
        headers.concat(),
        common.concat()
    );
    fs::write(&source, text).expect("it can be written");
    // As packages install them: /usr/include/intel-coi.
    symlink(here(INCLUDE), scratch.path("intel-coi")).expect("a link");
    for (compiler, language) in [("gcc", "-std=gnu89"), ("gcc", "-std=c17"), ("g++", "-xc++")] {
        for version in [1, 2] {
            let mut compile = Command::new(compiler);
            compile
                .args([
                    language,
                    "-Wall",
                    "-Wextra",
                    "-Werror",
                    "-c",
                    "-o",
                    "/dev/null",
                ])
                .arg(format!("-DCOI_LIBRARY_VERSION={version}"))
                .arg("-I")
                .arg(scratch.0.path())
                .arg(&source);
            succeeds(&mut compile);
        }
    }
}

#[test]
fn every_call_has_its_error_without_a_card() {
    let scratch = Scratch::new();
    let program = scratch.compile("cardless", &[]);
    assert_eq!(succeeds(&mut scratch.command(&program)), "0 failures\n");
    let mut traced = scratch.command(&program);
    traced.env("SNAPRIG_COI_TRACE", "1");
    let lines = traced.output().expect("it starts").stderr;
    let lines = String::from_utf8_lossy(&lines);
    for expected in [
        "libcoi: no rig: SNAPRIG_RIG is not set; `snaprig run -- PROGRAM` starts one\n",
        "coi: COIEngineGetCount(kind=2, count_out=0x0) = COI_INVALID_POINTER ",
        "coi: COIBufferUnmap(map=NULL, dependency_count=0, ",
        "name=\"/none\", argument_count=0, arguments=NULL, inherit_environment=0",
        ", count=1, names=[\"f\"], functions_out=",
        ", file=\"none.so\", name=NULL, search_path=NULL, ",
    ] {
        assert!(lines.contains(expected), "no line {expected:?} in\n{lines}");
    }
}

/// `NAME VERSION`, or `NAME VERSION (default)`, of what a library exports for programs.
fn exports(library: &Path) -> BTreeSet<String> {
    let table = succeeds(Command::new("objdump").arg("-T").arg(library));
    let public = |line: &&str| line.contains(".text") && !line.contains("SNAPRIG_PRIVATE");
    let lines = table.lines().filter(public);
    lines
        .filter_map(|line| {
            let mut words = line.split_whitespace().rev();
            let (name, version) = (words.next()?, words.next()?);
            Some(match version.strip_prefix('(') {
                Some(old) => format!("{name} {}", old.trim_end_matches(')')),
                None => format!("{name} {version} (default)"),
            })
        })
        .collect()
}

#[test]
fn names_and_versions_are_those_of_the_real_library() {
    let golden = fs::read_to_string(here("coi/exports.txt")).expect("it is there");
    let golden: BTreeSet<String> = golden.lines().map(str::to_owned).collect();
    assert_eq!(exports(&library()), golden);
    let dynamic = succeeds(Command::new("readelf").arg("-d").arg(library()));
    assert!(
        dynamic.contains(&format!("Library soname: [{NAME}]")),
        "{dynamic}"
    );
}

/// A library with the same names and versions, and nothing in it, as a program's builder may have had
/// another.
fn stub(scratch: &Scratch) -> PathBuf {
    let (source, map) = (scratch.path("stub.c"), scratch.path("stub.map"));
    let mut text = String::new();
    for export in exports(&library()) {
        let mut words = export.split(' ');
        let (name, version) = (
            words.next().expect("a name"),
            words.next().expect("a version"),
        );
        let (suffix, at) = match words.next() {
            Some(_) => ("1", "@@"),
            None => ("2", "@"),
        };
        text += &format!("int {name}_{suffix}(void) {{ return 77; }}\n");
        text += &format!("__asm__(\".symver {name}_{suffix}, {name}{at}{version}\");\n");
    }
    fs::write(&source, text).expect("it can be written");
    fs::write(&map, "COI_1.0 { };\nCOI_2.0 { } COI_1.0;\n").expect("it can be written");
    let directory = scratch.0.path().join("stub");
    fs::create_dir(&directory).expect("a directory");
    let mut gcc = Command::new("gcc");
    gcc.args(["-shared", "-fPIC", "-o"])
        .arg(directory.join(NAME))
        .arg(&source)
        .arg(format!(
            "-Wl,-soname,{NAME},--version-script={}",
            map.display()
        ));
    succeeds(&mut gcc);
    symlink(NAME, directory.join("libcoi_host.so")).expect("a link");
    directory
}

#[test]
fn a_program_that_was_linked_elsewhere_starts_with_ours() {
    let scratch = Scratch::new();
    let directory = stub(&scratch);
    for (version, expected) in [(1, "COI_1.0"), (2, "COI_2.0")] {
        let name = format!("versions_{version}");
        let program = scratch.path(&name);
        let mut gcc = Command::new("gcc");
        gcc.arg(format!("-DCOI_LIBRARY_VERSION={version}"))
            .arg("-I")
            .arg(here(INCLUDE))
            .arg(here("coi/versions.c"))
            .arg("-o")
            .arg(&program)
            .arg("-L")
            .arg(&directory)
            .arg("-lcoi_host");
        succeeds(&mut gcc);
        // It was linked with the stub, ...
        let mut with_stub = Command::new(&program);
        with_stub.env("LD_LIBRARY_PATH", &directory);
        assert_eq!(
            with_stub.output().expect("it starts").status.code(),
            Some(77)
        );
        // ... asks for the version that it was compiled for, ...
        let wanted = succeeds(Command::new("objdump").arg("-T").arg(&program));
        let wanted = wanted
            .lines()
            .find(|line| line.contains("LoadLibraryFromFile"));
        assert!(
            wanted.is_some_and(|line| line.contains(expected)),
            "{wanted:?}"
        );
        // ... and gets on with ours, with nothing left unresolved.
        let mut with_ours = scratch.command(&program);
        with_ours.env("LD_BIND_NOW", "1");
        assert_eq!(succeeds(&mut with_ours), "COI_INVALID_HANDLE\n");
    }
}

/// The `snaprig` program.
const SNAPRIG: &str = env!("CARGO_BIN_EXE_snaprig-under-test");
/// No command of Snapify's takes longer, however busy the machine is.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The sink of the programs that have cards.
fn sink(scratch: &Scratch) -> PathBuf {
    let sink = scratch.path("sink");
    let mut build = Command::new(SNAPRIG);
    build
        .arg("build-sink")
        .arg(here("coi/carded_sink.c"))
        .args(["-O1", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&sink);
    succeeds(&mut build);
    sink
}

fn every_call_does_what_it_should_on_two_cards(platform: &str) {
    let scratch = Scratch::new();
    let (program, sink) = (scratch.compile("carded", &[]), sink(&scratch));
    let library = scratch.path("carded_lib.so");
    let mut gcc = Command::new("gcc");
    gcc.args(["-shared", "-fPIC", "-o"])
        .arg(&library)
        .arg(here("coi/carded_lib.c"));
    succeeds(&mut gcc);
    let mut run = Command::new(SNAPRIG);
    run.args(["run", "--cards", "2", "--platform", platform, "--"])
        .args([&program, &sink, &library]);
    let said = succeeds(&mut run);
    assert!(said.ends_with("0 failures\n"), "{platform}: {said}");
    // What SINK_LD_TRACE_LOADED_OBJECTS asked for.
    assert!(said.contains("libcoi_device.so.0\n"), "{platform}: {said}");
}

#[test]
fn the_process_of_a_program_that_knows_nothing_of_it_is_moved() {
    let scratch = Scratch::new();
    let (program, sink) = (scratch.compile("moved", &[]), sink(&scratch));
    let sdk = Sdk::of(Path::new(SNAPRIG)).expect("libraries");
    let rig = Rig::builder().exe(SNAPRIG).cards(2).start();
    let rig = rig.expect("a rig");
    let mut child = Command::new(&program)
        .arg(&sink)
        .envs(sdk.environment(rig.dir()).expect("an environment"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut said = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut line = String::new();
    said.read_line(&mut line).expect("it says something");
    assert_eq!(line, "ready\n");
    let mut client = Client::connect(rig.dir(), child.id()).expect("it can be controlled");
    for (card, name) in [(2, "there"), (1, "back")] {
        let migrate = Snapify::Migrate(scratch.path(name), card);
        let report = client.run(&migrate, TIMEOUT).expect("it is moved");
        assert!(report.bytes > 0);
    }
    drop(child.stdin.take());
    let mut rest = String::new();
    said.read_line(&mut rest).expect("it ends");
    assert_eq!(rest, "0 failures\n");
    assert!(child.wait().expect("it ended").success());
}

on_each_platform! {
    every_call_does_what_it_should_on_two_cards
}
