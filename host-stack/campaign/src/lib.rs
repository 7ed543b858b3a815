//! Fault campaigns over the whole offload stack: a host process, cards with their daemons and
//! offload processes, Snapify-IO and a disk, all of it the machines that the real drivers drive,
//! joined by [`snaprig_sim`].
//!
//! | module | what it is |
//! |---|---|
//! | [`points`] | where something can go wrong |
//! | [`model`] | the system, and one run of a plan |
//! | [`check`] | what must be true of a run, whatever went wrong |
//! | [`draw`] | a plan from a seed |
//! | [`exhaustive`] | every fault at every step |
//! | [`canary`] | planted bugs, which every campaign must find |
//! | [`campaign`] | many seeds, several threads, one report |
//! | [`report`] | a failure as files: plan, trace, timeline |

pub mod campaign;
pub mod canary;
mod caught;
pub mod check;
pub mod draw;
pub mod exhaustive;
pub mod model;
pub mod points;
pub mod report;

pub use canary::Canary;
pub use model::{Ending, Outcome, run};
