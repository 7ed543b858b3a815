//! What a migration could not do without, each alone for the same memory: capture of the processes, one copy, and restore. The
//! slowest of the three is what a pipeline of all of them allows.

use std::{
    fs,
    path::Path,
    process::{Child, Command, Stdio},
    time::Instant,
};

use serde::Deserialize;
use snaprig_supervisor::Request;

use super::super::super::ckpt::{said, wait_for};
use crate::AnyError;

/// Images are there while they are written and read: no disk has a part in it.
const MEMORY: &str = "/dev/shm";
const MIB: usize = 1 << 20;

/// Milliseconds.
pub struct Yardstick {
    pub capture_ms: f64,
    pub copy_ms: f64,
    pub restore_ms: f64,
}

impl Yardstick {
    /// The longest of the three.
    pub fn slowest_ms(&self) -> f64 {
        self.capture_ms.max(self.copy_ms).max(self.restore_ms)
    }

    /// Of so many processes of `program` (fixtures/bench/ckpt.c), with so much memory in all.
    pub fn measure(program: &Path, processes: u32, mib: u64) -> Result<Self, AnyError> {
        let place = tempfile::tempdir_in(MEMORY)?;
        let stop = place.path().join("stop");
        let ready = |number| place.path().join(format!("ready-{number}"));
        let each = (mib / u64::from(processes)).max(1);
        let one = |number| {
            let (program, ready) = (program.display(), ready(number));
            format!(
                "{program} {each} 1 0 {} {} > /dev/null & ",
                ready.display(),
                stop.display()
            )
        };
        let words: String = (0..processes).map(one).collect();
        let store = place.path().join("store");
        let mut launch = snaprig()?;
        launch.arg("launch").arg("--dir").arg(&store);
        launch.args(["--", "sh", "-c", &(words + "wait")]);
        let mut launched = Running(launch.spawn()?);
        let is_ready = || (0..processes).all(|number| ready(number).exists());
        wait_for(|| is_ready() && supervised(&store))?;

        let mut dump = snaprig()?;
        dump.arg("dump").arg("--dir").arg(&store);
        let dumped: Dumped = said(dump.args(["--json", "--kill"]))?;
        launched.0.wait()?;

        let mut restart = snaprig()?;
        let begun = Instant::now();
        let mut restarted = Running(restart.arg("restart").arg(&store).spawn()?);
        wait_for(|| supervised(&store))?;
        let restore_ms = since_ms(begun);
        fs::write(&stop, "")?;
        restarted.0.wait()?;
        Ok(Self {
            capture_ms: dumped.took_ms,
            copy_ms: copy_ms(mib as usize),
            restore_ms,
        })
    }
}

#[derive(Deserialize)]
struct Dumped {
    took_ms: f64,
}

fn supervised(store: &Path) -> bool {
    snaprig_supervisor::ask(store, Request::Status).is_ok()
}

fn since_ms(begun: Instant) -> f64 {
    begun.elapsed().as_secs_f64() * 1e3
}

/// One copy, to where there are pages already.
fn copy_ms(mib: usize) -> f64 {
    let (from, mut to) = (vec![1_u8; mib * MIB], vec![2_u8; mib * MIB]);
    let begun = Instant::now();
    to.copy_from_slice(std::hint::black_box(&from));
    std::hint::black_box(&to);
    since_ms(begun)
}

fn snaprig() -> Result<Command, AnyError> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("ckpt");
    command.stdin(Stdio::null());
    Ok(command)
}

/// A program under a supervisor. It ends with this.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            let supervisor = rustix::process::Pid::from_child(&self.0);
            // What a supervisor starts ends when it is told to.
            let _ = rustix::process::kill_process(supervisor, rustix::process::Signal::TERM);
            let _ = self.0.wait();
        }
    }
}
