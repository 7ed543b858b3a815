//! `snaprig ckpt`, as it is used: programs that were built by others are launched, checkpointed in mid-run, killed,
//! restarted from what is left, and end as if nothing had been.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    os::unix::{
        fs::PermissionsExt,
        process::{CommandExt, ExitStatusExt},
    },
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use snaprig_supervisor::Request;
use tempfile::TempDir;

/// How long a restart may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Who is nobody in particular.
const ORDINARY: u32 = 65534;

/// A directory for checkpoints, and whose programs they are of.
struct Place {
    dir: TempDir,
    snaprig: PathBuf,
    user: Option<u32>,
}

/// A program under a supervisor: what it says is read line by line, and it goes on when it is told to.
struct Job {
    supervisor: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Drop for Job {
    fn drop(&mut self) {
        // It may have ended; its program ends with its input.
        let _ = self.supervisor.kill();
        let _ = self.supervisor.wait();
    }
}

impl Place {
    fn new(user: Option<u32>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
        // Where an ordinary user reaches it.
        let snaprig = dir.path().join("snaprig");
        // By a process of its own: a child that another test forks meanwhile would hold it open for writing, and what
        // is open for writing cannot be executed.
        let mut cp = Command::new("cp");
        cp.arg(env!("CARGO_BIN_EXE_snaprig-under-test"))
            .arg(&snaprig);
        assert!(cp.status().unwrap().success());
        Self { dir, snaprig, user }
    }

    fn checkpoints(&self) -> PathBuf {
        self.dir.path().join("checkpoints")
    }

    fn ckpt(&self, command: &str) -> Command {
        let mut ckpt = Command::new(&self.snaprig);
        ckpt.args(["ckpt", command]).current_dir(self.dir.path());
        if let Some(user) = self.user {
            ckpt.uid(user).gid(user);
        }
        ckpt
    }

    fn start(mut command: Command) -> Job {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut supervisor = command.spawn().unwrap();
        Job {
            input: supervisor.stdin.take().unwrap(),
            output: BufReader::new(supervisor.stdout.take().unwrap()),
            supervisor,
        }
    }

    fn launch(&self, program: &[&str]) -> Job {
        let mut command = self.ckpt("launch");
        command
            .arg("--dir")
            .arg(self.checkpoints())
            .arg("--")
            .args(program);
        Self::start(command)
    }

    fn restart(&self) -> Job {
        let mut command = self.ckpt("restart");
        command.arg(self.checkpoints());
        Self::start(command)
    }

    fn wait_for_supervisor(&self) {
        let begun = Instant::now();
        while snaprig_supervisor::ask(&self.checkpoints(), Request::Status).is_err() {
            assert!(begun.elapsed() < PATIENCE, "no supervisor answers");
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn dump(&self, how: &str) -> Output {
        let mut command = self.ckpt("dump");
        command.arg("--dir").arg(self.checkpoints()).arg(how);
        command.output().unwrap()
    }

    fn image(&self, round: u32) -> PathBuf {
        self.checkpoints().join(format!("{round:04}/tree.img"))
    }
}

impl Job {
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn go_on(&mut self) {
        self.input.write_all(b"go on\n").unwrap();
    }

    /// Its exit status.
    fn ends(mut self) -> i32 {
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "");
        self.supervisor.wait().unwrap().code().unwrap()
    }
}

fn succeeded(output: &Output) {
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

fn a_shell_goes_on(user: Option<u32>) {
    let place = Place::new(user);
    let mut job = place.launch(&["bash", "-c", PIPES]);
    let first = job.line();
    assert!(first.starts_with("turn 1 of "), "{first}");
    job.go_on();
    let second = job.line();
    // It runs on after one, and ends with the other.
    succeeded(&place.dump("--leave-running"));
    job.go_on();
    let third = job.line();
    succeeded(&place.dump("--kill"));
    assert_eq!(job.ends(), 128 + libc::SIGKILL);
    let numbers = |line: &str| line.split_once(" of ").unwrap().1.to_owned();
    assert_eq!(
        [numbers(&second), numbers(&third)],
        [numbers(&first), numbers(&first)]
    );
    // The same checkpoint twice: what came after it was never.
    for _ in 0..2 {
        let mut job = place.restart();
        job.go_on();
        assert_eq!(numbers(&job.line()), numbers(&first));
        job.go_on();
        assert_eq!(job.line(), "sum 100 through pipes");
        assert_eq!(job.ends(), 7);
    }
}

#[test]
fn who_was_started_by_somebody_else_goes_on_where_it_was() {
    let place = Place::new(None);
    let mut command = Command::new("bash");
    command.args(["-c", PIPES]);
    let mut shell = Place::start(command);
    let pid = shell.supervisor.id().to_string();
    let dump = |how: &str| {
        let mut command = place.ckpt("dump");
        command.arg("--dir").arg(place.checkpoints());
        succeeded(&command.args(["--pid", &pid, how]).output().unwrap());
    };
    let first = shell.line();
    shell.go_on();
    assert!(shell.line().starts_with("turn 2 of "));
    dump("--leave-running");
    shell.go_on();
    assert!(shell.line().starts_with("turn 3 of "));
    dump("--kill");
    assert_eq!(
        shell.supervisor.wait().unwrap().signal(),
        Some(libc::SIGKILL)
    );
    let mut job = place.restart();
    // From here on it has a supervisor.
    place.wait_for_supervisor();
    job.go_on();
    assert_eq!(job.line(), first.replace("turn 1", "turn 4"));
    succeeded(&place.dump("--leave-running"));
    job.go_on();
    assert_eq!(job.line(), "sum 100 through pipes");
    assert_eq!(job.ends(), 7);
}

#[test]
fn who_has_lost_its_parent_does_too() {
    let place = Place::new(None);
    let program = "import os, time\n\
        while not os.path.exists('stop'): time.sleep(0.01)\n\
        open('result', 'w').write(str(os.getpid()))";
    let script = r#"/usr/bin/python3 -c "$0" < /dev/null > /dev/null 2>&1 & echo $!"#;
    let mut shell = Command::new("sh");
    shell
        .args(["-c", script, program])
        .current_dir(place.dir.path());
    let pid = String::from_utf8(shell.output().unwrap().stdout).unwrap();
    let pid = pid.trim();
    let mut dump = place.ckpt("dump");
    dump.arg("--dir").arg(place.checkpoints());
    succeeded(&dump.args(["--pid", pid, "--kill"]).output().unwrap());
    let job = place.restart();
    fs::write(place.dir.path().join("stop"), "").unwrap();
    assert_eq!(job.ends(), 0);
    let result = fs::read_to_string(place.dir.path().join("result"));
    assert_eq!(result.unwrap(), pid);
}

#[test]
fn who_is_checkpointed_does_not_do_it_itself() {
    let place = Place::new(None);
    // A list of commands: the shell stays.
    let script = format!(
        "{} ckpt dump --dir {} --pid $$; exit $?",
        place.snaprig.display(),
        place.checkpoints().display()
    );
    let output = Command::new("bash").args(["-c", &script]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && said.contains("do so from elsewhere"),
        "{said}"
    );
}

/// A shell with a variable, and a child that adds up what goes through pipes. It says what it has and waits for a line,
/// again and again.
const PIPES: &str = r#"
coproc add { while read -r n; do s=$((s + n)); done; echo "$s"; }
exec {from}<&${add[0]}
for turn in 1 2 3 4; do
    echo $((turn * 10)) >&${add[1]}
    echo "turn $turn of $$"
    read -r _
done
exec {add[1]}>&-
read -r sum <&$from
echo "sum $sum through pipes"
exit 7
"#;

#[test]
fn a_shell_with_pipes_goes_on_where_it_was() {
    a_shell_goes_on(None);
}

#[test]
fn an_ordinary_users_shell_does_too() {
    a_shell_goes_on(Some(ORDINARY));
}

/// Threads that count, a subprocess that answers, numbers that it has seen.
const PYTHON: &str = r#"
import os, subprocess, sys, threading
turn = threading.Barrier(4)
counts = [0] * 3
def count(i):
    for _ in range(5):
        for _ in range(20000): counts[i] += 1
        turn.wait()
threads = [threading.Thread(target=count, args=(i,)) for i in range(3)]
for thread in threads: thread.start()
child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
me, tid = os.getpid(), threading.get_native_id()
for i in range(5):
    print("turn", i, flush=True)
    sys.stdin.readline()
    child.stdin.write(f"{i}\n"); child.stdin.flush()
    assert child.stdout.readline() == f"{i}\n"
    turn.wait()
for thread in threads: thread.join()
child.stdin.close()
assert (me, tid) == (os.getpid(), threading.get_native_id()) and child.wait() == 0
print(counts, flush=True)
"#;

#[test]
fn python_with_threads_and_a_subprocess_goes_on_again_and_again() {
    let place = Place::new(None);
    let mut job = place.launch(&["/usr/bin/python3", "-c", PYTHON]);
    for turn in 0..5 {
        assert_eq!(job.line(), format!("turn {turn}"));
        succeeded(&place.dump("--kill"));
        assert_eq!(job.ends(), 128 + libc::SIGKILL);
        job = place.restart();
        job.go_on();
    }
    assert_eq!(job.line(), "[100000, 100000, 100000]");
    assert_eq!(job.ends(), 0);
}

#[test]
fn a_damaged_image_is_named_and_an_older_one_is_used_for_it() {
    let place = Place::new(None);
    let mut job = place.launch(&["sh", "-c", "echo one; read -r _; echo two; read -r _"]);
    assert_eq!(job.line(), "one");
    succeeded(&place.dump("--leave-running"));
    job.go_on();
    assert_eq!(job.line(), "two");
    succeeded(&place.dump("--kill"));
    assert_eq!(job.ends(), 128 + libc::SIGKILL);
    cut_in_half(&place.image(2));
    let mut job = place.restart();
    job.go_on();
    assert_eq!(job.line(), "two");
    job.go_on();
    assert_eq!(job.ends(), 0);
    flip_a_bit(&place.image(1));
    let restarted = place
        .ckpt("restart")
        .arg(place.checkpoints())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&restarted.stderr);
    assert!(!restarted.status.success() && restarted.stdout.is_empty());
    assert!(said.contains("0001/tree.img"), "{said}");
}

fn cut_in_half(image: &Path) {
    let file = fs::File::options().write(true).open(image).unwrap();
    file.set_len(file.metadata().unwrap().len() / 2).unwrap();
}

fn flip_a_bit(image: &Path) {
    let mut bytes = fs::read(image).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    fs::write(image, bytes).unwrap();
}

#[test]
fn what_cannot_be_saved_is_refused_and_runs_on() {
    let place = Place::new(None);
    // One end of a connection whose other end is this test.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let script = format!("exec 5<>/dev/tcp/127.0.0.1/{port}; echo connected; read -r _; echo on");
    let mut job = place.launch(&["bash", "-c", &script]);
    assert_eq!(job.line(), "connected");
    let dumped = place.dump("--kill");
    let said = String::from_utf8_lossy(&dumped.stderr);
    assert!(
        !dumped.status.success() && said.contains("socket"),
        "{said}"
    );
    job.go_on();
    assert_eq!(job.line(), "on");
    assert_eq!(job.ends(), 0);
}

#[test]
fn a_tokio_server_and_its_clients_lose_nothing() {
    let place = Place::new(None);
    let mut job = place.launch(&[env!("CARGO_BIN_EXE_tokio-echo")]);
    assert_eq!(job.line(), "begun");
    for _ in 0..rounds() {
        succeeded(&place.dump("--leave-running"));
        succeeded(&place.dump("--kill"));
        assert_eq!(job.ends(), 128 + libc::SIGKILL);
        job = place.restart();
        place.wait_for_supervisor();
    }
    job.go_on();
    assert_eq!(job.line(), "right");
    assert_eq!(job.ends(), 0);
}

/// As docs/src/plugins.md says it, where nothing else tells the loader of the library.
#[test]
fn a_program_is_compiled_with_plugins_and_launched() {
    let place = Place::new(None);
    let compile = r#"gcc "$1" $("$2" include --ckpt) -lpthread -o ring"#;
    let ring = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../host-stack/libckpt-plugin/examples/ring.c"
    );
    let mut sh = Command::new("sh");
    sh.args(["-c", compile, "sh", ring]).arg(&place.snaprig);
    // The copy in this place has its libraries here, too.
    sh.env("XDG_CACHE_HOME", place.dir.path().join("cache"));
    sh.current_dir(place.dir.path());
    assert!(sh.status().unwrap().success());
    let there = place.dir.path().join("there");
    fs::create_dir(&there).unwrap();
    let mut job = place.launch(&["./ring", there.to_str().unwrap(), "both"]);
    assert_eq!([job.line(), job.line()], ["ready", "ready"]);
    succeeded(&place.dump("--kill"));
    assert_eq!(job.ends(), 128 + libc::SIGKILL);
    let mut job = place.restart();
    fs::write(there.join("stop"), "").unwrap();
    assert_eq!([job.line(), job.line()], ["right", "right"]);
    assert_eq!(job.ends(), 0);
}

/// How often; SNAPRIG_CKPT_ROUNDS says otherwise.
fn rounds() -> u64 {
    let rounds = std::env::var("SNAPRIG_CKPT_ROUNDS");
    rounds.map_or(20, |rounds| rounds.parse().unwrap())
}
