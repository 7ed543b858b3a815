//! What cannot be saved is named, and the program runs on.

mod common;

use common::{Job, compiled, program, wait_until};
use snaprig_supervisor::{Reply, Request};

/// Each is named with its descriptor, and the program runs on; when all of it is gone it can be saved.
#[test]
fn files_that_cannot_be_saved() {
    let directory = tempfile::tempdir().unwrap();
    let fifo = directory.path().join("fifo");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &fifo,
        rustix::fs::FileType::Fifo,
        0o600.into(),
        0,
    )
    .unwrap();
    // The program's descriptor of it is of a pipe into which somebody else writes.
    let _writer = std::fs::File::options()
        .read(true)
        .write(true)
        .open(&fifo)
        .unwrap();
    let mut job = Job::launch_among(directory, &["/usr/bin/python3", &program("refused.py")]);
    let kinds = [
        ("device", "a device"),
        ("io_uring", "[io_uring]"),
        ("userfaultfd", "[userfaultfd]"),
        ("fanotify", "[fanotify]"),
        ("secretmem", "secret memory"),
        ("pidfd", "the pidfd of process 1, which is outside"),
        ("process", "it has /proc/1/status open"),
        ("namespace", "it has net:["),
        ("removed", "it has been removed"),
        ("renamed", "or gone"),
        ("fifo", "whose other end a process outside has"),
        ("watched", "whose name cannot be found"),
        ("unread", "events that the program has not read"),
        ("messages", "a POSIX message queue"),
        ("raw", "a socket of a kind that cannot be saved (PACKET)"),
        ("answer", "is a netlink socket with what has not been read"),
    ];
    let mut had = 0;
    for (name, what) in kinds {
        let says = |what: &str| {
            let output = job.output();
            let mut lines = output.lines();
            let line = lines.find(|line| line.starts_with(&format!("{what} {name} ")));
            line.map(str::to_owned)
        };
        wait_until(name, || says("has").is_some() || says("no").is_some());
        let Some(has) = says("has") else { continue };
        let number = has.trim_end_matches('.').rsplit(' ').next().unwrap();
        let why = job.dump(true).unwrap_err();
        assert!(
            why.contains("(python3) cannot be checkpointed"),
            "{name}: {why}"
        );
        assert!(
            why.contains(what) && why.contains(&format!("descriptor {number}")),
            "{name}: {why}"
        );
        job.tell(&format!("next-{name}"));
        had += 1;
    }
    // Some of them take rights, or kernels, that not everybody has.
    assert!(had >= 8, "{}", job.output());
    job.wait_for("ready");
    job.over_again();
    job.tell("go");
    assert!(
        job.ended() == 0 && job.output().ends_with("all right\n"),
        "{}",
        job.output()
    );
}

#[test]
fn namespaces_of_its_own() {
    let script = "echo ready; while [ ! -e go ]; do :; done; echo right";
    let mut job = Job::launch_as_nobody(&["unshare", "-r", "--uts", "sh", "-c", script]);
    job.wait_for("ready");
    let why = job.dump(true).unwrap_err();
    assert!(why.contains("a namespace of its own (user)"), "{why}");
    job.tell("go");
    assert_eq!((job.ended(), job.output().as_str()), (0, "ready\nright\n"));
}

/// Each says what it has, and counts on: it does not stand still for the answer.
#[test]
fn what_shows_while_it_runs_is_refused_before_anything_stops() {
    let (_directory, odd) = compiled("odd.c", &[]);
    for (kind, named) in [
        ("filter", "a seccomp filter"),
        ("traced", "traces it"),
        ("chroot", "a root directory of its own"),
        ("userfaultfd", "userfaultfd"),
        ("ldt", "an LDT"),
        ("keyring", "a keyring of"),
        ("requests", "io_setup"),
        ("socket", "a mapped socket"),
        ("removed", "its program has been removed"),
    ] {
        let mut job = match kind {
            "chroot" => Job::launch(&[&odd, kind]),
            _ => Job::launch_as_nobody(&[&odd, kind]),
        };
        wait_until("it has what it says, or cannot", || {
            job.output().contains('\n')
        });
        if job.output().starts_with("ready") {
            let why = job.dump(true).expect_err(kind);
            assert!(why.contains(named), "{kind}: {why}");
        }
        job.tell("go");
        assert_eq!(job.ended(), 0, "{kind}: {}", job.output());
        assert!(job.output().ends_with("right\n"), "{kind}");
    }
}

/// As in a container.
#[test]
fn a_filter_that_the_supervisor_has_as_well_is_none_of_its_own() {
    let (_directory, odd) = compiled("odd.c", &[]);
    let driver = format!("{odd} within {}", env!("CARGO_BIN_EXE_snaprig-ckpt-driver"));
    let program = "sh -c 'echo ready; while [ ! -e go ]; do :; done; echo right'";
    let script = format!("{driver} launch inner {program}; {driver} restart inner");
    let mut job = Job::launch_as_nobody(&["sh", "-c", &script]);
    job.wait_for("ready");
    let inner = job.path("inner");
    let dump = |kill| snaprig_supervisor::ask(&inner, Request::Dump { kill, full: false });
    let dumped = dump(true);
    assert!(matches!(dumped, Ok(Reply::Dumped(_))), "{dumped:?}");
    wait_until("it is restarted", || {
        matches!(dump(false), Ok(Reply::Dumped(_)))
    });
    job.tell("go");
    assert_eq!((job.ended(), job.output().as_str()), (0, "ready\nright\n"));
}

/// A supervisor that stopped anything for the answer would die of it.
#[test]
fn connections_to_others_are_refused_before_anything_stops() {
    let tcp = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let to = tcp.local_addr().unwrap();
    let connect = format!("s = socket.create_connection(('127.0.0.1', {}))", to.port());
    for (have, what) in [
        (
            &*connect,
            format!("a TCP socket connected to {to}, which is outside"),
        ),
        (
            "s = socket.socket(socket.AF_UNIX); s.connect('socket')",
            "a Unix socket connected to a process outside".into(),
        ),
        (
            "s = open('fifo')",
            "a pipe whose other end a process outside has".into(),
        ),
        (
            "s = open('fifo', 'w')",
            "a pipe whose other end a process outside has".into(),
        ),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let fifo = directory.path().join("fifo");
        let (cwd, mode) = (rustix::fs::CWD, 0o600.into());
        rustix::fs::mknodat(cwd, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let both = std::fs::File::options().read(true).write(true).open(&fifo);
        let unix = std::os::unix::net::UnixListener::bind(directory.path().join("socket")).unwrap();
        let code = format!(
            "import os, socket, time\n\
             {have}\n\
             print('ready', flush=True)\n\
             while not os.path.exists('close'): time.sleep(0.005)\n\
             s.close()\n\
             print('closed', flush=True)\n\
             while not os.path.exists('go'): time.sleep(0.005)"
        );
        let python = ["/usr/bin/python3", "-c", &code];
        let mut job = Job::launch_among_to_die(directory, "tracee.seized:1", &python);
        job.wait_for("ready");
        let accepted = match have {
            _ if have.contains("create_connection") => (Some(tcp.accept().unwrap()), None),
            _ if have.contains("AF_UNIX") => (None, Some(unix.accept().unwrap())),
            _ => (None, None),
        };
        let why = job.dump(false).unwrap_err();
        assert!(why.contains(&what), "{why}");
        drop((both, unix, accepted));
        job.tell("close");
        job.wait_for("closed");
        job.tell("go");
        assert_eq!(job.ended(), 0);
    }
}
