//! How much there is of everything in a job, and what a plan can name.

use serde::{Deserialize, Deserializer, Serialize};
use snaprig_sim::Process;

use super::COORDINATOR;
use snaprig_scenario::parameters::without;

/// Most agents, connections, messages each way, and checkpoints of a plan.
const MOST: [u16; 4] = [8, 8, 100, 8];
/// Of a workload in plans of earlier versions, what means nothing in a job.
const MEANINGLESS: [&str; 2] = ["offloads", "buffers"];

/// What a plan says of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    /// Plans of earlier versions say how many cards there are. A job has none.
    #[serde(default, skip_serializing)]
    pub cards: Option<u16>,
    /// What the job does.
    #[serde(default, deserialize_with = "workload")]
    pub workload: Workload,
}

/// What a job does, and how much of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Workload {
    /// Agents, each with a program.
    pub processes: u16,
    /// Connections between programs.
    #[serde(alias = "pipelines")]
    pub connections: u16,
    /// Messages each way on each connection.
    #[serde(alias = "runs")]
    pub messages: u16,
    /// Checkpoints.
    #[serde(alias = "writes")]
    pub checkpoints: u16,
}

impl Default for Workload {
    fn default() -> Self {
        Self {
            processes: 1,
            connections: 1,
            messages: 6,
            checkpoints: 2,
        }
    }
}

fn workload<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Workload, D::Error> {
    without(&MEANINGLESS, deserializer)
}

impl Parameters {
    /// The coordinator and the agents, as plans name them.
    pub fn processes(&self) -> Vec<Process> {
        [Process::new(COORDINATOR, Process::PROGRAM)]
            .into_iter()
            .chain(Process::numbered(
                "agent",
                self.workload.processes,
                Process::PROGRAM,
            ))
            .collect()
    }

    /// What is impossible about them, if anything is.
    pub fn impossible(&self) -> Option<String> {
        let work = self.workload;
        let amounts = [
            work.processes,
            work.connections,
            work.messages,
            work.checkpoints,
        ];
        let too_much = amounts
            .iter()
            .zip(MOST)
            .any(|(amount, most)| *amount > most);
        let [processes, connections, messages, checkpoints] = MOST;
        (too_much || work.processes == 0).then(|| {
            format!(
                "{work:?}: with coord, 1 to {processes} processes, up to {connections} \
                 connections, up to {messages} messages and up to {checkpoints} checkpoints"
            )
        })
    }
}
