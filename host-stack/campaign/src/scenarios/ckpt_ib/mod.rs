//! Checkpoints with live queue pairs: processes with connections of all transports, each behind the machines of
//! `host-stack/ckpt-ib`, on HCAs of `emu/hca`. A checkpoint is ordered at any event; then all go on, or all are killed and
//! restarted on other HCAs, in another order, with other numbers and keys; or those of one port move to another HCA. Some connect, or register memory, only then; some
//! connections are of XRC; some have their send queues drained (SQD).
//!
//! ```text
//!   "process1"                      "process2" ...      program: posts, polls, looks into its memory
//!   virtual names, logs             the same            machines of ckpt-ib
//!   real names                                          numbers and keys that come again soon
//!      '------- hca1 --------- hca2 ------'             packets: what the plan has go wrong
//! ```
//!
//! What a peer writes into a program's memory, the program takes out and wipes: what comes again is seen.
//!
//! | module | what it is |
//! |---|---|
//! | [`parameters`] | how much there is of everything |
//! | `program` | what a program has posted and seen; where its data is |
//! | `hardware` | what is below of each process, and what its names mean |
//! | `job` | who takes all processes through the phases, and restarts them |
//! | `moves` | who moves some of them |
//! | `run` | one run of a plan |
//! | `check` | what is to be seen at the end |
//! | [`canary`] | planted bugs |
//! | [`invariants`] | what must be true of every run |

pub mod canary;
mod check;
mod hardware;
pub mod invariants;
mod job;
mod moves;
pub mod parameters;
mod program;
mod run;

use snaprig_ckpt_ib::faults as of_checkpoints;
use snaprig_hca::faults as of_hcas;
use snaprig_sim::{Fault, Plan, Point, Process, Random, shrink::Amount};

pub use self::{canary::Bug, parameters::Parameters};
use crate::scenario::{Invariant, Outcome, Scenario, Watch, draw::deaths};

/// What plans call it.
pub const SCENARIO: &str = "ckpt-ib";

/// Where things go wrong: in the phases, and on the way.
const POINTS: [Point; 12] = [
    of_checkpoints::QUIESCE,
    of_checkpoints::DRAIN,
    of_checkpoints::SAVE,
    of_checkpoints::RESUME,
    of_checkpoints::REBUILD,
    of_checkpoints::EXCHANGE,
    of_checkpoints::REFILL,
    of_hcas::PACKET,
    of_hcas::RESPONSE,
    of_hcas::POST,
    of_hcas::STEP,
    of_hcas::POLL,
];

/// Seeds with which everything is tried: reliable connections, packet by packet.
const UNDISTURBED: [u64; 1] = [4];

/// Checkpoints with queue pairs, as a scenario.
#[derive(Clone, Copy, Debug)]
pub struct CkptIb;

impl Scenario for CkptIb {
    type Parameters = Parameters;
    type Canary = Bug;
    type End = ();

    fn names(&self) -> &'static [&'static str] {
        &[SCENARIO]
    }

    fn points(&self) -> &'static [Point] {
        &POINTS
    }

    fn processes(&self, parameters: &Parameters) -> Vec<Process> {
        parameters.processes()
    }

    fn parameters(&self, random: &mut Random) -> Parameters {
        Parameters::drawn(random)
    }

    fn run(&self, plan: &Plan, parameters: &Parameters, watch: Watch<Bug>) -> Outcome<()> {
        run::run(plan, parameters, watch)
    }

    fn invariants(&self) -> &'static [Invariant<()>] {
        &invariants::ALL
    }

    fn impossible(&self, parameters: &Parameters) -> Option<String> {
        parameters.impossible()
    }

    /// Little work: two connections of two processes.
    fn undisturbed(&self) -> Vec<Plan> {
        let parameters = Parameters {
            connections: 2,
            messages: 2,
            checkpoints: 1,
            ..Parameters::default()
        };
        let plan = |seed| Plan::new(seed, SCENARIO).with(&parameters);
        UNDISTURBED.map(plan).to_vec()
    }

    /// Of each process in each phase, the first time.
    fn deaths(&self, plan: &Plan) -> Vec<Fault> {
        let programs = self.processes_of(plan);
        let programs: Vec<_> = programs
            .into_iter()
            .filter(|process| process.kinds == Process::PROGRAM)
            .collect();
        let deaths = |point| deaths(point, 1, &programs);
        of_checkpoints::ALL.iter().flat_map(deaths).collect()
    }

    fn amounts(&self) -> &'static [Amount<'static>] {
        &[
            Amount {
                path: &["processes"],
                least: 2,
            },
            Amount {
                path: &["connections"],
                least: 1,
            },
            Amount {
                path: &["messages"],
                least: 1,
            },
            Amount {
                path: &["checkpoints"],
                least: 0,
            },
            Amount {
                path: &["hcas"],
                least: 1,
            },
        ]
    }
}
