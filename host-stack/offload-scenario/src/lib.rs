//! The offload stack: a rig (the host's SCIF node, the Snapify-IO daemon and the disk), host processes,
//! and cards, each with a SCIF node, a COI daemon and offload processes.
//!
//! ```text
//!  process "rig"                   "host", "host2", ...    "card1", "card2", ...
//!    node 0 <---- endpoints ----->  COI, Snapify
//!      ^  '------- Snapify-IO server, disk
//!      '--------------- links ----------------------------> node n
//!                                                             '-- daemon, offload processes,
//!                                                                 Snapify-IO requesters
//! ```
//!
//! Each endpoint is a lane of the engine, as is each pair of nodes: what is heard on one endpoint
//! keeps its order, everything else comes in the order that the seed draws.
//!
//! | module | what it is |
//! |---|---|
//! | `state` | what there is, by who has it; `state/sockets`: SCIF for the programs of one node |
//! | `world`, `system` | all of it in one; what happens to whom, and what dies with whom |
//! | `host` | a host process's end of an offload process: its connections, Snapify |
//! | `app` | its application, which uses COI, and COI's graph of operations |
//! | `script` | snapshots of an offload process, while the application works |
//! | `card` | a COI daemon |
//! | `sink` | an offload process |
//! | `io` | Snapify-IO, both ends |
//! | `network` | nodes, links, endpoints |
//! | `ledger` | what was sent and received, for the consistency of snapshots |
//! | [`parameters`] | how much there is of everything |
//! | [`variants`] | which snapshots are taken: the names under which plans ask for this scenario |
//! | `end` | how a run ends |
//! | `draw` | plans from a seed, and those in which everything is tried |
//! | [`canary`] | planted bugs |
//! | [`invariants`], `check` | what must be true of every run |

mod app;
pub mod canary;
mod card;
mod check;
mod draw;
mod end;
mod host;
pub mod invariants;
mod io;
mod ledger;
mod network;
mod outcome;
pub mod parameters;
mod script;
mod sink;
mod state;
mod system;
pub mod variants;
mod world;

use snaprig_scenario::scenario::{Invariant, Outcome, Scenario, Watch};
use snaprig_sim::{Fault, Parameters as Fixed, Plan, Point, Process, Random, shrink::Amount};

use self::{canary::Canary, world::World};
pub use self::{
    outcome::{App, Ended},
    parameters::{Parameters, Workload},
    variants::Variant,
};

/// The offload stack, as a scenario.
#[derive(Clone, Copy, Debug)]
pub struct Offload;

impl Scenario for Offload {
    type Parameters = Parameters;
    type Canary = Canary;
    type End = Ended;

    fn names(&self) -> &'static [&'static str] {
        &Variant::NAMES
    }

    fn points(&self) -> &'static [Point] {
        &draw::POINTS
    }

    fn processes(&self, parameters: &Parameters) -> Vec<Process> {
        parameters.processes()
    }

    fn parameters(&self, random: &mut Random) -> Parameters {
        draw::parameters(random)
    }

    fn run(&self, plan: &Plan, parameters: &Parameters, watch: Watch<Canary>) -> Outcome<Ended> {
        World::new(plan, parameters, watch).run()
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

    fn deaths(&self, plan: &Plan) -> Vec<Fault> {
        draw::deaths(&self.processes_of(plan))
    }
}
