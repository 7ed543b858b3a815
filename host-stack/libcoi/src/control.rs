//! Snapify from outside: `snaprig` can pause, capture and migrate the program's process, which knows
//! nothing of it.

use std::sync::Mutex;

use snaprig_snapify::control::{Service, serve};

use crate::{handles::lock, process::oldest, trace, types::Handle};

/// For one process of the program at a time: that is how many it can name.
static SERVICE: Mutex<Option<(Handle, Service)>> = Mutex::new(None);

/// The oldest process can be paused, captured and so on, if none can yet.
pub fn offer() {
    let mut service = lock(&SERVICE);
    if service.is_some() {
        return;
    }
    let Some((handle, entry)) = oldest() else {
        return;
    };
    match serve(&entry.process.engine().rig(), &entry.process) {
        Ok(serving) => *service = Some((handle, serving)),
        // The program does not need it.
        Err(error) => trace::say(|| format!("Snapify cannot control this program: {error}")),
    }
}

/// This process is gone: the next is controlled.
pub fn gone(gone: Handle) {
    let ended = {
        let mut service = lock(&SERVICE);
        match service.take() {
            Some((handle, serving)) if handle == gone => Some(serving),
            other => {
                *service = other;
                None
            }
        }
    };
    if ended.is_some() {
        // It may have a command to wait for.
        drop(ended);
        offer();
    }
}
