//! Snapify from outside: `snaprig snapify` can pause, capture and migrate the program's processes, which know nothing of
//! it.

use std::sync::{Arc, Mutex};

use snaprig_snapify::control::{Controlled, Service};

use crate::{handles::lock, trace};

/// It is there from the first process on, for as long as the program is. A child of fork(2) makes no calls ([`crate::fork`]).
static SERVICE: Mutex<Option<Service>> = Mutex::new(None);

/// This process can be controlled.
pub fn offer(process: &Arc<Controlled>) {
    let mut service = lock(&SERVICE);
    if let Some(service) = &*service {
        return service.add(process);
    }
    match Service::start(&process.process().engine().rig(), process) {
        Ok(started) => *service = Some(started),
        // The program does not need it.
        Err(error) => trace::say(|| format!("Snapify cannot control this program: {error}")),
    }
}

/// This process is gone; a command for it that is under way is waited for.
pub fn gone(process: &Arc<Controlled>) {
    if let Some(service) = &*lock(&SERVICE) {
        service.remove(process);
    }
    process.end();
}
