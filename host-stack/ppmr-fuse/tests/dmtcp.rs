//! A checkpointer of others, DMTCP, moves a program: it writes its image into the mount of a source, and restarts it from that
//! of the target while it is written.

mod pair;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use pair::Pair;
use snaprig_ppmr::Mode;
use tempfile::TempDir;

/// How long anything may take.
const MAX: Duration = Duration::from_secs(60);

/// Two programs that DMTCP restarts at the same time are in each other's way, from whatever file system: one of them hangs.
static ALONE: Mutex<()> = Mutex::new(());

/// Looks until it is there.
fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < MAX, "{what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// A coordinator, which writes scripts into a directory of its own. Dropped, it ends, and so do its programs.
struct Coordinator {
    own: TempDir,
    port: String,
}

impl Coordinator {
    fn new() -> Self {
        let own = tempfile::tempdir().unwrap();
        let file = own.path().join("port");
        let started = Command::new("dmtcp_coordinator")
            .args(["--quiet", "--daemon", "--coord-port", "0", "--port-file"])
            .args([&file, Path::new("--ckptdir"), own.path()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        assert!(started.unwrap().success());
        let port = until("a coordinator", || {
            let port = fs::read_to_string(&file).ok()?;
            (!port.is_empty()).then_some(port)
        });
        Self { own, port }
    }

    /// A program of DMTCP that talks to it.
    fn program(&self, name: &str) -> Command {
        let mut command = Command::new("timeout");
        let seconds = MAX.as_secs().to_string();
        command.args([
            "--foreground",
            "--signal=KILL",
            &seconds,
            name,
            "--coord-port",
            &self.port,
        ]);
        command.env("DMTCP_TMPDIR", self.own.path());
        command.current_dir(self.own.path());
        command.stdin(Stdio::null());
        command.stdout(Stdio::null());
        command.stderr(Stdio::null());
        command
    }
}

impl Drop for Coordinator {
    fn drop(&mut self) {
        let _ = self.program("dmtcp_command").arg("--quit").status();
    }
}

fn counted(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// A program that counts, and where it says how far it is.
fn counter(own: &TempDir) -> (PathBuf, PathBuf) {
    let program = own.path().join("counter");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/counter.c");
    let cc = Command::new("cc")
        .arg(source)
        .arg("-o")
        .arg(&program)
        .status();
    assert!(cc.unwrap().success());
    (program, own.path().join("count"))
}

fn moves(how: &str) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let own = tempfile::tempdir().unwrap();
    let (program, count) = counter(&own);
    let pair = Pair::new(Mode::Pull, 1);
    let (here, there) = (Coordinator::new(), Coordinator::new());
    let mut launched = here
        .program("dmtcp_launch")
        .args(["--quiet", "--join-coordinator", how, "--ckptdir"])
        .args([pair.from(""), program, count.clone()])
        .spawn()
        .unwrap();
    until("the program", || counted(&count).filter(|&at| at > 10));
    let mut checkpoint = here
        .program("dmtcp_command")
        .arg("--kcheckpoint")
        .spawn()
        .unwrap();
    let image = until("the image", || fs::read_dir(pair.to("")).unwrap().next());
    let image = image.unwrap().path();
    assert_eq!(image.extension().unwrap(), "dmtcp");
    // It is being written, and would not be written on without this.
    let mut restarted = there
        .program("dmtcp_restart")
        .args(["--quiet", "--join-coordinator"])
        .arg(&image)
        .spawn()
        .unwrap();
    // Its status is 2 where the programs are gone before it has asked for the checkpoint's end.
    checkpoint.wait().unwrap();
    let (source, target) = pair.outcomes();
    assert_eq!((source.failure, target.failure), (None, None));
    launched.wait().unwrap();
    let at = counted(&count).unwrap();
    let goes_on = || counted(&count).filter(|&now| now > at + 10);
    until("the restarted program", goes_on);
    drop(there);
    restarted.wait().unwrap();
    assert_eq!(pair.source.next(), None, "it has its final name");
}

#[test]
#[cfg_attr(not(has_fuse), ignore = "/dev/fuse does not open")]
#[cfg_attr(not(has_program = "dmtcp_launch"), ignore = "DMTCP is not installed")]
fn dmtcp_moves_a_program() {
    moves("--no-gzip");
}

#[test]
#[cfg_attr(not(has_fuse), ignore = "/dev/fuse does not open")]
#[cfg_attr(not(has_program = "dmtcp_launch"), ignore = "DMTCP is not installed")]
fn dmtcp_moves_a_program_whose_image_it_compresses() {
    moves("--gzip");
}
