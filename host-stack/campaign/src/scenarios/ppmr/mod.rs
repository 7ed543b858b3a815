//! Processes that move through pipelines: trees of processes on some source nodes go to one target node at once, with the
//! buffer managers of [`snaprig_ppmr`] as the way of their images, and the machines of [`snaprig_coord::migration`], which
//! decide who has a tree.
//!
//! ```text
//!   operator ---------> "source1" ============ Go, Running ============ "target"      tells trees to move; starts what has died
//!                        |  writers, one a process    readers, one a process |
//!                       "sender1" ----- Full, Done, RDMA -----------> "receiver"
//!   "source2" ... "sender2" ... ---------------------------------------'
//! ```
//!
//! | step of the paper's section III | here |
//! |---|---|
//! | suspend | the tree stands still when its machine says `Copy` |
//! | write | writers fill chunks of the sender's pool, or lend their own memory |
//! | transfer | the receiver pulls them, or the sender puts them |
//! | read | readers take them from the receiver's pool; when all streams are whole, the tree is restored |
//! | reconnect | the target has decided, and the tree runs |
//!
//! The seed decides how long the images are and how long anything takes. One reader may be slow: it reads nothing while any
//! other stream is under way.
//!
//! | module | what it is |
//! |---|---|
//! | [`parameters`] | how much there is of everything |
//! | `tree` | what moves: its programs, images, writers and readers |
//! | `world` | the system: who there is, what happens, who dies and is started again |
//! | `source`, `target` | what a supervisor does that its machine says, with its writers or readers |
//! | `managers` | what the buffer managers do that their machines say |
//! | `rdma` | memory that is reached from outside, and what goes there |
//! | `net` | connections, and what goes wrong on them |
//! | [`canary`] | planted bugs |
//! | [`invariants`] | what must be true of every run |
//! | `draw` | plans from a seed, and those in which everything is tried |

pub mod canary;
mod draw;
pub mod invariants;
mod managers;
mod net;
pub mod parameters;
mod rdma;
mod source;
mod target;
mod tree;
mod world;

use snaprig_sim::{Fault, Parameters as Fixed, Plan, Point, Process, Random, shrink::Amount};

pub use self::{canary::Canary, parameters::Parameters};
use crate::scenario::{Invariant, Outcome, Scenario, Watch};

/// What plans call it.
pub const SCENARIO: &str = "ppmr";

/// What there is to know of a run's end.
#[derive(Debug, Default)]
pub struct Ended {
    /// What each tree has come to: once.
    pub results: Vec<Vec<u64>>,
    /// Trees that have moved.
    pub moved: usize,
    /// Why moves have failed.
    pub failed: Vec<String>,
    /// Streams that were whole, and their bytes.
    pub streams: u64,
    /// How long all of these were.
    pub bytes: u64,
}

/// Processes that move through pipelines, as a scenario.
#[derive(Clone, Copy, Debug)]
pub struct Ppmr;

impl Scenario for Ppmr {
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
        parameters.all_processes()
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

    fn deaths(&self, plan: &Plan) -> Vec<Fault> {
        draw::deaths_in_pipelines(&self.processes_of(plan))
    }
}
