//! Open files of every kind.

mod common;

use std::{
    fs::{self, File},
    io::Write,
    os::fd::AsRawFd,
    process::Command,
};

use common::{Job, program};

fn stays(name: &str) {
    for launch in [Job::launch, Job::launch_as_nobody] {
        launch(&["/usr/bin/python3", &program(name)]).stays_what_it_was("ready\nall right\n");
    }
}

#[test]
fn locks_leases_and_owners() {
    stays("locks.py");
}

#[test]
fn pipes_and_fifos() {
    stays("pipes.py");
}

#[test]
fn files_with_and_without_names() {
    stays("paths.py");
}

/// Flags that open(2) takes with a name, and F_GETFL tells when that is gone.
#[test]
fn flags_of_lost_names() {
    stays("opened.py");
}

#[test]
fn what_is_not_whole() {
    stays("remains.py");
}

/// With a limit that leaves little room for more (RLIMIT_NOFILE), and in no more time than others.
#[test]
fn thousands_of_one_name() {
    stays("many.py");
}

/// As long as it is, what is in it is saved; holes are not.
#[test]
fn a_large_file_without_a_name() {
    let code = "import os, tempfile, time\n\
        file = tempfile.TemporaryFile(dir='.')\n\
        file.write(b'first'); file.seek(1 << 30); file.write(b'last'); file.truncate(3 << 30); file.flush()\n\
        print('ready', flush=True)\n\
        while not os.path.exists('go'): time.sleep(0.01)\n\
        parts = [os.pread(file.fileno(), 5, at) for at in (0, 1 << 29, 1 << 30)]\n\
        right = parts == [b'first', bytes(5), b'last\\0'] and os.fstat(file.fileno()).st_size == 3 << 30\n\
        print('right' if right else parts, flush=True)";
    Job::launch_as_nobody(&["/usr/bin/python3", "-c", code]).stays_what_it_was("ready\nright\n");
}

#[test]
fn watches() {
    stays("watches.py");
}

#[test]
fn terminals_within_a_tree() {
    stays("terminal.py");
}

/// Somebody else has the numbers of its terminals by then: it has a /dev/pts of its own.
#[test]
fn terminals_keep_their_numbers() {
    for launch in [Job::launch, Job::launch_as_nobody] {
        let mut job = launch(&["/usr/bin/python3", &program("terminal.py")]);
        job.wait_for("ready");
        job.dump(true).unwrap();
        job.ended();
        let master = || File::options().read(true).write(true).open("/dev/ptmx");
        let others: Vec<File> = (0..32).map(|_| master().unwrap()).collect();
        job.restart();
        job.tell("go");
        let status = job.ended();
        assert_eq!((status, job.output().as_str()), (0, "ready\nall right\n"));
        drop(others);
    }
}

/// Somebody at a terminal, with an interactive shell.
fn on_a_terminal(what: &str) {
    for user in [None, common::nobody()] {
        let directory = tempfile::tempdir().unwrap();
        std::os::unix::fs::chown(directory.path(), user, user).unwrap();
        let mut command = Command::new("/usr/bin/python3");
        command.arg(program("on_terminal.py"));
        command.args([env!("CARGO_BIN_EXE_snaprig-ckpt-driver"), what]);
        command.current_dir(directory.path());
        if let Some(user) = user {
            std::os::unix::process::CommandExt::uid(&mut command, user);
            std::os::unix::process::CommandExt::gid(&mut command, user);
        }
        let output = command.output().unwrap();
        let shown = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success() && output.stdout == b"all right\n",
            "{shown}"
        );
    }
}

#[test]
fn a_program_that_draws_goes_on_on_another_terminal() {
    on_a_terminal("screen");
}

#[test]
fn a_shell_goes_on_on_another_terminal() {
    on_a_terminal("shell");
}

/// A program that has read and written files, which is not there any more; and what it finds at the end.
fn with_files(is_locked: bool) -> Job {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, what: &str| fs::write(directory.path().join(name), what).unwrap();
    write("source", "what is read");
    write("data", "data of old");
    if is_locked {
        write("locked", "");
    }
    let mut job = Job::launch_among(directory, &["/usr/bin/python3", &program("changes.py")]);
    job.wait_for("ready");
    job.dump(true).unwrap();
    job.ended();
    job
}

fn finds(mut job: Job, what: &str) {
    job.tell("go");
    let (status, output) = (job.ended(), job.output());
    assert!(status == 0 && output.ends_with(what), "{status}: {output}");
}

const AS_BEFORE: &str = "b'what is read' b'DATA of old' b'begun\\ndone\\n' 0o640\n";

#[test]
fn what_is_read_may_have_grown() {
    let mut job = with_files(false);
    let mut source = File::options()
        .append(true)
        .open(job.path("source"))
        .unwrap();
    source.write_all(b", and more").unwrap();
    job.restart();
    finds(
        job,
        "b'what is read, and more' b'DATA of old' b'begun\\ndone\\n' 0o640\n",
    );
}

#[test]
fn what_is_read_and_has_changed_is_named() {
    let mut job = with_files(false);
    for change in ["What is read", "short", "something else, and more"] {
        fs::write(job.path("source"), change).unwrap();
        let why = job.refuses_to_restart();
        assert!(
            why.contains("source has changed since the checkpoint"),
            "{why}"
        );
        assert_eq!(fs::read_to_string(job.path("source")).unwrap(), change);
    }
    fs::remove_file(job.path("source")).unwrap();
    fs::write(job.path("data"), "newer").unwrap();
    fs::remove_file(job.path("log")).unwrap();
    let why = job.refuses_to_restart();
    assert!(
        why.contains("source cannot be opened: No such file"),
        "{why}"
    );
    // Nothing has been touched.
    assert_eq!(fs::read_to_string(job.path("data")).unwrap(), "newer");
    assert!(!job.path("log").exists());
    fs::write(job.path("source"), "what is read").unwrap();
    job.restart();
    finds(job, AS_BEFORE);
}

#[test]
fn what_is_written_is_set_back_and_what_it_was_is_kept() {
    let mut job = with_files(false);
    let changes = ["begun\nby another\n", "x"];
    for (number, change) in changes.iter().enumerate() {
        fs::write(job.path("log"), change).unwrap();
        fs::remove_file(job.path("data")).unwrap();
        job.restart();
        job.dump(true).unwrap();
        job.ended();
        let kept = job.path(&format!("log.snaprig-{}", number + 1));
        assert_eq!(fs::read_to_string(&kept).unwrap(), *change);
        let said = job.output();
        assert!(
            said.contains("log has changed since the checkpoint and is set back"),
            "{said}"
        );
        assert!(said.contains(kept.to_str().unwrap()), "{said}");
        assert_eq!(fs::read_to_string(job.path("log")).unwrap(), "begun\n");
    }
    job.restart();
    finds(job, AS_BEFORE);
}

#[test]
fn locks_that_somebody_else_has_are_named() {
    let mut job = with_files(true);
    let locked = File::options()
        .write(true)
        .open(job.path("locked"))
        .unwrap();
    locked.lock_shared().unwrap();
    let why = job.refuses_to_restart();
    assert!(
        why.contains("lock on") && why.contains("locked is somebody else's"),
        "{why}"
    );
    locked.unlock().unwrap();
    // SAFETY: the structure has numbers alone, for which zero is a value.
    let mut part: libc::flock = unsafe { std::mem::zeroed() };
    (part.l_type, part.l_start, part.l_len) = (libc::F_WRLCK as i16, 25, 1);
    // SAFETY: F_OFD_SETLK reads a struct flock, which is a variable of this test.
    let got = unsafe { libc::fcntl(locked.as_raw_fd(), libc::F_OFD_SETLK, &raw const part) };
    assert_eq!(got, 0);
    let why = job.refuses_to_restart();
    assert!(
        why.contains("locked, bytes 20 to 29 is somebody else's"),
        "{why}"
    );
    drop(locked);
    job.restart();
    finds(job, AS_BEFORE);
}
