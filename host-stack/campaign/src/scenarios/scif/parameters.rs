//! How much there is of everything with SCIF, and what a plan can name.

use serde::{Deserialize, Deserializer, Serialize};
use snaprig_sim::Process;
use snaprig_wire::scif::NodeId;

use snaprig_scenario::parameters::without;

/// Most cards, programs on a node, pairs of programs, sends, windows and RMA of a plan.
const MOST: [u16; 6] = [8, 4, 8, 40, 8, 40];
/// Of a workload in plans of earlier versions, what means nothing with SCIF.
const MEANINGLESS: [&str; 1] = ["offloads"];

/// What a plan says of SCIF.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    /// Cards.
    pub cards: u16,
    /// What programs do.
    #[serde(default, deserialize_with = "workload")]
    pub workload: Workload,
}

/// What programs do, and how much of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Workload {
    /// Programs on each node.
    pub processes: u16,
    /// Pairs of programs that connect with each other.
    #[serde(alias = "pipelines")]
    pub pairs: u16,
    /// Sends of each side of a connection.
    #[serde(alias = "runs")]
    pub sends: u16,
    /// Windows of each side.
    #[serde(alias = "buffers")]
    pub windows: u16,
    /// RMA of each side.
    #[serde(alias = "writes")]
    pub copies: u16,
}

impl Default for Workload {
    fn default() -> Self {
        Self {
            processes: 1,
            pairs: 1,
            sends: 6,
            windows: 1,
            copies: 2,
        }
    }
}

fn workload<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Workload, D::Error> {
    without(&MEANINGLESS, deserializer)
}

impl Parameters {
    /// How many programs there are.
    pub fn programs(&self) -> usize {
        usize::from(self.workload.processes) * (usize::from(self.cards) + 1)
    }

    /// The node on which a program runs.
    pub fn node_of(&self, program: usize) -> NodeId {
        (program % (usize::from(self.cards) + 1)) as NodeId
    }

    /// Nodes and programs, as plans name them.
    pub fn processes(&self) -> Vec<Process> {
        let programs = (1..=self.programs())
            .map(|number| Process::new(format!("program{number}"), Process::PROGRAM));
        [Process::new("rig", Process::PROGRAM)]
            .into_iter()
            .chain(Process::numbered("card", self.cards, Process::MACHINE))
            .chain(programs)
            .collect()
    }

    /// What is impossible about them, if anything is.
    pub fn impossible(&self) -> Option<String> {
        let work = self.workload;
        let needed = [self.cards, work.processes, work.pairs, work.sends];
        let amounts = [needed.as_slice(), &[work.windows, work.copies]].concat();
        let too_much = amounts
            .iter()
            .zip(MOST)
            .any(|(amount, most)| *amount > most);
        let [cards, processes, pairs, sends, windows, copies] = MOST;
        (too_much || needed.contains(&0)).then(|| {
            format!(
                "{} cards, {work:?}: with scif, 1 to {cards} cards, 1 to {processes} \
                 processes, 1 to {pairs} pairs, 1 to {sends} sends, up to {windows} windows and \
                 up to {copies} copies",
                self.cards
            )
        })
    }
}
