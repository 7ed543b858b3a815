//! SCIF: programs that use it themselves, on the nodes of a host and its cards. The
//! nodes are those of `host-stack/scif`, the links between them those of the offload stack.
//!
//! ```text
//!  "program1" "program4"     "program2" ..   "program3" ..     drawn work: connections, streams,
//!        \     /                  |               |            windows, RMA
//!       node 0, "rig" ------- "card1" ------- "card2" ...      (all messages by way of node 0)
//! ```
//!
//! The seed decides who connects with whom, sizes, offsets, and who gives up or leaves.
//!
//! | module | what it is |
//! |---|---|
//! | [`parameters`] | how much there is of everything |
//! | `work` | what programs do |
//! | `program` | programs that do it: each side of a connection sends, receives and moves at once |
//! | `told` | what they make of how their calls have ended |
//! | `stream` | bytes that say where they belong |
//! | `calls` | calls, and what becomes of them |
//! | `rma` | RMA and signals, as nodes want them done |
//! | `memory` | windows, and what RMA has to do with them |
//! | `nodes` | nodes and links, and what goes with them |
//! | `lanes` | connections whose bytes go by lanes |
//! | [`canary`] | planted bugs |
//! | [`invariants`], `check` | what must be true of every run |
//! | `draw` | plans from a seed, and those in which everything is tried |
//! | `run` | one run of a plan |

mod calls;
pub mod canary;
mod check;
mod draw;
pub mod invariants;
mod lanes;
mod memory;
mod nodes;
pub mod parameters;
mod program;
mod rma;
mod run;
mod stream;
mod told;
mod work;

use snaprig_sim::{Fault, Parameters as Fixed, Plan, Point, Process, Random, shrink::Amount};

pub use self::{
    canary::Canary,
    parameters::{Parameters, Workload},
};
use crate::scenario::{Invariant, Outcome, Scenario, Watch};

/// What plans call it.
pub const SCENARIO: &str = "scif";

/// SCIF, as a scenario.
#[derive(Clone, Copy, Debug)]
pub struct Scif;

impl Scenario for Scif {
    type Parameters = Parameters;
    type Canary = Canary;
    type End = Ended;

    fn names(&self) -> &'static [&'static str] {
        &[SCENARIO]
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
        run::World::new(plan, parameters, watch).finish()
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

/// One side of a connection, and what happened there.
#[derive(Clone, Debug)]
pub struct Side {
    /// Which connection: the nth that was asked for, if that has been said.
    pub connection: Option<u32>,
    /// The other side, once it is known.
    pub peer: Option<usize>,
    /// Bytes whose send is completed.
    pub sent: usize,
    /// Bytes that came, before the first wrong one.
    pub came: usize,
    /// The first byte that came and is not the one that is due.
    pub wrong: Option<String>,
    /// It has received all that there was to receive.
    pub drained: bool,
    /// Nothing has happened to its node, nor to the link.
    pub undisturbed: bool,
}

/// A call that was told of an error.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// Which.
    pub call: &'static str,
    /// What it was told.
    pub errno: i32,
    /// It has closed the endpoint itself.
    pub closed: bool,
    /// Its peer has closed, or is gone, or out of reach.
    pub is_peer_gone: bool,
    /// It was to be expected of what was asked.
    pub is_expected: bool,
}

/// What there is to know of a run's end.
#[derive(Debug, Default)]
pub struct Ended {
    /// All sides of connections.
    pub sides: Vec<Side>,
    /// Calls that were told of errors.
    pub refusals: Vec<Refusal>,
    /// RMA that was done.
    pub copies: u64,
}

impl Ended {
    /// How a side, and its peer if it is known, break something.
    pub fn each(
        &self,
        check: impl Fn(&Side, Option<&Side>) -> Result<(), String>,
    ) -> Option<String> {
        let mut sides = self.sides.iter();
        sides.find_map(|side| {
            let peer = side.peer.and_then(|peer| self.sides.get(peer));
            let how = check(side, peer).err()?;
            Some(format!("connection {:?}: {how}", side.connection))
        })
    }
}
