//! Snapify for users: its C interface in a program of theirs, and `snaprig snapify`, which takes snapshots of the offload
//! processes of programs that know nothing of it, swaps them out and in, and moves them.

mod host;
mod offload;

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio},
};

use host::on_each_platform;
use offload::{Program, SNAPRIG, text};
use serde_json::Value;
use snaprig_rig::{Rig, sdk::Sdk};

on_each_platform! {
    the_papers_scenarios_in_c
    a_program_that_knows_nothing_of_it_is_swapped_and_moved_at_any_moment
}

fn the_papers_scenarios_in_c(platform: &str) {
    let program = Program::compile_with("--snapify", "snapify/scenarios", "", "");
    let snapshots = tempfile::tempdir().expect("a directory");
    let path = snapshots.path().to_str().expect("UTF-8");
    program.check("golden", &["--cards", "2", "--platform", platform], &[path]);
    // A snapshot is whole, and each process has its own.
    let left = fs::read_dir(path).expect("it is there");
    for snapshot in left {
        let snapshot = snapshot.expect("an entry").path();
        let verified = snaprig(&["snapshot", "verify", snapshot.to_str().expect("UTF-8")]);
        succeeded(&verified);
    }
    assert_eq!(fs::read_dir(path).expect("it is there").count(), 2);
}

fn snaprig(arguments: &[&str]) -> Output {
    let output = Command::new(SNAPRIG).args(arguments).output();
    output.expect("it starts")
}

/// What a command printed that must end well.
fn succeeded(output: &Output) -> String {
    assert!(output.status.success(), "{}", text(output));
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}

/// What a command said that must fail.
fn failed(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{}", text(output));
    assert!(output.stdout.is_empty(), "{}", text(output));
    String::from_utf8(output.stderr.clone()).expect("UTF-8")
}

/// A program that runs on a rig. Killed when it is dropped.
struct Running {
    child: Child,
    said: BufReader<ChildStdout>,
    stdin: Option<ChildStdin>,
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Running {
    fn start(rig: &Rig, program: &Program) -> Self {
        Self::begin(rig, program, Command::new(program.directory().join("host")))
    }

    /// The program, by a command that has everything but the sink.
    fn begin(rig: &Rig, program: &Program, mut command: Command) -> Self {
        let sdk = Sdk::of(Path::new(SNAPRIG)).expect("libraries");
        let mut child = command
            .arg(program.directory().join("sink"))
            .envs(sdk.environment(rig.dir()).expect("an environment"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        Self {
            said: BufReader::new(child.stdout.take().expect("a pipe")),
            stdin: child.stdin.take(),
            child,
        }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.said.read_line(&mut line).expect("it says something");
        line
    }

    /// `snaprig snapify COMMAND PID ...`
    fn snapify(&self, command: &str, more: &[&str]) -> Output {
        let pid = self.child.id().to_string();
        snaprig(&[&["snapify", command, &pid], more].concat())
    }

    /// What `list` says of its offload processes: number, card and state.
    fn list(&self) -> Vec<(u64, u64, String)> {
        let list = succeeded(&self.snapify("list", &["--json"]));
        let rows: Vec<Value> = serde_json::from_str(&list).expect("JSON");
        let number = |row: &Value, name: &str| row[name].as_u64().expect("a number");
        rows.iter()
            .map(|row| {
                assert_eq!(number(row, "host_pid"), u64::from(self.child.id()));
                assert_eq!(row["name"], "sink");
                let state = row["state"].as_str().expect("a state").to_owned();
                (number(row, "process"), number(row, "card"), state)
            })
            .collect()
    }

    /// The rest of what it says, when its input has ended.
    fn end(&mut self) -> String {
        drop(self.stdin.take());
        let mut rest = String::new();
        self.said.read_to_string(&mut rest).expect("it ends");
        assert!(self.child.wait().expect("it ended").success());
        rest
    }
}

fn rig(platform: &str) -> Rig {
    let platform = platform.parse().expect("a platform");
    let builder = Rig::builder().exe(SNAPRIG).cards(2);
    builder.platform(Some(platform)).start().expect("a rig")
}

/// The next numbers of a generator (xorshift), for moments and choices.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

fn a_program_that_knows_nothing_of_it_is_swapped_and_moved_at_any_moment(platform: &str) {
    let program = Program::compile("snapify/outside", "", "");
    let golden = fs::read_to_string(program.sources().join("golden")).expect("a golden output");
    let rig = rig(platform);
    let mut running = Running::start(&rig, &program);
    let mut said = running.line();
    let numbers: Vec<u64> = running.list().iter().map(|one| one.0).collect();
    assert_eq!(numbers.len(), 2);
    let seed = u64::from(std::process::id()) + 1;
    let mut random = Random(seed << 20 | seed);
    for _ in 0..6 {
        for _ in 0..random.below(3) {
            said += &running.line();
        }
        let number = numbers[random.below(2) as usize];
        let one = number.to_string();
        let all = random.below(3) == 0;
        let which: &[&str] = if all { &[] } else { &["--process", &one] };
        let card = 1 + random.below(2);
        let to = card.to_string();
        let packed: &[&str] = [&["--zstd"][..], &["--live"], &[]][random.below(3) as usize];
        match random.below(3) {
            0 => {
                succeeded(&running.snapify("swapout", &[which, packed].concat()));
                assert!(running.list().iter().any(|one| one.2 == "swapped-out"));
                succeeded(&running.snapify("swapin", &[which, &["--card", &to]].concat()));
            }
            1 => drop(succeeded(
                &running.snapify("migrate", &[which, packed, &["--card", &to]].concat()),
            )),
            _ => {
                succeeded(&running.snapify("pause", &[which, packed].concat()));
                for command in ["capture", "resume"] {
                    succeeded(&running.snapify(command, which));
                }
                continue;
            }
        }
        for (process, on, state) in running.list() {
            assert_eq!(state, "running", "seed {seed}");
            assert!(on == card || !(all || process == number), "seed {seed}");
        }
    }
    compressed_snapshots_are_whole(&running);
    // What is in the rig's directory is only what is needed to come back.
    said += &running.end();
    assert_eq!(said, golden, "seed {seed}");
}

/// Compressed and not, of the same processes.
fn compressed_snapshots_are_whole(running: &Running) {
    let snapshots = tempfile::tempdir().expect("a directory");
    let directory = snapshots.path().to_str().expect("UTF-8");
    for (packed, end) in [(&["--zstd"][..], ".img.zst"), (&[], ".img ")] {
        let options = [packed, &["--dir", directory]].concat();
        for (command, options) in [("pause", &options[..]), ("capture", &[]), ("resume", &[])] {
            succeeded(&running.snapify(command, options));
        }
        for snapshot in fs::read_dir(directory).expect("it is there") {
            let snapshot = snapshot.expect("an entry").path();
            let verified = snaprig(&["snapshot", "verify", snapshot.to_str().expect("UTF-8")]);
            let files = succeeded(&verified);
            assert!(files.contains(end), "{files}");
        }
    }
}

#[test]
fn what_cannot_be_done_is_said_and_changes_nothing() {
    let program = Program::compile("snapify/outside", "", "");
    let golden = fs::read_to_string(program.sources().join("golden")).expect("a golden output");
    let rig = Rig::builder().exe(SNAPRIG).cards(2).start().expect("a rig");
    let mut running = Running::start(&rig, &program);
    let mut said = running.line();
    let first = running.list()[0].0.to_string();
    let one = ["--process", &first];
    let says = |output: Output, what: &str| {
        let error = failed(&output);
        assert!(error.contains(what), "no {what:?} in {error:?}");
    };

    says(
        snaprig(&["snapify", "list", "4194304"]),
        "there is no process 4194304",
    );
    let mut other = Command::new("cat");
    let mut other = other
        .env_remove("SNAPRIG_RIG")
        .stdin(Stdio::piped())
        .spawn()
        .expect("cat");
    let pid = other.id().to_string();
    says(snaprig(&["snapify", "list", &pid]), "belongs to no rig");
    let directory = rig.dir().to_str().expect("UTF-8");
    says(
        snaprig(&["snapify", "list", &pid, "--rig", directory]),
        "is no COI program",
    );
    drop(other.stdin.take());
    other.wait().expect("it ends");
    // Nobody's, from where another user looks. This one has to be root, who may become anybody.
    if rustix::process::geteuid().is_root() {
        let mut nobody = Command::new("/proc/self/fd/0");
        let executable = fs::File::open(SNAPRIG).expect("it is there");
        let pid = running.child.id().to_string();
        let nobody = nobody.args(["snapify", "list", &pid]).stdin(executable);
        says(
            nobody.uid(65534).output().expect("it starts"),
            "is another user's",
        );
    }

    let host = running.child.id();
    let child = fs::read_to_string(format!("/proc/{host}/task/{host}/children"));
    let child = child.expect("it is there");
    says(
        snaprig(&["snapify", "list", child.trim()]),
        "is no COI program",
    );

    says(
        running.snapify("resume", &one),
        "there is nothing to resume",
    );
    says(
        running.snapify("swapin", &one),
        "restore comes after pause and capture",
    );
    says(
        running.snapify("capture", &one),
        "capture comes after pause",
    );
    says(
        running.snapify("pause", &["--process", "999999"]),
        "has no offload process 999999",
    );
    says(
        running.snapify("pause", &["--dir", "/nowhere/at/all"]),
        "/nowhere/at/all: No such file",
    );
    says(
        running.snapify("pause", &["--dir", SNAPRIG]),
        "it is no directory",
    );
    says(running.snapify("pause", &["--dir", "/proc"]), "/proc/");
    let far = [&one[..], &["--card", "7"]].concat();
    says(running.snapify("migrate", &far), "the rig has no card 7");
    assert!(running.list().iter().all(|one| one.2 == "running"));

    succeeded(&running.snapify("swapout", &one));
    says(
        running.snapify("swapout", &one),
        "the process is swapped out; swap it in first",
    );
    says(
        running.snapify("resume", &one),
        "the process is swapped out; swap it in first",
    );
    says(running.snapify("swapin", &far), "the rig has no card 7");
    let table = succeeded(&running.snapify("list", &[]));
    assert!(table.lines().all(|line| line.len() <= 80), "{table}");
    assert!(table.contains("swapped-out"), "{table}");
    // All programs of the rig.
    assert_eq!(
        succeeded(&snaprig(&["snapify", "list", "--rig", directory])),
        table
    );
    let back = succeeded(&running.snapify("swapin", &one));
    assert!(back.contains("swapped in, card 1"), "{back}");
    // A number that is none is a mistake of the command line.
    let card = [&one[..], &["--card", "0"]].concat();
    assert_eq!(running.snapify("swapin", &card).status.code(), Some(2));

    said += &running.end();
    assert_eq!(said, golden);
    assert!(failed(&running.snapify("list", &[])).contains("there is no process"));
}

#[test]
fn who_is_swapped_out_is_not_checkpointed_and_comes_back() {
    let program = Program::compile("snapify/outside", "", "");
    let golden = fs::read_to_string(program.sources().join("golden")).expect("a golden output");
    let rig = Rig::builder().exe(SNAPRIG).start().expect("a rig");
    let checkpoints = program.directory().join("checkpoints");
    let checkpoints = checkpoints.to_str().expect("UTF-8");
    let mut launch = Command::new(SNAPRIG);
    launch.args(["ckpt", "launch", "--dir", checkpoints, "--"]);
    launch.arg(program.directory().join("host"));
    let mut running = Running::begin(&rig, &program, launch);
    let mut said = running.line();
    let directory = rig.dir().to_str().expect("UTF-8");
    let list = succeeded(&snaprig(&["snapify", "list", "--json", "--rig", directory]));
    let rows: Vec<Value> = serde_json::from_str(&list).expect("JSON");
    let pid = rows[0]["host_pid"].to_string();
    let dump = || snaprig(&["ckpt", "dump", "--dir", checkpoints]);
    succeeded(&snaprig(&["snapify", "swapout", &pid]));
    let refused = failed(&dump());
    assert!(
        refused.contains("the process is swapped out; swap it in first"),
        "{refused}"
    );
    succeeded(&snaprig(&["snapify", "swapin", &pid]));
    succeeded(&dump());
    said += &running.end();
    assert_eq!(said, golden);
}
