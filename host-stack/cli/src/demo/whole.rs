//! `snaprig demo --kill host|all`: the whole application is checkpointed, host process and offload process as one;
//! everything is killed, the cards and their rig as well if that was said; and it is restarted.
//!
//! ```text
//! snaprig demo --starts--> rig (rig-process) --> card 1, card 2
//!      |       --starts--> supervisor (ckpt launch) --> host process (workload kmeans)
//!      |--- ckpt dump: the plugin in the host process pauses and captures, then the supervisor saves
//!      |--- SIGKILL to each of them; another rig; ckpt restart: the plugin restores and resumes
//!      '--- compares as without --kill
//! ```

use std::{fs, path::Path, process::Stdio};

use snaprig_rig_campaign::{
    host_process::{Controlled, HostProcess, tree},
    rig_process::RigProcess,
    work::{Work, sweep},
};
use snaprig_snapify::control::Command as Control;
use snaprig_supervisor::{Reply, Request};

use super::{Kill, RESTORED, Scene};
use crate::{AnyError, report::Steps};

/// Runs it to the end of the restarted program.
pub fn run(scene: &Scene, steps: &mut Steps) -> Result<bool, AnyError> {
    let Scene {
        workload, deadline, ..
    } = scene;
    sweep();
    // What is killed leaves its directory behind; this one goes with all of them.
    let mut scratch = Work::new()?;
    let work = scene.work(scratch.path());
    let (checkpoints, restored) = (work.join("checkpoint"), work.join(RESTORED));
    let cards = scene.options.cards;
    let boot = || {
        let (platform, within) = (scene.options.platform, Some(scratch.path()));
        let log = Stdio::inherit();
        RigProcess::start(cards, &scene.memory, platform, log, within, *deadline)
    };
    let mut rig = steps.run("boot", &format!("{cards} cards"), |_| boot())?;
    let mut host = steps.run("start", "host process, offload process on card 1", |_| {
        HostProcess::supervised(&checkpoints, &rig.place.dir, workload, &restored, *deadline)
    })?;
    let name = format!("to run function {}, which is left in flight", scene.stop_at);
    steps.run("run", &name, |_| {
        let pid = program(&checkpoints)?;
        let mut control = Controlled::connect(&rig.place.dir, pid, *deadline)?;
        let hold = Control::BreakAtRunFunction(scene.stop_at);
        Ok::<_, AnyError>(control.run("run", &hold)?)
    })?;
    steps.run(
        "checkpoint",
        "of host process and offload process",
        |bytes| {
            let round = dump(&checkpoints)?;
            *bytes = size(&checkpoints.join(format!("{round:04}")))?;
            Ok::<_, AnyError>(())
        },
    )?;
    let (victims, detail) = match scene.options.kill {
        Kill::All => {
            let all = [tree(host.pid()), tree(rig.child.id())].concat();
            (
                all,
                format!("host process, {cards} cards, their rig: SIGKILL"),
            )
        }
        _ => (
            tree(host.pid()),
            "host process and supervisor: SIGKILL".into(),
        ),
    };
    steps.run("kill", &detail, |_| {
        for pid in victims {
            // SAFETY: kill(2) takes numbers alone; they are children that have not been waited for, or descendants of
            // those.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
        host.wait(*deadline)
    })?;
    // What it may have finished in between does not count.
    match fs::remove_file(&restored) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    if scene.options.kill == Kill::All {
        rig.child.wait()?;
        rig = steps.run("boot", &format!("another rig of {cards} cards"), |_| boot())?;
    }
    let mut host = steps.run("restart", "both processes, on card 1", |_| {
        HostProcess::restart(&checkpoints, &rig.place.dir, *deadline)
    })?;
    let status = steps.run("finish", "the rest of the work", |_| host.wait(*deadline))?;
    if !status.success() {
        return Err(format!("the restarted program failed: {status}").into());
    }
    rig.end(*deadline)?;
    scene.compare(steps, &work, || scratch.keep())
}

/// The number of the program that a supervisor has launched.
fn program(checkpoints: &Path) -> Result<u32, AnyError> {
    match snaprig_supervisor::ask(checkpoints, Request::Status)? {
        Reply::Status(status) => {
            let first = status.processes.first().ok_or("there is no host process")?;
            Ok(first.pid as u32)
        }
        other => Err(format!("the supervisor answered {other:?}").into()),
    }
}

/// Takes a checkpoint; its number.
fn dump(checkpoints: &Path) -> Result<u64, AnyError> {
    let dump = Request::Dump {
        kill: false,
        full: true,
    };
    match snaprig_supervisor::ask(checkpoints, dump)? {
        Reply::Dumped(dumped) => Ok(dumped.round),
        Reply::Failed(why) => Err(format!("no checkpoint was taken: {why}").into()),
        other => Err(format!("the supervisor answered {other:?}").into()),
    }
}

/// Bytes of all files in a directory.
fn size(directory: &Path) -> Result<u64, AnyError> {
    let mut bytes = 0;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        bytes += match entry.file_type()?.is_dir() {
            true => size(&entry.path())?,
            false => entry.metadata()?.len(),
        };
    }
    Ok(bytes)
}
