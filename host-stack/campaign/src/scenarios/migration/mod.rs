//! A tree that migrates: two supervisors with the machines of [`snaprig_coord::migration`], their disks, a link
//! between them, and a program that counts. Whoever dies is started again, some time.
//!
//! ```text
//!   operator -----> "source" ============= "target"        tells the source to migrate; starts what has died
//!                     |    \  messages, image  |  \
//!                    disk   tree              disk  tree   records that are kept when they are synced
//! ```
//!
//! The seed decides when the tree is to move, how long anything takes, and whether a death is that of a process, or
//! of its machine with all that was not synced.
//!
//! | module | what it is |
//! |---|---|
//! | [`parameters`] | how long the program is, how often it is told to move |
//! | `program` | what migrates |
//! | `world` | the system: who there is, what happens, who dies and is started again |
//! | `source`, `target` | what a supervisor does that its machine says |
//! | `net` | the connection between them, and what goes wrong on it |
//! | `records` | what they write down |
//! | [`canary`] | planted bugs |
//! | [`invariants`] | what must be true of every run |
//! | `draw` | plans from a seed, and those in which everything is tried |

pub mod canary;
mod draw;
pub mod invariants;
mod net;
pub mod parameters;
pub(super) mod program;
mod records;
mod source;
mod target;
mod world;

use snaprig_coord::migration::faults;
use snaprig_sim::{Fault, Parameters as Fixed, Plan, Point, Process, Random, shrink::Amount};

pub use self::{canary::Canary, parameters::Parameters};
use crate::scenario::{Invariant, Outcome, Scenario, Watch};

/// What plans call it. ("migrate" is a variant of the offload stack.)
pub const SCENARIO: &str = "migration";

/// What there is to know of a run's end.
#[derive(Debug, Default)]
pub struct Ended {
    /// What the program has come to: once.
    pub results: Vec<u64>,
    /// Whether the tree has moved.
    pub has_moved: bool,
}

/// A migration, as a scenario.
#[derive(Clone, Copy, Debug)]
pub struct Migration;

impl Scenario for Migration {
    type Parameters = Parameters;
    type Canary = Canary;
    type End = Ended;

    fn names(&self) -> &'static [&'static str] {
        &[SCENARIO]
    }

    fn points(&self) -> &'static [Point] {
        faults::ALL
    }

    fn processes(&self, _: &Parameters) -> Vec<Process> {
        Parameters::processes()
    }

    fn parameters(&self, random: &mut Random) -> Parameters {
        draw::parameters(random)
    }

    fn run(&self, plan: &Plan, parameters: &Parameters, watch: Watch<Canary>) -> Outcome<Ended> {
        world::World::new(plan, parameters, watch).finish()
    }

    fn invariants(&self) -> &'static [Invariant<Ended>] {
        &invariants::ALL
    }

    fn impossible(&self, parameters: &Parameters) -> Option<String> {
        parameters.impossible()
    }

    fn amounts(&self) -> &'static [Amount<'static>] {
        &draw::AMOUNTS
    }

    fn draw(&self, seed: u64, fixed: &Fixed) -> Plan {
        draw::draw(seed, fixed)
    }

    fn undisturbed(&self) -> Vec<Plan> {
        draw::undisturbed()
    }

    fn deaths(&self, _: &Plan) -> Vec<Fault> {
        draw::deaths_at_steps(&Parameters::processes())
    }
}
