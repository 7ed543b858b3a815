//! Fault campaigns over simulated systems: thousands of runs a second, each with faults that are data, each
//! the same again from its plan. What runs are the machines that the real drivers drive, joined by
//! [`snaprig_sim`].
//!
//! | module | what it is |
//! |---|---|
//! | [`scenario`] | what a scenario is, and says of itself |
//! | [`scenarios`] | those that come with snaprig: a folder and a line each |
//! | [`registry`] | scenarios that are listed: whose plan it is, what there is of all of them |
//! | [`stage`] | what every system on the simulator's engine has: faults, a lossy link, the way to the end |
//! | `links` | SCIF nodes joined by links, for every system that has them |
//! | [`exhaustive`] | every fault at every step |
//! | [`campaign`] | many seeds, several threads, one report |
//! | [`report`] | a failure as files: plan, trace, timeline |

pub mod campaign;
pub mod exhaustive;
pub mod report;
pub mod scenarios;

pub use scenario::{Ending, Outcome, Scenario};
pub use scenarios::standard;
pub use snaprig_scenario::{Registry, canaries, registry, scenario, stage};
use snaprig_scenario::{caught, links};
