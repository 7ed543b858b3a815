//! The third system: programs that use SCIF themselves, on the nodes of a host and its cards. The
//! nodes are those of `host-stack/scif`, the links between them those of the offload stack.
//!
//! ```text
//!  "program1" "program4"     "program2" ..   "program3" ..     drawn work: connections, streams,
//!        \     /                  |               |            windows, RMA
//!       node 0, "rig" ------- "card1" ------- "card2" ...      (all messages by way of node 0)
//! ```
//!
//! Of a plan (scenario "scif"), `processes` are programs on each node, `pipelines` pairs of programs
//! that connect with each other, `runs` sends of each side of a connection, `buffers` windows, and
//! `writes` RMA; the seed decides who connects with whom, sizes, offsets, and who gives up or leaves.
//!
//! | module | what it is |
//! |---|---|
//! | `work` | what programs do |
//! | `program` | programs that do it: each side of a connection sends, receives and moves at once |
//! | `told` | what they make of how their calls have ended |
//! | `stream` | bytes that say where they belong |
//! | `calls` | calls, and what becomes of them |
//! | `rma` | RMA and signals, as nodes want them done |
//! | `memory` | windows, and what RMA has to do with them |
//! | `nodes` | nodes and links, and what goes with them |
//! | `canary` | planted bugs |
//! | `run` | one run of a plan |

mod calls;
mod canary;
mod memory;
mod nodes;
mod program;
mod rma;
mod run;
mod stream;
mod told;
mod work;

use snaprig_sim::Plan;
use snaprig_wire::scif::NodeId;

pub use run::{run, run_counting, state_at};

/// Its scenario.
pub const SCENARIO: &str = "scif";
/// Most cards, programs on a node, talks, sends, windows and RMA of a plan.
const MOST: [u16; 6] = [8, 4, 8, 40, 8, 40];

/// Programs of a plan.
fn programs(plan: &Plan) -> usize {
    usize::from(plan.workload.processes) * (usize::from(plan.cards) + 1)
}

/// The node on which a program runs.
fn node_of(program: usize, cards: u16) -> NodeId {
    (program % (usize::from(cards) + 1)) as NodeId
}

/// Nodes and programs of a plan's system, as plans name them.
pub fn processes(plan: &Plan) -> Vec<String> {
    let cards = (1..=plan.cards).map(|node| format!("card{node}"));
    let programs = (1..=programs(plan)).map(|number| format!("program{number}"));
    ["rig".to_owned()]
        .into_iter()
        .chain(cards)
        .chain(programs)
        .collect()
}

/// What is impossible about the plan's system, if anything is.
pub fn impossible(plan: &Plan) -> Option<String> {
    let work = plan.workload;
    let needed = [plan.cards, work.processes, work.pipelines, work.runs];
    let amounts = [needed.as_slice(), &[work.buffers, work.writes]].concat();
    let too_much = amounts
        .iter()
        .zip(MOST)
        .any(|(amount, most)| *amount > most);
    let [cards, processes, pipelines, runs, buffers, writes] = MOST;
    (too_much || needed.contains(&0)).then(|| {
        format!(
            "{} cards, workload {work:?}: with scif, 1 to {cards} cards, 1 to {processes} \
             processes, 1 to {pipelines} pipelines, 1 to {runs} runs, up to {buffers} buffers and \
             up to {writes} writes",
            plan.cards
        )
    })
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
