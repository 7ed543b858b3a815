//! Fault campaigns over two systems: the whole offload stack (a host process, cards with their
//! daemons and offload processes, Snapify-IO and a disk), and verbs (processes with queue pairs on
//! the HCAs of a fabric). All of it is the machines that the real drivers drive, joined by
//! [`snaprig_sim`].
//!
//! | module | what it is |
//! |---|---|
//! | [`points`] | where something can go wrong |
//! | [`model`] | the offload stack, and one run of a plan |
//! | [`verbs`] | verbs, and one run of a plan |
//! | [`system`] | whichever of them a plan is about |
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
pub mod system;
pub mod verbs;

pub use canary::Canary;
pub use model::{Ending, Outcome};
pub use system::run;
