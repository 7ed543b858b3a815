//! How many trees there are, how large their images and the pools are, and which way chunks go.

use serde::{Deserialize, Serialize};
use snaprig_ppmr::Mode;
use snaprig_sim::Process;

/// Most sources, processes of each, bytes of an image, chunks that are shared, steps and orders.
const MOST: [u16; 6] = [4, 4, 4000, 64, 1000, 8];

/// What a plan says of pipelines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Parameters {
    /// Source nodes, with a tree each.
    pub sources: u16,
    /// Processes of each tree.
    pub processes: u16,
    /// The longest image of a process, in bytes.
    pub bytes: u16,
    /// Chunks of each pool, beside one for each stream.
    pub chunks: u16,
    /// Streams for which the target has too little memory.
    pub lacking: u16,
    /// Which way chunks go.
    pub mode: Mode,
    /// Whether there is a slow reader.
    pub slow: bool,
    /// Steps of each program.
    pub steps: u16,
    /// How often each tree is told to move, until it has.
    pub orders: u16,
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            sources: 2,
            processes: 2,
            bytes: 60,
            chunks: 2,
            lacking: 0,
            mode: Mode::Pull,
            slow: false,
            steps: 8,
            orders: 2,
        }
    }
}

impl Parameters {
    /// Nodes and buffer managers, as plans name them.
    pub fn all_processes(&self) -> Vec<Process> {
        let one = |name, kinds| std::iter::once(Process::new(name, kinds));
        Process::numbered("source", self.sources, Process::MACHINE)
            .chain(Process::numbered("sender", self.sources, Process::PROGRAM))
            .chain(one("target", Process::MACHINE))
            .chain(one("receiver", Process::PROGRAM))
            .collect()
    }

    /// Streams of all trees.
    pub fn streams(&self) -> u32 {
        u32::from(self.sources) * u32::from(self.processes)
    }

    /// Streams for which the target has memory.
    pub fn streams_max(&self) -> u32 {
        self.streams().saturating_sub(self.lacking.into())
    }

    /// What is impossible about them, if anything is.
    pub fn impossible(&self) -> Option<String> {
        let [sources, processes, bytes, chunks, steps, orders] = MOST;
        let fits = (1..=sources).contains(&self.sources)
            && (1..=processes).contains(&self.processes)
            && self.bytes <= bytes
            && self.chunks <= chunks
            && u32::from(self.lacking) < self.streams()
            && (1..=steps).contains(&self.steps)
            && self.orders <= orders;
        (!fits).then(|| {
            format!(
                "{self:?}: 1 to {sources} sources with 1 to {processes} processes of up to {bytes} bytes, up to {chunks} \
                 chunks, memory for one stream, 1 to {steps} steps and up to {orders} orders"
            )
        })
    }
}
