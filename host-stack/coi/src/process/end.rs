//! The end of an offload process (COIProcessDestroy).

use std::{sync::atomic::Ordering, time::Duration};

use snaprig_offload_wire::coi::{Command, Exit, ToDaemon};

use super::{Inner, Place, Process};
use crate::{CoiError, machine::Region};

impl Process {
    /// Lets the program end by itself, and ends it by force after `timeout`.
    pub fn destroy(&self, timeout: Duration) -> Result<Exit, CoiError> {
        self.destroy_with(Some(timeout), true)
    }

    /// Waits until the program has ended (`None`: for ever), having asked it to unless there is no
    /// time to wait; then, if it has not and `force` says so, ends it.
    pub fn destroy_with(&self, wait: Option<Duration>, force: bool) -> Result<Exit, CoiError> {
        let _pass = match self.0.enter(Region::Lifecycle) {
            Ok(pass) => pass,
            // It has ended before.
            Err(CoiError::ProcessDied { exit, .. }) => return Ok(exit),
            Err(error) => return Err(error),
        };
        let poll = wait == Some(Duration::ZERO);
        if !poll && !self.0.asked_to_end.swap(true, Ordering::Relaxed) {
            match self.0.command(Command::EndProcess) {
                Ok(_) => {}
                // It was faster than its own answer.
                Err(CoiError::ProcessDied { exit, .. }) => return Ok(exit),
                Err(error) => return Err(error),
            }
        }
        match self.wait(wait) {
            Err(CoiError::TimedOut) if force => {}
            ended => return ended,
        }
        let control = self.0.lock().links.control.clone();
        self.0.killed.store(true, Ordering::Relaxed);
        control.send_message(&ToDaemon::Destroy)?;
        self.wait(None)
    }
}

impl Inner {
    /// It ended by a signal: whoever is told of crashes is told, if it is one.
    pub(super) fn ended_by(&self, signal: i32) {
        let Some(crash) = self.crash.as_ref() else {
            return;
        };
        let meant = self.killed.load(Ordering::Relaxed) || self.lock().machine.is_swapped_out();
        if !meant {
            let Place { engine, pid, .. } = self.place();
            let error = CoiError::ProcessDied {
                pid,
                node: engine.node(),
                exit: Exit::Signal(signal),
            };
            crash(&self.name, &error);
        }
    }
}
