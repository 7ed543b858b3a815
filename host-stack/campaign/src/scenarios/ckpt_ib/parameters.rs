//! How much there is of everything.

use serde::{Deserialize, Serialize};
use snaprig_sim::{Process, Random};

use super::super::verbs;

/// Most HCAs, processes, connections, messages each way, and checkpoints of a plan.
const MOST: [u16; 5] = [8, 16, 24, 40, 8];

/// What a plan says of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Parameters {
    /// HCAs, a node each.
    pub hcas: u16,
    /// Processes of the job, spread over the HCAs.
    pub processes: u16,
    /// Connections between two processes.
    pub connections: u16,
    /// Messages each way on each connection.
    pub messages: u16,
    /// Checkpoints that are ordered.
    pub checkpoints: u16,
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            hcas: 2,
            processes: 2,
            connections: 1,
            messages: 6,
            checkpoints: 2,
        }
    }
}

impl Parameters {
    /// Those of a seed.
    pub fn drawn(random: &mut Random) -> Self {
        let mut amount = |least: u64, most: u64| (least + random.below(most - least + 1)) as u16;
        let hcas = amount(1, 4);
        let processes = match amount(0, 7) {
            0 => amount(9, 16),
            1 | 2 => amount(5, 8),
            _ => amount(2, 4),
        };
        Self {
            hcas,
            processes,
            connections: amount(1, (u64::from(processes) + 2).min(24)),
            messages: amount(1, 16),
            checkpoints: amount(1, 4),
        }
    }

    /// The same, as far as verbs alone are concerned.
    pub fn of_verbs(&self) -> verbs::Parameters {
        verbs::Parameters {
            hcas: self.hcas,
            workload: verbs::Workload {
                processes: self.processes,
                connections: self.connections,
                messages: self.messages,
            },
        }
    }

    /// HCAs and processes, as plans name them.
    pub fn processes(&self) -> Vec<Process> {
        self.of_verbs().processes()
    }

    /// What is impossible about them, if anything is.
    pub fn impossible(&self) -> Option<String> {
        let Self {
            hcas,
            processes,
            connections,
            messages,
            checkpoints,
        } = *self;
        let amounts = [hcas, processes, connections, messages];
        let fits = |(amount, most): (&u16, u16)| (1..=most).contains(amount);
        let is_possible = amounts.iter().zip(MOST).all(fits) && checkpoints <= MOST[4];
        (!is_possible).then(|| {
            format!(
                "{self:?}: 1 to {} HCAs, 1 to {} processes, 1 to {} connections, 1 to {} messages, up to {} checkpoints",
                MOST[0], MOST[1], MOST[2], MOST[3], MOST[4]
            )
        })
    }
}
