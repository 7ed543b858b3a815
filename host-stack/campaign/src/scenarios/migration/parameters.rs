//! How long the program is, and how often it is to move.

use serde::{Deserialize, Serialize};
use snaprig_sim::Process;

/// Most steps, and most orders.
const MOST: [u16; 2] = [1000, 8];

/// What a plan says of a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Parameters {
    /// Steps of the program.
    pub steps: u16,
    /// How often it is told to move, until it has.
    pub orders: u16,
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            steps: 12,
            orders: 2,
        }
    }
}

impl Parameters {
    /// Both supervisors, as plans name them.
    pub fn processes() -> Vec<Process> {
        let names = ["source", "target"];
        names
            .map(|name| Process::new(name, Process::MACHINE))
            .into()
    }

    /// What is impossible about them, if anything is.
    pub fn impossible(&self) -> Option<String> {
        let [steps, orders] = MOST;
        let fits = (1..=steps).contains(&self.steps) && self.orders <= orders;
        (!fits).then(|| format!("{self:?}: 1 to {steps} steps and up to {orders} orders"))
    }
}
