//! What the channels of case 4 have carried: for every host process and pipeline, how many run
//! functions were sent and how many results were received, as the wire saw it, whatever the
//! machines believe. The other half, what an offload process has received and sent, is in the
//! process, and in its image.
//!
//! A snapshot is one process's part of a global state. With the other part, the host process as it
//! was while it was paused, it must be a consistent cut: nothing was received in it that was not
//! sent in it (Chandy, Lamport, "Distributed snapshots", ACM TOCS 1985); and, since Snapify saves no
//! channels, nothing was sent that was not received (paper section 3: the channels are empty).

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    invariants,
    state::{HostId, ledger::Counts},
    world::World,
};

impl World {
    /// A process of this host is saved, or comes back: with its host as it is now, the state must be
    /// consistent.
    pub(super) fn check_cut(&mut self, host: HostId, when: &str, sink: &BTreeMap<u32, Counts>) {
        let known = self.ledger.0.keys().filter(|(of, _)| *of == host);
        let known = known.map(|(_, pipeline)| *pipeline);
        let pipelines: BTreeSet<_> = known.chain(sink.keys().copied()).collect();
        for pipeline in pipelines {
            let host_end = *self.ledger.of(host, pipeline);
            let sink_end = sink.get(&pipeline).copied().unwrap_or_default();
            let flows = [
                ("run functions", host_end.sent, sink_end.received),
                ("results", sink_end.sent, host_end.received),
            ];
            for (what, sent, received) in flows {
                if sent != received {
                    let how = format!(
                        "{when}, pipeline {pipeline}: {sent} {what} were sent, {received} received"
                    );
                    self.violation(invariants::CUT, how);
                }
            }
        }
    }
}
