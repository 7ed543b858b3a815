//! How much there is of everything in the offload stack, and what a plan can name in it.

use serde::{Deserialize, Serialize};
use snaprig_sim::Process;

/// Most cards of a plan.
pub const CARDS_MAX: u16 = 32;
/// Most host processes, offload processes of each, pipelines, run functions, buffers, writes of a plan.
const WORK_MAX: [u16; 6] = [4, 4, 8, 100, 8, 100];

/// What a plan says of the offload stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    /// Cards.
    pub cards: u16,
    /// What the application does.
    #[serde(default)]
    pub workload: Workload,
}

/// What the application does, and how much of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Workload {
    /// Host processes, each with offload processes and snapshots of them.
    pub processes: u16,
    /// Offload processes of each host process, which share its buffers.
    pub offloads: u16,
    /// Pipelines of each.
    pub pipelines: u16,
    /// Run functions on each pipeline.
    pub runs: u16,
    /// Buffers of each host process.
    pub buffers: u16,
    /// How often each buffer is written, read, copied, mapped or set to a state.
    pub writes: u16,
}

impl Default for Workload {
    fn default() -> Self {
        Self {
            processes: 1,
            offloads: 1,
            pipelines: 1,
            runs: 6,
            buffers: 1,
            writes: 2,
        }
    }
}

impl Parameters {
    /// So many cards, and the usual work.
    pub fn of(cards: u16) -> Self {
        Self {
            cards,
            workload: Workload::default(),
        }
    }

    /// The system's processes, as plans name them.
    pub fn processes(&self) -> Vec<Process> {
        let hosts = (1..=self.workload.processes).map(|number| match number {
            1 => "host".into(),
            number => format!("host{number}"),
        });
        let hosts = hosts.map(|name| Process::new(name, Process::PROGRAM));
        [Process::new("rig", Process::PROGRAM)]
            .into_iter()
            .chain(hosts)
            .chain(Process::numbered("card", self.cards, Process::MACHINE))
            .collect()
    }

    /// What is impossible about them, if anything is.
    pub fn impossible(&self) -> Option<String> {
        let work = self.workload;
        let amounts = [
            work.processes,
            work.offloads,
            work.pipelines,
            work.runs,
            work.buffers,
            work.writes,
        ];
        let too_much = amounts
            .iter()
            .zip(WORK_MAX)
            .any(|(amount, most)| *amount > most);
        if !(1..=CARDS_MAX).contains(&self.cards) {
            return Some(format!("{} cards: there are 1 to {CARDS_MAX}", self.cards));
        }
        if too_much || amounts[..4].contains(&0) {
            return Some(format!(
                "{work:?}: 1 to {} processes, 1 to {} offloads, 1 to {} pipelines, 1 to {} \
                 runs, up to {} buffers and up to {} writes",
                WORK_MAX[0], WORK_MAX[1], WORK_MAX[2], WORK_MAX[3], WORK_MAX[4], WORK_MAX[5]
            ));
        }
        None
    }
}
