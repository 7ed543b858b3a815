//! Descriptors on their way through a Unix socket (unix(7), SCM_RIGHTS).

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use snaprig_card_driver::{errno::Errno, wait::Channel};

use crate::table::{self, Open};

/// Most descriptors of one message (SCM_MAX_FD).
const MESSAGE_MAX: usize = 253;
/// Most descriptors of a card that are on their way. Sockets that were sent through each other and
/// closed are never freed; this bounds what they cost.
const IN_FLIGHT_MAX: usize = 4096;
/// How many descriptors are on their way on one card.
pub type InFlight = Arc<AtomicUsize>;

/// The descriptors of one message.
pub struct Passed {
    files: Vec<Arc<Open>>,
    in_flight: InFlight,
}

impl Passed {
    /// Some that are on their way; ETOOMANYREFS if there are too many of them already.
    pub fn new(files: Vec<Arc<Open>>, in_flight: &InFlight) -> Result<Self, Errno> {
        if files.len() > MESSAGE_MAX {
            return Err(Errno::EINVAL);
        }
        if in_flight.load(Ordering::Relaxed) + files.len() > IN_FLIGHT_MAX {
            return Err(Errno::ETOOMANYREFS);
        }
        in_flight.fetch_add(files.len(), Ordering::Relaxed);
        Ok(Self {
            files,
            in_flight: in_flight.clone(),
        })
    }

    /// What is on its way.
    pub fn files(&self) -> &[Arc<Open>] {
        &self.files
    }

    /// They have arrived.
    pub fn into_files(mut self) -> Vec<Arc<Open>> {
        let files = std::mem::take(&mut self.files);
        self.in_flight.fetch_sub(files.len(), Ordering::Relaxed);
        files
    }
}

impl Drop for Passed {
    fn drop(&mut self) {
        self.in_flight
            .fetch_sub(self.files.len(), Ordering::Relaxed);
    }
}

/// Descriptors that nobody will get are closed.
pub fn release(passed: impl IntoIterator<Item = Passed>, wake: &mut dyn FnMut(Channel)) {
    for open in passed.into_iter().flat_map(Passed::into_files) {
        table::release(open, wake);
    }
}
