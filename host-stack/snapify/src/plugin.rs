//! Checkpoints of whole offload applications (paper section 5, checkpoint and restart): what a checkpoint of the host
//! process calls within it. The paper has BLCR call it; here it is a plugin of `snaprig ckpt`.
//!
//! ```text
//! quiesce: nobody begins anything
//! save:    every offload process: pause, capture into the checkpoint's directory --> what leads to the rig is not saved
//! resume:  every offload process: resume
//! rebuild: the rig that SNAPRIG_RIG names now --> every offload process: restore
//! go:      every offload process: resume
//! ```
//! Resumed, a program goes on with the connections that it had. Restarted, it has lost them all, as if the rig had gone
//! while every process was paused; then its processes come back on the same cards of another rig.
//!
//! What must stay true: from save to resume or go every offload process is paused, and nobody who does not
//! belong to this talks to the rig.

use std::{
    path::Path,
    sync::{Arc, Mutex, OnceLock},
    thread,
    time::Duration,
};

use snaprig_ckpt_plugin::{Event, Options, Plugin};
use snaprig_coi::{Process, quiesce};
use snaprig_scif::checkpoint;

use crate::{Snapify, SnapifyError, control, control::lock};

/// Time to capture or restore all processes.
const PATIENCE: Duration = Duration::from_secs(600);
/// What names the rig.
const RIG: &str = "SNAPRIG_RIG";

/// Has checkpoints of this process be those of its offload processes, too. Without a supervisor there are none.
pub fn register() {
    static ONCE: OnceLock<()> = OnceLock::new();
    ONCE.get_or_init(|| {
        let options = Options {
            patience: PATIENCE,
            ..Options::new("snapify")
        };
        match snaprig_ckpt_plugin::register(options, Arc::new(Offload::default())) {
            Ok(registered) => registered.forget(),
            Err(error) => tracing::warn!(%error, "no checkpoints of offload processes"),
        }
    });
}

/// The offload processes that are paused.
#[derive(Default)]
struct Offload(Mutex<Vec<Paused>>);

struct Paused {
    process: Process,
    snapify: Snapify,
}

impl Paused {
    /// Snapshots are called by the numbers of their processes.
    fn name(&self) -> String {
        self.process.id().to_string()
    }
}

impl Offload {
    fn capture(&self, directory: &Path) -> Result<(), String> {
        let mut paused = lock(&self.0);
        for process in quiesce::living() {
            let snapify = Snapify::of(&process);
            let one = Paused { process, snapify };
            one.snapify
                .pause(&directory.join(one.name()))
                .map_err(|error| failed("paused", &one, &error))?;
            paused.push(one);
        }
        // All at once.
        for one in paused.iter() {
            let begun = one.snapify.capture(false);
            begun.map_err(|error| failed("captured", one, &error))?;
        }
        for one in paused.iter() {
            let captured = one.snapify.wait(None);
            captured.map_err(|error| failed("captured", one, &error))?;
        }
        Ok(())
    }

    /// All go on that were paused.
    fn release(&self) {
        for one in lock(&self.0).drain(..) {
            // A capture that nobody has waited for, because another had failed.
            let _ = one.snapify.wait(None);
            if let Err(error) = one.snapify.resume() {
                // Its card or its process has died meanwhile; whoever waits for it is told.
                tracing::warn!(%error, process = one.process.id(), "not resumed");
                quiesce::release(&one.process);
            }
        }
        checkpoint::come_back();
    }

    fn restore(&self, directory: &Path) -> Result<(), String> {
        let paused = lock(&self.0);
        let restore = |one: &Paused| {
            let snapshot = directory.join(one.name());
            let engine = one.process.engine();
            let restored = one.snapify.restore_from(&snapshot, &engine);
            restored.map_err(|error| failed("restored", one, &error))?;
            let watched = quiesce::watch_anew(&one.process);
            watched.map_err(|error| failed("watched", one, &error.into()))
        };
        // All at once: each is on its way through a card for most of the time.
        thread::scope(|scope| {
            let threads: Vec<_> = paused
                .iter()
                .map(|one| scope.spawn(|| restore(one)))
                .collect();
            let ends = threads.into_iter().map(|thread| {
                let panicked = |panic| std::panic::resume_unwind(panic);
                thread.join().unwrap_or_else(panicked)
            });
            ends.collect::<Result<Vec<()>, String>>()
        })?;
        Ok(())
    }
}

fn failed(what: &str, one: &Paused, error: &SnapifyError) -> String {
    let node = one.process.engine().node();
    format!("the offload process on card {node} cannot be {what}: {error}")
}

impl Plugin for Offload {
    fn quiesce(&self, _: &mut Event) -> Result<(), String> {
        checkpoint::leave();
        Ok(())
    }

    fn save(&self, event: &mut Event) -> Result<(), String> {
        let directory = event.directory().map_err(|error| error.to_string());
        let captured = directory.and_then(|directory| self.capture(&directory));
        captured?;
        for fd in checkpoint::leading() {
            event.own_descriptor(fd);
        }
        for (start, bytes) in checkpoint::memory() {
            event.own_region(start, bytes);
        }
        Ok(())
    }

    fn resume(&self, _: &mut Event) {
        self.release();
    }

    fn rebuild(&self, event: &mut Event) -> Result<(), String> {
        checkpoint::empty_memory().map_err(|error| error.to_string())?;
        if let Some(rig) = event.variable(RIG) {
            checkpoint::moved_to(rig.into());
        }
        let directory = event.directory().map_err(|error| error.to_string())?;
        self.restore(&directory)?;
        if let Err(error) = control::serve_again() {
            // The program does not need it.
            tracing::warn!(%error, "Snapify cannot control this program any more");
        }
        Ok(())
    }

    fn go(&self, _: &mut Event) {
        self.release();
    }
}
