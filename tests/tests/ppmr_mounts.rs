//! `snaprig ppmr source` and `target`: whoever is killed or stopped in the middle of a file, nobody waits for ever or takes half a
//! file for a whole one; and a checkpoint goes from one machine to another through both mounts.

mod checkpointed;
mod fabric;

use std::{
    fs::{self, File},
    io::{self, Read, Write},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc::Receiver,
    thread,
    time::{Duration, Instant},
};

use checkpointed::lines_of;
use fabric::{SNAPRIG, TIMEOUT, assert_success, wait_until};
use rustix::{
    mount::{UnmountFlags, unmount},
    process::{Pid, Signal, kill_process},
};
use snaprig_peers::Token;

/// What is noticed at once; machines are busy.
const SOON: Duration = Duration::from_secs(20);
/// More than both pools take.
const FILE_BYTES: usize = 64 << 20;
/// What whoever reads or writes hears of a stream that has failed, or of a mount whose process is gone.
const ERRORS: [Option<i32>; 3] = [
    Some(libc::EIO),
    Some(libc::ENOTCONN),
    Some(libc::ECONNABORTED),
];

/// A process that has mounted something.
struct Mount {
    at: PathBuf,
    child: Child,
    lines: Receiver<String>,
}

impl Mount {
    fn start(directory: &Path, role: &str, words: &[&str]) -> Self {
        let at = directory.join(role);
        fs::create_dir(&at).expect("a directory");
        let mut command = Command::new(SNAPRIG);
        command.args(["ppmr", role, "--json", "--mount"]).arg(&at);
        command.arg("--token").arg(directory.join("token"));
        command.args(words).stdout(Stdio::piped());
        let mut child = command.spawn().expect("snaprig starts");
        let lines = lines_of(child.stdout.take().expect("it is piped"));
        Self { at, child, lines }
    }

    fn line(&self) -> serde_json::Value {
        let line = self.lines.recv_timeout(TIMEOUT).expect("it says something");
        serde_json::from_str(&line).expect("JSON")
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it runs");
    }

    fn ended(&mut self) -> ExitStatus {
        let mut status = None;
        wait_until("it ends", || {
            status = self.child.try_wait().expect("it is ours");
            status.is_some()
        });
        status.expect("it has ended")
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        // Mostly it is gone already.
        let _ = unmount(&self.at, UnmountFlags::DETACH);
    }
}

/// A target, and a source for one file. They go before their directory does.
struct Pair {
    source: Mount,
    target: Mount,
    _directory: tempfile::TempDir,
}

impl Pair {
    fn new(target: &[&str]) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path();
        Token::create(&path.join("token")).expect("a token");
        let listen = [&["--listen", "127.0.0.1:0", "--wait", "60"], target].concat();
        let target = Mount::start(path, "target", &listen);
        let address = target.line()["address"].as_str().expect("one").to_owned();
        let source = Mount::start(path, "source", &["--to", &address, "--processes", "1"]);
        source.line();
        Self {
            source,
            target,
            _directory: directory,
        }
    }

    /// A file is on its way: who reads it has the beginning, and who writes it waits.
    fn amid_a_file(&self) -> (File, thread::JoinHandle<io::Result<()>>) {
        let path = self.source.at.join("image");
        let writing = thread::spawn(move || File::create(path)?.write_all(&vec![7; FILE_BYTES]));
        let mut reader = File::open(self.target.at.join("image")).expect("it comes");
        reader.read_exact(&mut vec![0; 1 << 20]).expect("it comes");
        (reader, writing)
    }
}

fn assert_fails(what: &str, result: io::Result<impl std::fmt::Debug>) {
    let errno = result.expect_err(what).raw_os_error();
    assert!(ERRORS.contains(&errno), "{what}: {errno:?}");
}

fn who_is_killed_is_noticed(victim: impl Fn(&mut Pair) -> &mut Mount) {
    let mut pair = Pair::new(&["--streams", "1"]);
    let (mut reader, writing) = pair.amid_a_file();
    victim(&mut pair).signal(Signal::KILL);
    let begun = Instant::now();
    assert_fails("read", reader.read_to_end(&mut Vec::new()));
    assert_fails("write", writing.join().expect("no panic"));
    assert!(begun.elapsed() < SOON);
    // The mount outlives its process, and is cleaned up as any other.
    let killed = victim(&mut pair);
    killed.ended();
    assert_fails("look", fs::read_dir(&killed.at).map(drop));
    drop(reader);
    // As `umount -l`: a process that another test is starting has what is open here until it executes its program.
    unmount(&killed.at, UnmountFlags::DETACH).expect("it is a mount");
    assert_eq!(fs::read_dir(&killed.at).expect("a directory").count(), 0);
    // The other one has noticed, and says so.
    for mount in [&mut pair.source, &mut pair.target] {
        assert_ne!(mount.ended().code(), Some(0));
    }
}

#[test]
#[cfg_attr(not(has_fuse), ignore = "/dev/fuse does not open")]
fn a_source_that_is_killed_is_noticed() {
    who_is_killed_is_noticed(|pair| &mut pair.source);
}

#[test]
#[cfg_attr(not(has_fuse), ignore = "/dev/fuse does not open")]
fn a_target_that_is_killed_is_noticed() {
    who_is_killed_is_noticed(|pair| &mut pair.target);
}

/// A target that is not told how many files there will be ends when it is told to: well, if all that have come were read.
#[test]
#[cfg_attr(not(has_fuse), ignore = "/dev/fuse does not open")]
fn a_target_that_is_stopped_says_what_is_not_whole() {
    let mut pair = Pair::new(&[]);
    let (reader, writing) = pair.amid_a_file();
    pair.target.signal(Signal::TERM);
    let failed = pair.target.line();
    assert_eq!(failed["name"], "image");
    assert_eq!(failed["failure"], "stopped before all of it was read");
    drop(reader);
    assert_eq!(pair.target.ended().code(), Some(1));
    assert_fails("write", writing.join().expect("no panic"));

    let mut pair = Pair::new(&[]);
    fs::write(pair.source.at.join("image"), [7; 100]).expect("it is mounted");
    let read = fs::read(pair.target.at.join("image")).expect("it comes");
    assert_eq!(read, [7; 100]);
    assert!(pair.target.line()["failure"].is_null());
    pair.target.signal(Signal::TERM);
    assert_eq!(pair.target.ended().code(), Some(0));
}

/// A checkpoint of snaprig's own is a directory: it goes through both mounts as one file, and is restarted where it comes out.
#[test]
#[cfg_attr(not(has_fuse), ignore = "/dev/fuse does not open")]
fn a_checkpoint_goes_through_both_mounts() {
    const COUNTS: &str = "import os, sys, time\nn = 0\nprint('ready', flush=True)\n\
        while not os.path.exists(sys.argv[1]):\n    n += 1\n    time.sleep(0.001)\nprint('right' if n else 'wrong', flush=True)";
    let own = tempfile::tempdir().expect("a directory");
    let at = |name: &str| own.path().join(name).display().to_string();
    let [here, there, stop] = ["here", "there", "stop"].map(at);
    let mut launch = Command::new(SNAPRIG);
    launch.args(["ckpt", "launch", "--dir", &here, "--"]);
    launch.args(["/usr/bin/python3", "-c", COUNTS, &stop]);
    let launched = launch.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    let mut launched = launched.expect("snaprig starts");
    let lines = lines_of(launched.stdout.take().expect("it is piped"));
    assert_eq!(lines.recv_timeout(TIMEOUT).expect("it runs"), "ready\n");
    let dumped = Command::new(SNAPRIG)
        .args(["ckpt", "dump", "--dir", &here, "--kill"])
        .output();
    assert_success("ckpt dump", &[dumped.expect("snaprig starts")]);
    launched.wait().expect("it is ours");

    let mut pair = Pair::new(&["--streams", "1"]);
    fs::create_dir(&there).expect("a directory");
    let [from, to] = [&pair.source, &pair.target].map(|mount| mount.at.join("checkpoint.tar"));
    let mut packing = Command::new("tar");
    packing.arg("-cf").arg(&from).args(["-C", &here, "."]);
    let mut packing = packing.spawn().expect("tar");
    let mut unpacking = Command::new("tar");
    let unpacked = unpacking.arg("-xf").arg(&to).args(["-C", &there]).output();
    assert_success("tar", &[unpacked.expect("tar")]);
    assert!(packing.wait().expect("it is ours").success());
    for mount in [&mut pair.source, &mut pair.target] {
        assert!(mount.line()["failure"].is_null());
        assert_eq!(mount.ended().code(), Some(0));
    }
    fs::write(&stop, "").expect("a file");
    let restarted = Command::new(SNAPRIG)
        .args(["ckpt", "restart", &there])
        .output();
    let restarted = restarted.expect("snaprig starts");
    assert_success("ckpt restart", std::slice::from_ref(&restarted));
    assert_eq!(restarted.stdout, b"right\n");
}
