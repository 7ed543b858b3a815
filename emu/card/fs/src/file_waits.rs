//! Who waits in a call for a file that is not open yet, or for a lock: what is left of an attempt for the next one.

use std::{collections::BTreeMap, sync::Arc};

use snaprig_card_driver::{file::File, wait::Channel};

use crate::{files::pipe::PipeEnd, locks::LockWaits};

/// What threads wait for, by thread.
#[derive(Default)]
pub struct FileWaits {
    /// Ends of FIFOs whose open(2) waits for the other end.
    pub opening: BTreeMap<i32, Arc<PipeEnd>>,
    /// Who waits for whose record locks.
    pub locks: LockWaits,
}

impl FileWaits {
    /// The thread will not go on with its open(2), or its wait for a lock.
    pub fn abandon(&mut self, tid: i32, wake: &mut dyn FnMut(Channel)) {
        self.locks.forget(tid);
        if let Some(end) = self.opening.remove(&tid) {
            end.release(wake);
        }
    }
}
