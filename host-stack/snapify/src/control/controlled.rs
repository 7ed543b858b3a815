//! An offload process that can be controlled from outside, and what is told of its steps.

use std::{
    io::{self, Read},
    os::unix::net::UnixStream,
    path::Path,
    sync::{Arc, Mutex},
};

use snaprig_coi::{CoiError, Engine, Process};
use snaprig_peers::lines;

use super::{Command, Described, Report, lock};
use crate::{Phase, Snapify, SnapifyError, Step, StepReport};

/// An offload process with the one Snapify that it has: whoever calls it, in the program or from outside, finds it as the
/// others have left it.
pub struct Controlled {
    process: Process,
    snapify: Snapify,
    /// The steps of the command under way, if there is one.
    steps: Arc<Mutex<Option<Vec<StepReport>>>>,
    /// Those of the last snapshot, each once.
    last: Arc<Mutex<Vec<StepReport>>>,
    /// Who is told of steps that begin.
    listener_of_steps: Arc<Mutex<Option<UnixStream>>>,
    /// Held while a command is under way; whether there may be no more.
    at_work: Mutex<bool>,
}

impl Controlled {
    /// For this process.
    pub fn new(process: &Process) -> Arc<Self> {
        let steps: Arc<Mutex<Option<Vec<StepReport>>>> = Arc::default();
        let last: Arc<Mutex<Vec<StepReport>>> = Arc::default();
        let listener_of_steps: Arc<Mutex<Option<UnixStream>>> = Arc::default();
        let (seen, told) = (steps.clone(), listener_of_steps.clone());
        let kept = last.clone();
        let observer = Arc::new(move |report: &StepReport| {
            keep(&mut lock(&kept), report);
            if report.elapsed.is_some() {
                if let Some(seen) = &mut *lock(&seen) {
                    seen.push(*report);
                }
                return;
            }
            let mut told = lock(&told);
            if told
                .as_ref()
                .is_some_and(|stream| tell(stream, report.step).is_err())
            {
                // It does not listen any more.
                *told = None;
            }
        });
        Arc::new(Self {
            process: process.clone(),
            snapify: Snapify::new(process, observer),
            steps,
            last,
            listener_of_steps,
            at_work: Mutex::new(false),
        })
    }

    /// The process.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Its Snapify.
    pub fn snapify(&self) -> &Snapify {
        &self.snapify
    }

    /// As it is now.
    pub(super) fn describe(&self) -> Described {
        let status = self.process.status();
        let state = match self.process.is_alive() {
            true => self.snapify.phase(),
            false => Phase::Ended,
        };
        Described {
            process: self.process.id(),
            card: status.node,
            card_pid: status.pid,
            name: self.process.name().to_owned(),
            state,
            buffer_bytes: self.process.buffer_bytes(),
            is_wanted: self.process.is_wanted(),
            steps: lock(&self.last).clone(),
        }
    }

    /// Runs a command of a program of this rig, after those that came before.
    pub(super) fn run(&self, rig: &Path, command: Command) -> Report {
        let over = lock(&self.at_work);
        *lock(&self.steps) = Some(Vec::new());
        let result = match (*over, command) {
            (true, _) => Err("the offload process has ended".into()),
            (_, Command::TellSteps(path)) => UnixStream::connect(path)
                .map(|stream| *lock(&self.listener_of_steps) = Some(stream))
                .map(|()| 0)
                .map_err(|error| error.to_string()),
            (_, command) => self.call(rig, command).map_err(|error| error.to_string()),
        };
        let steps = lock(&self.steps).take().unwrap_or_default();
        Report {
            bytes: *result.as_ref().unwrap_or(&0),
            steps,
            error: result.err(),
            ..Report::default()
        }
    }

    fn call(&self, rig: &Path, command: Command) -> Result<u64, SnapifyError> {
        let snapify = &self.snapify;
        match command {
            // They concern the service, not the process.
            Command::TellSteps(_) | Command::List | Command::Adopted(_) => {}
            Command::BreakAtRunFunction(count) => self.process.break_at(count, None)?,
            Command::CompressNext => snapify.compress_next(),
            Command::Copy(snapshot, node) => {
                let target = node.map(|node| card(rig, node)).transpose()?;
                return snapify.copy(&snapshot, target.as_ref());
            }
            Command::Pause(snapshot) => return snapify.pause(&snapshot),
            Command::Capture(terminate) => snapify.capture(terminate)?,
            Command::Wait => return snapify.wait(None),
            Command::Resume => snapify.resume()?,
            Command::Restore(node) => return snapify.restore(&card(rig, node)?),
            Command::SwapOut(snapshot) => return snapify.swap_out(&snapshot),
            Command::SwapIn(node) => return snapify.swap_in(&card(rig, node)?),
            Command::Migrate(snapshot, node) => {
                return snapify.migrate(&snapshot, &card(rig, node)?);
            }
        }
        Ok(0)
    }

    /// There are no more commands: the one under way, if there is one, is waited for, so that a snapshot that is being made
    /// is either finished or taken away.
    pub fn end(&self) {
        *lock(&self.at_work) = true;
        // A capture goes on in the background; how it ends is of no interest any more.
        let _ = self.snapify.wait(None);
    }
}

/// Takes a step down, which begins or has ended. A snapshot begins with the agreement; what is tried again counts as it was
/// done last.
fn keep(last: &mut Vec<StepReport>, report: &StepReport) {
    match report.step {
        Step::Agree => last.clear(),
        step => last.retain(|kept| kept.step != step),
    }
    if report.elapsed.is_some() {
        last.push(*report);
    }
}

/// A card that a process can go to.
fn card(rig: &Path, node: u16) -> Result<Engine, SnapifyError> {
    let absent = SnapifyError::NoCard { node };
    let Some(index) = node.checked_sub(1) else {
        return Err(absent);
    };
    match Engine::get(rig, index) {
        Err(CoiError::CardLost { .. }) => Err(absent),
        engine => Ok(engine?),
    }
}

/// Tells of a step that begins, and waits until it may.
fn tell(mut stream: &UnixStream, step: Step) -> io::Result<()> {
    lines::send(&mut stream, &step)?;
    stream.read_exact(&mut [0])
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_steps_of_the_last_snapshot_are_kept_each_once() {
        let report = |step, milliseconds: Option<u64>| StepReport {
            step,
            elapsed: milliseconds.map(Duration::from_millis),
            bytes: 0,
        };
        let mut last = Vec::new();
        let mut hear = |step, milliseconds| {
            keep(&mut last, &report(step, None));
            keep(&mut last, &report(step, Some(milliseconds)));
            last.clone()
        };
        hear(Step::Agree, 1);
        hear(Step::Restore, 2);
        let tried_again = hear(Step::Restore, 3);
        let expected = [(Step::Agree, 1), (Step::Restore, 3)];
        assert_eq!(
            tried_again,
            expected.map(|(step, time)| report(step, Some(time)))
        );
        assert_eq!(hear(Step::Agree, 4), [report(Step::Agree, Some(4))]);
    }
}
