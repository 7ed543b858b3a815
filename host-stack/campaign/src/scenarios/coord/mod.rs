//! A job whose processes are checkpointed together. Coordinator, members and who
//! orders are the machines of `host-stack/coord`.
//!
//! ```text
//!   operator ----- coordinator ----- manifest            orders, and starts the next coordinator
//!                  /    |    \
//!            agent1  agent2  agent3 ...                  images on a disk
//!               |       |       |
//!           program1--program2--program3 ...             numbered messages over connections
//! ```
//!
//! The seed decides who is connected with whom, when programs send, and of which kind a checkpoint is.
//!
//! A run has three parts: programs work and are checkpointed while things go wrong; nothing goes wrong
//! any more, and there is a checkpoint of all that live; all is killed, and the last complete
//! checkpoint is restarted and runs to its end.
//!
//! | module | what it is |
//! |---|---|
//! | [`parameters`] | how much there is of everything |
//! | `program` | what is checkpointed: numbered messages over connections |
//! | `agent` | takes a program through the phases |
//! | `keeper` | the coordinator's process, and its manifests |
//! | `operator` | orders, and looks after what has died |
//! | `net` | connections between machines, and what goes wrong on them |
//! | `cut` | whether a checkpoint is whole, and one moment of the job |
//! | `run` | one run of a plan |
//! | `system` | from its start to its end |
//! | [`canary`] | planted bugs |
//! | [`invariants`] | what must be true of every run |
//! | `draw` | plans from a seed, and those in which everything is tried |

mod agent;
pub mod canary;
mod cut;
mod draw;
pub mod invariants;
mod keeper;
mod net;
mod operator;
pub mod parameters;
mod program;
mod run;
mod system;

use snaprig_coord::faults;
use snaprig_sim::{Fault, Parameters as Fixed, Plan, Point, Process, Random, shrink::Amount};

pub use self::{
    canary::Canary,
    parameters::{Parameters, Workload},
};
use crate::scenario::{Invariant, Outcome, Scenario, Watch};

/// What plans call it.
pub const SCENARIO: &str = "coord";
/// The coordinator's process.
pub const COORDINATOR: &str = "coordinator";

/// A job, as a scenario.
#[derive(Clone, Copy, Debug)]
pub struct Coord;

impl Scenario for Coord {
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
        parameters.processes()
    }

    fn parameters(&self, random: &mut Random) -> Parameters {
        draw::parameters(random)
    }

    fn run(&self, plan: &Plan, parameters: &Parameters, watch: Watch<Canary>) -> Outcome<()> {
        run::World::new(plan, parameters, watch).finish()
    }

    fn invariants(&self) -> &'static [Invariant<()>] {
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

    fn deaths(&self, plan: &Plan) -> Vec<Fault> {
        draw::deaths_in_phases(&self.processes_of(plan))
    }
}
