//! The paper's workloads are moved, swapped and saved: paused for all of it, or live: copied while they compute, and paused for
//! the rest. Their results are golden, bit for bit, at whatever moments that is. SNAPRIG_MOMENTS says at how many.

mod host;
mod offload;
mod papers;

use std::{
    env, fs,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use host::on_each_platform;
use offload::{Program, SNAPRIG};
use papers::on_each_workload;
use snaprig_rig::{Rig, sdk::Sdk};
use snaprig_snapify::control::{Client, Command as Control};

const PATIENCE: Duration = Duration::from_secs(60);
const CARDS: u16 = 2;

/// Killed when it is dropped.
struct Running(Child);

impl Running {
    /// Whether it ends by itself.
    fn ends(&mut self) -> bool {
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            if self.0.try_wait().expect("a child").is_some() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        false
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn rig(platform: &str) -> Rig {
    let platform = platform.parse().expect("a platform");
    let builder = Rig::builder().exe(SNAPRIG).cards(CARDS.into());
    builder.platform(Some(platform)).start().expect("a rig")
}

fn connect(rig: &Rig, running: &mut Running) -> Client {
    let begun = Instant::now();
    loop {
        match Client::connect(rig.dir(), running.0.id()) {
            Ok(client) => return client,
            Err(error) => assert!(begun.elapsed() < PATIENCE, "{error}"),
        }
        assert_eq!(running.0.try_wait().expect("a child"), None);
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// How many things there are to be done.
const KINDS: u64 = 7;

/// One of them, on the way to `card`.
fn commands(which: u64, snapshot: &Path, card: u16) -> Vec<Control> {
    let to = || snapshot.to_owned();
    let live = |place| Control::Copy(to(), place);
    let migrated = || Control::Migrate(to(), card);
    let swapped = || [Control::SwapOut(to()), Control::SwapIn(card)];
    let saved = || {
        let (pause, capture) = (Control::Pause(to()), Control::Capture(false));
        [pause, capture, Control::Wait, Control::Resume]
    };
    match which % KINDS {
        0 => vec![live(Some(card)), migrated()],
        1 => [live(None)].into_iter().chain(swapped()).collect(),
        2 => [live(None)].into_iter().chain(saved()).collect(),
        // Copies for another directory are of no use.
        3 => {
            let useless = Control::Copy(snapshot.with_extension("other"), None);
            [useless].into_iter().chain(saved()).collect()
        }
        4 => vec![migrated()],
        5 => swapped().into(),
        _ => saved().into(),
    }
}

fn live(platform: &str, folder: &str, golden: &str, arguments: &[&str]) {
    let program = Program::compile(&format!("workloads/{folder}"), "", "-fopenmp");
    let golden = fs::read_to_string(program.sources().join(golden)).expect("a golden output");
    let moments = env::var("SNAPRIG_MOMENTS").map_or(KINDS, |text| text.parse().expect("a number"));
    let seed = u64::from(std::process::id());
    let rig = rig(platform);
    let sdk = Sdk::of(Path::new(SNAPRIG)).expect("libraries");
    let snapshots = tempfile::tempdir().expect("a directory");
    let snapshot = snapshots.path().join("snapshot");
    let mut done = 0;
    while done < moments {
        let child = Command::new(program.directory().join("host"))
            .arg(program.directory().join("sink"))
            .args(arguments)
            .envs(sdk.environment(rig.dir()).expect("an environment"))
            .stdout(Stdio::piped())
            .spawn();
        let mut running = Running(child.expect("it starts"));
        let mut control = connect(&rig, &mut running);
        // The first moment is before the first run function, the others some later; that they are sent does not mean that
        // they have run.
        let mut sent = 0;
        let mut card = 1;
        while done < moments {
            let next = Control::BreakAtRunFunction(sent);
            card = card % CARDS + 1;
            let mut commands = commands(seed + done, &snapshot, card).into_iter();
            let ran = control.run(&next, PATIENCE).and_then(|_| {
                commands.try_for_each(|command| control.run(&command, PATIENCE).map(drop))
            });
            done += 1;
            if let Err(error) = ran {
                // After its last run function a program may end before it is copied, or paused. Another one is held here.
                assert!(running.ends(), "seed {seed}, {done}: {error}");
                break;
            }
            sent += 1 + seed.rotate_right(done as u32) % 2;
        }
        drop(control);
        let mut said = String::new();
        let out = running.0.stdout.take().expect("a pipe");
        std::io::Read::read_to_string(&mut { out }, &mut said).expect("it ends");
        assert!(running.0.wait().expect("it ended").success());
        assert_eq!(said, golden, "seed {seed}");
    }
    let mut verify = Command::new(SNAPRIG);
    verify.args(["snapshot", "verify"]).arg(&snapshot);
    let verified = verify.output().expect("it starts");
    assert!(verified.status.success(), "{}", offload::text(&verified));
}

on_each_workload!(live);
