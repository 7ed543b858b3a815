//! How much there is of everything with verbs, and what a plan can name.

use serde::{Deserialize, Deserializer, Serialize};
use snaprig_sim::Process;

use snaprig_scenario::parameters::without;

/// Most HCAs, processes, connections and messages each way of a plan.
const MOST: [u16; 4] = [8, 8, 4, 40];
/// Of a workload in plans of earlier versions, what means nothing with verbs.
const MEANINGLESS: [&str; 3] = ["offloads", "buffers", "writes"];

/// What a plan says of verbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    /// HCAs: each is a card.
    #[serde(rename = "cards")]
    pub hcas: u16,
    /// What processes do.
    #[serde(default, deserialize_with = "workload")]
    pub workload: Workload,
}

/// What processes do, and how much of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Workload {
    /// Processes, spread over the HCAs.
    pub processes: u16,
    /// Connections between two processes.
    #[serde(alias = "pipelines")]
    pub connections: u16,
    /// Messages each way on each connection.
    #[serde(alias = "runs")]
    pub messages: u16,
}

impl Default for Workload {
    fn default() -> Self {
        Self {
            processes: 1,
            connections: 1,
            messages: 6,
        }
    }
}

fn workload<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Workload, D::Error> {
    without(&MEANINGLESS, deserializer)
}

impl Parameters {
    /// HCAs and processes, as plans name them.
    pub fn processes(&self) -> Vec<Process> {
        let hcas = Process::numbered("hca", self.hcas, Process::DEVICE);
        let processes = Process::numbered("process", self.workload.processes, Process::PROGRAM);
        hcas.chain(processes).collect()
    }

    /// What is impossible about them, if anything is.
    pub fn impossible(&self) -> Option<String> {
        let work = self.workload;
        let amounts = [self.hcas, work.processes, work.connections, work.messages];
        let fits = |(amount, most): (&u16, u16)| (1..=most).contains(amount);
        let [hcas, processes, connections, messages] = MOST;
        (!amounts.iter().zip(MOST).all(fits)).then(|| {
            format!(
                "{} cards, {work:?}: with verbs, 1 to {hcas} cards, 1 to {processes} \
                 processes, 1 to {connections} connections and 1 to {messages} messages",
                self.hcas
            )
        })
    }
}
