//! The sink, its daemon, its card or the host program is killed at every step of an offload program
//! in C: whoever is left is told in bounded time, and nothing is left of the dead.

mod children;
mod host;

use std::{
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use children::ends;
use host::on_each_platform;
use rustix::process::Pid;
use snaprig_coi::{Engine, native};
use snaprig_offload_wire::coi::Exit;
use snaprig_rig::{Rig, files::CardFiles, sdk::Sdk};

const SNAPRIG: &str = env!("CARGO_BIN_EXE_snaprig-under-test");
const STEPS: [&str; 9] = [
    "created",
    "pipeline",
    "buffer",
    "idle",
    "running",
    "queued",
    "rma",
    "mapped",
    "destroying",
];
/// How long the dead's may stay on a card.
const CLEAN_UP: Duration = Duration::from_secs(20);

/// Who dies.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Victim {
    Sink,
    Daemon,
    Card,
    Host,
}

/// The programs.
struct Programs {
    directory: tempfile::TempDir,
    sdk: Sdk,
}

impl Programs {
    fn new() -> Self {
        let sdk = Sdk::of(Path::new(SNAPRIG)).expect("headers and libraries");
        let programs = Self {
            directory: tempfile::tempdir().expect("a directory"),
            sdk,
        };
        programs.compile("death_host", &["-lcoi_host", "-lpthread"]);
        programs.compile("death_sink", &["-rdynamic", "-lcoi_device"]);
        programs
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn compile(&self, name: &str, more: &[&str]) {
        let source = format!("{}/coi/{name}.c", env!("CARGO_MANIFEST_DIR"));
        let status = Command::new("gcc")
            .args(["-Wall", "-Wextra", "-Werror", "-o"])
            .arg(self.path(name))
            .arg(source)
            .arg("-I")
            .arg(self.sdk.include())
            .arg("-L")
            .arg(self.sdk.lib())
            .args(more)
            .status();
        assert!(status.expect("gcc is there").success());
    }

    /// The host program, which is ready at this step.
    fn start(&self, rig: &Rig, step: &str) -> Child {
        let environment = self.sdk.environment(rig.dir()).expect("libraries");
        let mut child = Command::new(self.path("death_host"))
            .arg(self.path("death_sink"))
            .arg(step)
            .envs(environment)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut line = String::new();
        output.read_line(&mut line).expect("its output");
        assert_eq!(line, "ready\n", "{step}");
        child.stdout = Some(output.into_inner());
        child
    }
}

fn rig(platform: &str) -> Rig {
    let busybox: CardFiles = "/bin/busybox".parse().expect("a path");
    let kind = platform.parse().expect("a platform");
    let rig = Rig::builder().exe(SNAPRIG).platform(Some(kind));
    let rig = rig.memory_bytes(1 << 30).files(vec![busybox]);
    rig.start().expect("a rig")
}

fn each_step(kind: &str, victim: Victim) {
    let programs = Programs::new();
    let rig = rig(kind);
    // A process that is being destroyed takes no run function that would kill it.
    let steps = STEPS
        .iter()
        .filter(|step| victim != Victim::Sink || **step != "destroying");
    for step in steps {
        let mut host = programs.start(&rig, step);
        let what = format!("{victim:?} dies at {step} on {kind}");
        let card = rig.card(0);
        let engine = Engine::get(rig.dir(), 0).expect("the card");
        match victim {
            Victim::Sink => {}
            Victim::Daemon => card.kill_daemon().expect("it is told"),
            Victim::Card => card.kill().expect("it dies"),
            Victim::Host => host.kill().expect("it is ours"),
        }
        if victim == Victim::Host {
            assert!(ends(Pid::from_child(&host), 60), "{what}");
            host.wait().expect("it is ours");
            is_clean(&rig, &what);
            continue;
        }
        let line: &[u8] = if victim == Victim::Sink {
            b"sink\n"
        } else {
            b"go\n"
        };
        let stdin = host.stdin.take();
        stdin.expect("a pipe").write_all(line).expect("it reads");
        let is_over = ends(Pid::from_child(&host), 60);
        if !is_over {
            host.kill().expect("it is ours");
        }
        let output = host.wait_with_output().expect("its output");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(is_over, "{what}: the host program waits for ever: {text}");
        assert_eq!(
            (text.as_ref(), output.status.code()),
            ("over\n", Some(0)),
            "{what}"
        );
        if victim == Victim::Card {
            // It is an engine still, which is offline.
            assert_eq!(Engine::count(rig.dir()), Ok(1), "{what}");
            assert_eq!(engine.is_online(), Ok(false), "{what}");
        }
        match victim {
            Victim::Sink => is_clean(&rig, &what),
            _ => card.reset().expect("it boots again"),
        }
    }
}

/// Nothing is left of offload processes on the card, soon.
fn is_clean(rig: &Rig, what: &str) {
    let engine = Engine::get(rig.dir(), 0).expect("the card");
    let began = Instant::now();
    let look = "test -z \"$(/bin/busybox find /tmp/coi_procs -type f 2>/dev/null)\"";
    let command = ["/bin/busybox", "sh", "-c", look].map(str::to_owned);
    loop {
        let exit = native::run(&engine, "/bin/busybox", command.to_vec(), vec![]);
        if exit.expect("the card answers") == Exit::Code(0) {
            return;
        }
        assert!(
            began.elapsed() < CLEAN_UP,
            "{what}: something is left on the card"
        );
    }
}

fn a_sink_that_is_killed_at_any_step_is_told_of(platform: &str) {
    each_step(platform, Victim::Sink);
}

fn a_daemon_that_is_killed_at_any_step_is_told_of(platform: &str) {
    each_step(platform, Victim::Daemon);
}

fn a_card_that_is_killed_at_any_step_is_told_of(platform: &str) {
    each_step(platform, Victim::Card);
}

fn a_host_program_that_is_killed_at_any_step_leaves_nothing(platform: &str) {
    each_step(platform, Victim::Host);
}

on_each_platform! {
    a_sink_that_is_killed_at_any_step_is_told_of
    a_daemon_that_is_killed_at_any_step_is_told_of
    a_card_that_is_killed_at_any_step_is_told_of
    a_host_program_that_is_killed_at_any_step_leaves_nothing
}
