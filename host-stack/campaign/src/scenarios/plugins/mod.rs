//! Plugins of checkpoints: programs in several trees send each other numbered messages that only their plugins can
//! save, and are checkpointed and restarted. The supervisors' machines and the board are those of `host-stack/coord`.
//!
//! ```text
//!                 job: barriers between phases, the board
//!               /                  |                  \
//!           tree1                tree2               tree3 ...     supervisors, a machine each
//!          /     \              /     \
//!   program1   program2   program3   program4 ...                  a plugin each
//!       '--messages--'--messages--'--messages--'--> program1       a ring of what is on its way
//! ```
//!
//! Before a checkpoint every program stops sending (quiesce), waits for what is on its way to it (drain: how much that
//! is, its neighbour publishes), and saves what it has seen. In a restart each publishes a new address (rebuild) and
//! looks up its neighbours' (exchange).
//!
//! A program that ends takes with it what it had on its way. A checkpoint in which others could wait for that is given up and
//! tried again, of the rest. What is restarted is the last checkpoint of all.
//!
//! A run has three parts: programs work and are checkpointed while things go wrong; all is killed, and the last complete
//! checkpoint is restarted, while things go wrong; it is restarted once more, nothing goes wrong, and all end.
//!
//! | module | what it is |
//! |---|---|
//! | `program` | a program, its plugin, and the ring |
//! | `tree` | a supervisor |
//! | `job` | who takes all trees through the phases |
//! | `run` | one run of a plan |
//! | [`canary`] | planted bugs |
//! | [`invariants`] | what must be true of every run |

pub mod canary;
pub mod invariants;
mod job;
mod program;
mod run;
mod tree;

use serde::{Deserialize, Serialize};
use snaprig_coord::plugins::faults;
use snaprig_sim::{Plan, Point, Process, Random, shrink::Amount};

pub use self::canary::Canary;
use crate::scenario::{Invariant, Outcome, Scenario, Watch};

/// What plans call it.
pub const SCENARIO: &str = "plugins";
/// Most trees, programs of each, messages of each, and checkpoints of a plan.
const MOST: [u16; 4] = [6, 6, 100, 8];

/// How much there is of everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Parameters {
    /// Trees, a supervisor each.
    pub trees: u16,
    /// Programs of each tree.
    pub programs: u16,
    /// Messages that each program sends.
    pub messages: u16,
    /// Checkpoints that are ordered.
    pub checkpoints: u16,
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            trees: 2,
            programs: 2,
            messages: 6,
            checkpoints: 2,
        }
    }
}

/// Plugins of checkpoints, as a scenario.
#[derive(Clone, Copy, Debug)]
pub struct Plugins;

impl Scenario for Plugins {
    type Parameters = Parameters;
    type Canary = Canary;
    type End = ();

    fn names(&self) -> &'static [&'static str] {
        &[SCENARIO]
    }

    fn points(&self) -> &'static [Point] {
        faults::ALL
    }

    fn processes(&self, parameters: &Parameters) -> Vec<Process> {
        let programs = parameters.trees.saturating_mul(parameters.programs);
        let trees = Process::numbered("tree", parameters.trees, Process::PROGRAM);
        let programs = Process::numbered("program", programs, Process::PROGRAM);
        trees.into_iter().chain(programs).collect()
    }

    fn parameters(&self, random: &mut Random) -> Parameters {
        let mut amount = |least: u64, most: u64| (least + random.below(most - least + 1)) as u16;
        Parameters {
            trees: amount(1, 3),
            programs: amount(1, 3),
            messages: amount(1, 20),
            checkpoints: amount(1, 3),
        }
    }

    fn run(&self, plan: &Plan, parameters: &Parameters, watch: Watch<Canary>) -> Outcome<()> {
        run::World::new(plan, parameters, watch).finish()
    }

    fn invariants(&self) -> &'static [Invariant<()>] {
        &invariants::ALL
    }

    fn impossible(&self, parameters: &Parameters) -> Option<String> {
        let Parameters {
            trees,
            programs,
            messages,
            checkpoints,
        } = *parameters;
        let amounts = [trees, programs, messages, checkpoints];
        let too_much = amounts.iter().zip(MOST).any(|(one, most)| *one > most);
        (too_much || trees == 0 || programs == 0).then(|| {
            format!("{parameters:?}: 1 to 6 trees of 1 to 6 programs, up to 100 messages and up to 8 checkpoints")
        })
    }

    fn amounts(&self) -> &'static [Amount<'static>] {
        &[
            Amount {
                path: &["trees"],
                least: 1,
            },
            Amount {
                path: &["programs"],
                least: 1,
            },
            Amount {
                path: &["checkpoints"],
                least: 0,
            },
            Amount {
                path: &["messages"],
                least: 1,
            },
        ]
    }

    fn undisturbed(&self) -> Vec<Plan> {
        vec![Plan::new(0, SCENARIO).with(&Parameters::default())]
    }
}
