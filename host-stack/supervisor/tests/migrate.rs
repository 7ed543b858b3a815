//! Programs that move to another supervisor while they run. There is never more than one of them.

mod common;

use std::{
    fs,
    io::{Read, Write},
    net::Shutdown,
    os::unix::{
        fs::PermissionsExt,
        net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    thread,
};

use common::{Job, compiled, nobody, program, wait_until};
use snaprig_supervisor::{Migrated, Reply, Request, Target};

fn migrate(job: &Job, to: Target) -> Result<Migrated, String> {
    asked(&job.path("job"), to)
}

/// What a supervisor says when it is asked for a migration.
fn asked(directory: &Path, to: Target) -> Result<Migrated, String> {
    match snaprig_supervisor::ask(directory, Request::Migrate { to }) {
        Ok(Reply::Migrated(migrated)) => Ok(migrated),
        Ok(Reply::Failed(why)) => Err(why),
        other => panic!("{other:?}"),
    }
}

/// A target at a Unix socket in its directory.
fn target(user: Option<u32>) -> (Job, PathBuf) {
    let target = Job::receive(user, &["socket"]);
    let socket = target.path("socket");
    // A stranger that says nothing does not keep it from listening.
    wait_until("it listens", || UnixStream::connect(&socket).is_ok());
    (target, socket)
}

/// The program ends well where it is now.
fn ends_well(told: &Job, mut at: Job) {
    told.tell("go");
    let status = at.ended();
    assert!(
        status == 0 && at.output().ends_with("right\n"),
        "{status}: {}",
        at.output()
    );
}

fn there_and_on(mut source: Job, user: Option<u32>) {
    source.wait_for("ready");
    let (target, socket) = target(user);
    let migrated = migrate(&source, Target::unix(socket.clone())).unwrap();
    assert!(migrated.blackout < migrated.took, "{migrated:?}");
    assert_eq!(source.ended(), 128 + libc::SIGKILL);
    wait_until("it is supervised", || target.answers());
    // The source knows: nobody can ask any more.
    wait_until("it does not listen", || !socket.exists());
    // From there to a third, and what has arrived is a checkpoint there.
    let (third, socket) = self::target(user);
    migrate(&target, Target::unix(socket)).unwrap();
    wait_until("it is supervised", || third.answers());
    assert!(target.path("job/0001/manifest.json").exists());
    third.dump(false).unwrap();
    ends_well(&source, third);
}

#[test]
fn a_program_migrates() {
    let (_directory, churn) = compiled("churn.c", &[]);
    there_and_on(Job::launch(&[&churn]), None);
}

#[test]
fn a_program_of_an_ordinary_user_migrates() {
    let (_directory, churn) = compiled("churn.c", &[]);
    there_and_on(Job::launch_as_nobody(&[&churn]), nobody());
}

/// They could not be had there while it is here. A supervisor that stopped anything would die of it.
#[test]
fn locks_are_refused_before_anything_stops() {
    for take in [
        "fcntl.flock(file, fcntl.LOCK_EX)",
        "fcntl.lockf(file, fcntl.LOCK_EX)",
        "fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)",
    ] {
        let code = format!(
            "import fcntl, os, time\n\
             file = open('locked', 'w')\n\
             {take}\n\
             print('ready', flush=True)\n\
             while not os.path.exists('go'): time.sleep(0.01)\n\
             print('right', flush=True)"
        );
        let python = ["/usr/bin/python3", "-c", &code];
        let mut source = Job::launch_to_die(None, "tracee.seized:1", &python);
        source.wait_for("ready");
        let (_target, socket) = target(None);
        let why = migrate(&source, Target::unix(socket)).unwrap_err();
        assert!(why.contains("it has a lock on it"), "{why}");
        source.tell("go");
        assert_eq!((source.ended(), &*source.output()), (0, "ready\nright\n"));
    }
}

#[test]
fn what_is_sent_while_it_runs_is_not_sent_when_it_stands_still() {
    let python = ["/usr/bin/python3", &program("large.py")];
    let mut source = Job::launch(&python);
    source.wait_for("ready");
    let (target, socket) = target(None);
    let migrated = migrate(&source, Target::unix(socket)).unwrap();
    let copied = migrated.copied;
    assert!(
        copied.ahead > 192 << 20 && copied.stopped < 64 << 20,
        "{migrated:?}"
    );
    assert_eq!(source.ended(), 128 + libc::SIGKILL);
    wait_until("it is supervised", || target.answers());
    ends_well(&source, target);
}

fn token(directory: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = directory.join(name);
    fs::write(&path, bytes).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    path
}

/// A port that nobody listens at.
fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

#[test]
fn over_tcp_both_sides_know_the_token() {
    let (directory, churn) = compiled("churn.c", &[]);
    let right = token(directory.path(), "right", &[7; 32]);
    let wrong = token(directory.path(), "wrong", &[8; 32]);
    let mut source = Job::launch(&[&churn]);
    source.wait_for("ready");
    let host = format!("127.0.0.1:{}", free_port());
    let target = Job::receive(None, &[&host, right.to_str().unwrap()]);
    wait_until("it listens", || std::net::TcpStream::connect(&host).is_ok());
    let refused = migrate(&source, Target::tcp(host.clone(), wrong)).unwrap_err();
    assert!(refused.contains("token"), "{refused}");
    assert!(source.answers());
    migrate(&source, Target::tcp(host, right.clone())).unwrap();
    assert_eq!(source.ended(), 128 + libc::SIGKILL);
    wait_until("it is supervised", || target.answers());
    ends_well(&source, target);
    fs::set_permissions(&right, fs::Permissions::from_mode(0o644)).unwrap();
    let mut readable = Job::receive(None, &["127.0.0.1:0", right.to_str().unwrap()]);
    assert_eq!(readable.ended(), 1);
    assert!(
        readable.output().contains("Token(Mode"),
        "{}",
        readable.output()
    );
}

#[test]
fn a_file_is_not_a_place_to_listen_at() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    fs::write(&path, "kept").unwrap();
    let mut target = Job::receive(None, &[path.to_str().unwrap()]);
    assert_eq!(target.ended(), 1);
    assert_eq!(fs::read_to_string(path).unwrap(), "kept");
}

#[test]
fn who_loses_the_target_runs_on() {
    let (_directory, churn) = compiled("churn.c", &[]);
    let mut source = Job::launch(&[&churn]);
    source.wait_for("ready");
    let nowhere = Target::unix(source.path("nobody"));
    migrate(&source, nowhere).unwrap_err();
    for _ in 0..3 {
        let (mut target, socket) = target(None);
        let asking = {
            let (directory, to) = (source.path("job"), Target::unix(socket));
            thread::spawn(move || snaprig_supervisor::ask(&directory, Request::Migrate { to }))
        };
        let image = target.path("job/0001.tmp/tree.img");
        wait_until("something has come", || {
            image.exists() || asking.is_finished()
        });
        target.kill();
        wait_until("it knows, or asks in vain", || {
            asking.is_finished() || source.output().contains("does not say whether")
        });
        if !asking.is_finished() {
            // It was faster, and nobody knows how fast.
            target.receive_again(&["socket"]);
        }
        match asking.join().unwrap().unwrap() {
            Reply::Failed(_) => assert!(source.answers()),
            // It was faster.
            Reply::Migrated(_) => return assert_eq!(source.ended(), 128 + libc::SIGKILL),
            other => panic!("{other:?}"),
        }
    }
    source.dump(false).unwrap();
    source.tell("go");
    assert_eq!(source.ended(), 0, "{}", source.output());
}

/// Which message is the last to be passed on.
#[derive(Clone, Copy, PartialEq)]
enum Lost {
    Ready,
    Go,
}

/// Reads a message of the protocol as it is.
fn message(from: &mut UnixStream) -> Vec<u8> {
    let mut bytes = vec![0; 4];
    from.read_exact(&mut bytes).unwrap();
    let length = u32::from_le_bytes(bytes[..4].try_into().unwrap());
    bytes.resize(4 + length as usize, 0);
    from.read_exact(&mut bytes[4..]).unwrap();
    bytes
}

/// Stands between source and target, and ends both connections when a message would be passed on.
fn between(at: &Path, target: &Path, lost: Lost) -> thread::JoinHandle<()> {
    let (listener, target) = (UnixListener::bind(at).unwrap(), target.to_owned());
    thread::spawn(move || {
        let (mut source, _) = listener.accept().unwrap();
        let mut target = UnixStream::connect(target).unwrap();
        let (mut from_source, mut to_target) =
            (source.try_clone().unwrap(), target.try_clone().unwrap());
        // Hellos first: what follows from the source is passed on as it comes.
        to_target.write_all(&message(&mut from_source)).unwrap();
        source.write_all(&message(&mut target)).unwrap();
        let (image_passed, stop) = std::sync::mpsc::channel();
        let image = thread::spawn(move || {
            let mut bytes = vec![0; 1 << 20];
            loop {
                let count = from_source.read(&mut bytes).unwrap_or(0);
                if count == 0 || (stop.try_recv().is_ok() && lost == Lost::Go) {
                    break;
                }
                to_target.write_all(&bytes[..count]).unwrap();
            }
        });
        let ready = message(&mut target);
        if lost == Lost::Go {
            // What comes from the source from now on is Go.
            image_passed.send(()).unwrap();
            source.write_all(&ready).unwrap();
            image.join().unwrap();
        }
        for stream in [&source, &target] {
            let _ = stream.shutdown(Shutdown::Both);
        }
    })
}

/// What stands between both sides, so that it loses a message.
struct Lossy {
    source: Job,
    target: Job,
    proxy: PathBuf,
    socket: PathBuf,
    asking: thread::JoinHandle<Result<Migrated, String>>,
}

impl Lossy {
    fn lose(program: &str, message: Lost) -> Self {
        let source = Job::launch(&[program]);
        source.wait_for("ready");
        source.dump(false).unwrap();
        let (target, socket) = target(None);
        let proxy = source.path("proxy");
        let between = between(&proxy, &socket, message);
        let asking = {
            let (directory, to) = (source.path("job"), Target::unix(proxy.clone()));
            thread::spawn(move || asked(&directory, to))
        };
        between.join().unwrap();
        Self {
            source,
            target,
            proxy,
            socket,
            asking,
        }
    }

    /// From now on, both reach each other.
    fn mend(&self) {
        fs::remove_file(&self.proxy).unwrap();
        std::os::unix::fs::symlink(&self.socket, &self.proxy).unwrap();
    }
}

#[test]
fn when_ready_is_lost_it_runs_on_where_it_was() {
    let (_directory, churn) = compiled("churn.c", &[]);
    let Lossy {
        mut source,
        target,
        asking,
        ..
    } = Lossy::lose(&churn, Lost::Ready);
    asking.join().unwrap().unwrap_err();
    source.dump(false).unwrap();
    source.tell("go");
    assert_eq!(source.ended(), 0, "{}", source.output());
    assert_eq!(target.output(), "");
}

#[test]
fn when_go_is_lost_it_stands_still_until_it_is_known_where_it_is() {
    let (_directory, churn) = compiled("churn.c", &[]);
    let lossy = Lossy::lose(&churn, Lost::Go);
    // Nobody is told that it has ended, or that it runs.
    wait_until("it asks in vain", || {
        lossy.source.output().contains("does not say whether")
    });
    assert!(!lossy.asking.is_finished());
    let why = lossy.source.dump(false).unwrap_err();
    assert!(why.contains("on its way"), "{why}");
    lossy.mend();
    let Lossy {
        mut source,
        target,
        asking,
        ..
    } = lossy;
    asking.join().unwrap().unwrap();
    assert_eq!(source.ended(), 128 + libc::SIGKILL);
    let why = source.refuses_to_restart();
    assert!(why.contains("has migrated to"), "{why}");
    ends_well(&source, target);
}

#[test]
fn when_the_target_has_forgotten_it_runs_on_where_it_was() {
    let (_directory, churn) = compiled("churn.c", &[]);
    let lossy = Lossy::lose(&churn, Lost::Go);
    let Lossy {
        mut source,
        mut target,
        proxy,
        socket,
        asking,
    } = lossy;
    target.kill();
    // Another one at the same address does not know: it is asked in vain.
    fs::remove_file(&proxy).unwrap();
    let stranger = Job::receive(None, &[proxy.to_str().unwrap()]);
    wait_until("it refuses", || {
        stranger.output().contains("asks for another target")
    });
    assert!(!asking.is_finished());
    drop(stranger);
    target.receive_again(&["socket"]);
    let _ = fs::remove_file(&proxy);
    std::os::unix::fs::symlink(&socket, &proxy).unwrap();
    let why = asking.join().unwrap().unwrap_err();
    assert!(why.contains("the tree is not here"), "{why}");
    source.tell("go");
    assert_eq!(source.ended(), 0, "{}", source.output());
}
