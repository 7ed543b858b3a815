//! Cards oversubscribed with offload processes: the policy of [`snaprig_snapify::oversubscribe`] in an arbiter, programs with
//! a process each, cards of which all together would need more memory than there is.
//!
//! ```text
//!   program1, program2 ... --- asks for room, is answered ---> arbiter      sees cards and processes, orders swaps
//!       |        ^------------------ swaps ----------------------'
//!     card1, card2 ...                                         operator     starts again what has died; warns of failures
//! ```
//!
//! A program makes its process, has it run functions and makes buffers, computes itself meanwhile, and asks for room where
//! there is none. A card that will fail is said to, and does some time later.
//!
//! | module | what it is |
//! |---|---|
//! | `run` | one run of a plan: cards, and who dies and is started again |
//! | `program` | a program and its process, its swaps too |
//! | `arbiter` | the driver of the policy |
//! | [`canary`] | planted bugs |
//! | [`invariants`] | what must be true of every run |

mod arbiter;
pub mod canary;
pub mod invariants;
mod program;
mod run;

use serde::{Deserialize, Serialize};
use snaprig_sim::{KindName, Plan, Point, Process, Random, shrink::Amount};
use snaprig_snapify::oversubscribe::faults;

pub use self::canary::Canary;
use crate::scenario::{Invariant, Outcome, Scenario, Watch};

/// What plans call it.
pub const SCENARIO: &str = "oversubscribe";
/// Most cards, programs, and run functions of each.
const MOST: [u16; 3] = [4, 16, 100];
/// What can happen to a card. Its link is that of the offload stack's scenario.
const CARD: &[KindName] = &[KindName::Crash, KindName::Hang, KindName::Restart];

/// How much there is of everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Parameters {
    /// Cards.
    pub cards: u16,
    /// Programs.
    pub programs: u16,
    /// Run functions of each.
    pub runs: u16,
    /// Cards that are said to be about to fail, and do.
    pub failing: u16,
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            cards: 2,
            programs: 6,
            runs: 6,
            failing: 0,
        }
    }
}

/// What there is to know of a run's end.
#[derive(Debug, Default)]
pub struct Ended {
    /// Programs that have come to their end.
    pub finished: usize,
    /// Those that had to give up, and why.
    pub failed: Vec<&'static str>,
    /// Swaps that were made.
    pub swaps: u64,
}

/// Oversubscribed cards, as a scenario.
#[derive(Clone, Copy, Debug)]
pub struct Oversubscribe;

impl Scenario for Oversubscribe {
    type Parameters = Parameters;
    type Canary = Canary;
    type End = Ended;

    fn names(&self) -> &'static [&'static str] {
        &[SCENARIO]
    }

    fn points(&self) -> &'static [Point] {
        faults::ALL
    }

    fn processes(&self, parameters: &Parameters) -> Vec<Process> {
        let arbiter = Process::new("arbiter", Process::PROGRAM);
        let cards = Process::numbered("card", parameters.cards, CARD);
        let programs = Process::numbered("program", parameters.programs, Process::PROGRAM);
        std::iter::once(arbiter)
            .chain(cards)
            .chain(programs)
            .collect()
    }

    fn parameters(&self, random: &mut Random) -> Parameters {
        let mut amount = |least: u64, most: u64| (least + random.below(most - least + 1)) as u16;
        let cards = amount(1, 3);
        Parameters {
            cards,
            programs: amount(1, 8),
            runs: amount(1, 12),
            failing: amount(0, cards.into()),
        }
    }

    fn run(&self, plan: &Plan, parameters: &Parameters, watch: Watch<Canary>) -> Outcome<Ended> {
        run::World::new(plan, parameters, watch).finish()
    }

    fn invariants(&self) -> &'static [Invariant<Ended>] {
        &invariants::ALL
    }

    fn impossible(&self, parameters: &Parameters) -> Option<String> {
        let [cards, programs, runs] = MOST;
        let fits = (1..=cards).contains(&parameters.cards)
            && (1..=programs).contains(&parameters.programs)
            && parameters.runs <= runs
            && parameters.failing <= parameters.cards;
        (!fits).then(|| {
            format!(
                "{parameters:?}: 1 to {cards} cards, of which some fail, 1 to {programs} programs and up to {runs} runs"
            )
        })
    }

    fn amounts(&self) -> &'static [Amount<'static>] {
        &[
            Amount {
                path: &["programs"],
                least: 1,
            },
            Amount {
                path: &["failing"],
                least: 0,
            },
            Amount {
                path: &["runs"],
                least: 1,
            },
        ]
    }

    fn undisturbed(&self) -> Vec<Plan> {
        vec![Plan::new(0, SCENARIO).with(&Parameters::default())]
    }
}
