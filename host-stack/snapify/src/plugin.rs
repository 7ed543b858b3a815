//! Checkpoints of whole offload applications (paper section 5, checkpoint and restart): what a checkpoint of the host
//! process calls within it. The paper has BLCR call it; here it is a plugin of `snaprig ckpt`.
//!
//! ```text
//! quiesce: (for a short pause: every offload process is copied while it works); then nobody begins anything
//! save:    every offload process: pause; all cards: begin to capture into the checkpoint's directory
//!          --> what leads to the rig is not saved
//!          (the host process is saved, and goes on; if it is to end, it is saved when all cards have done)
//! finish:  all cards have captured
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

/// What becomes of the offload processes in a checkpoint.
#[derive(Default)]
struct Offload {
    paused: Mutex<Vec<Paused>>,
    /// Copies were made of these, whether they have been paused since or not.
    copied: Mutex<Vec<Paused>>,
}

struct Paused {
    process: Process,
    snapify: Snapify,
}

impl From<Process> for Paused {
    fn from(process: Process) -> Self {
        let snapify = Snapify::of(&process);
        Self { process, snapify }
    }
}

impl Paused {
    /// Snapshots are called by the numbers of their processes.
    fn name(&self) -> String {
        self.process.id().to_string()
    }
}

impl Offload {
    /// Has the cards of all begin to capture them.
    fn capture(&self, directory: &Path) -> Result<(), String> {
        let mut paused = lock(&self.paused);
        for process in quiesce::living() {
            let one = Paused::from(process);
            one.snapify
                .pause(&directory.join(one.name()))
                .map_err(|error| failed("paused", &one, &error))?;
            paused.push(one);
        }
        // All at once.
        for one in paused.iter() {
            let begun = one.snapify.ask_to_capture();
            begun.map_err(|error| failed("captured", one, &error))?;
        }
        Ok(())
    }

    /// All cards have captured.
    fn finish_capture(&self) -> Result<(), String> {
        for one in lock(&self.paused).iter() {
            let captured = one.snapify.finish_capture();
            captured.map_err(|error| failed("captured", one, &error))?;
        }
        Ok(())
    }

    /// All go on that were paused.
    fn release(&self) {
        for one in lock(&self.copied).drain(..) {
            // If it has ended, so have they.
            let _ = one.snapify.forget_copies();
        }
        for one in lock(&self.paused).drain(..) {
            // A capture that nobody has waited for, because another had failed.
            let _ = one.snapify.finish_capture();
            if let Err(error) = one.snapify.resume() {
                // Its card or its process has died meanwhile; whoever waits for it is told.
                tracing::warn!(%error, process = one.process.id(), "not resumed");
                quiesce::release(&one.process);
            }
        }
        checkpoint::come_back();
    }

    fn restore(&self, directory: &Path) -> Result<(), String> {
        let paused = lock(&self.paused);
        let restore = |one: &Paused| {
            one.snapify.captured_meanwhile();
            let snapshot = directory.join(one.name());
            let engine = one.process.engine();
            let restored = one.snapify.restore_from(&snapshot, &engine);
            restored.map_err(|error| failed("restored", one, &error))?;
            let watched = quiesce::watch_anew(&one.process);
            watched.map_err(|error| failed("watched", one, &error.into()))
        };
        let all = at_once(&paused, restore);
        all.into_iter().collect()
    }

    /// Has most of what a pause is to save be saved before it.
    fn copy_ahead(&self, directory: &Path) {
        let all: Vec<_> = quiesce::living().into_iter().map(Paused::from).collect();
        let copied = at_once(&all, |one| {
            one.snapify.copy(&directory.join(one.name()), None)
        });
        for (one, copied) in all.iter().zip(copied) {
            if let Err(error) = copied {
                // It stands still for all of it then.
                tracing::debug!(%error, process = one.process.id(), "not copied ahead");
            }
        }
        *lock(&self.copied) = all;
    }
}

/// Does this for all at once: each is on its way through a card for most of the time.
fn at_once<T: Send>(all: &[Paused], work: impl Fn(&Paused) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let threads: Vec<_> = all.iter().map(|one| scope.spawn(|| work(one))).collect();
        let ends = threads.into_iter().map(|thread| {
            let panicked = |panic| std::panic::resume_unwind(panic);
            thread.join().unwrap_or_else(panicked)
        });
        ends.collect()
    })
}

fn failed(what: &str, one: &Paused, error: &SnapifyError) -> String {
    let node = one.process.engine().node();
    format!("the offload process on card {node} cannot be {what}: {error}")
}

impl Plugin for Offload {
    fn quiesce(&self, event: &mut Event) -> Result<(), String> {
        if event.is_to_copy_ahead() {
            let directory = event.directory().map_err(|error| error.to_string())?;
            self.copy_ahead(&directory);
        }
        checkpoint::leave();
        Ok(())
    }

    fn save(&self, event: &mut Event) -> Result<(), String> {
        let directory = event.directory().map_err(|error| error.to_string());
        self.capture(&directory?)?;
        if !event.finish_later() {
            self.finish_capture()?;
        }
        let files = lock(&self.paused)
            .iter()
            .flat_map(|one| one.snapify.open_for_capture())
            .collect::<Vec<_>>();
        for fd in checkpoint::leading().into_iter().chain(files) {
            event.own_descriptor(fd);
        }
        for (start, bytes) in checkpoint::memory() {
            event.own_region(start, bytes);
        }
        Ok(())
    }

    fn finish(&self, _: &mut Event) -> Result<(), String> {
        self.finish_capture()
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
