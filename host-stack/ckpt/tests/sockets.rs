//! Sockets of real programs: checkpointed, killed, restarted, twice.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
};

use snaprig_ckpt::{Reply, Request, ask};

/// A driver of the library: an example of this crate, beside the tests.
fn driver() -> Command {
    let tests = std::env::current_exe().expect("this test");
    let target = tests
        .parent()
        .and_then(Path::parent)
        .expect("its target directory");
    Command::new(target.join("examples/ckpt"))
}

fn start(verb: &str, directory: &Path, program: &[&str]) -> Child {
    let mut command = driver();
    command.arg(verb).arg(directory).args(program);
    command.stdout(Stdio::piped()).spawn().expect("the driver")
}

fn dump(directory: &Path, kill: bool) {
    match ask(directory, Request::Dump { kill }).expect("a supervisor") {
        Reply::Dumped(_) => {}
        reply => panic!("{reply:?}"),
    }
}

#[test]
fn sockets_of_all_kinds_are_what_they_were() {
    let room = tempfile::tempdir().expect("a directory");
    let (images, work) = (room.path().join("images"), room.path().join("work"));
    fs::create_dir(&work).expect("a directory");
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/sockets.py");
    let work_name = work.to_str().expect("a name");
    let mut launched = start("launch", &images, &["python3", program, work_name]);
    let mut lines = BufReader::new(launched.stdout.take().expect("a pipe")).lines();
    assert_eq!(lines.next().expect("a line").expect("text"), "ready");
    dump(&images, false);
    dump(&images, true);
    launched.wait().expect("its end");
    fs::write(work.join("go"), "").expect("a file");
    let restarted = start("restart", &images, &[]);
    let output = restarted.wait_with_output().expect("its end");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "all right\n");
}
