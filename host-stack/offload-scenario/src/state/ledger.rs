//! What was sent and received, as the wire saw it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::HostId;

/// How much went one way and came from the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    pub sent: u64,
    pub received: u64,
}

/// Of every host process and pipeline.
#[derive(Clone, Debug, Default)]
pub struct Ledger(pub BTreeMap<(HostId, u32), Counts>);

impl Ledger {
    /// Of one pipeline, at the host's end.
    pub fn of(&mut self, host: HostId, pipeline: u32) -> &mut Counts {
        self.0.entry((host, pipeline)).or_default()
    }
}
