//! Fault campaigns over four systems: the whole offload stack (a host process, cards with their
//! daemons and offload processes, Snapify-IO and a disk), verbs (processes with queue pairs on the
//! HCAs of a fabric), SCIF (programs on the nodes of a host and its cards), and a job whose processes
//! are checkpointed together (agents, their coordinator, manifests). All of it is the machines that
//! the real drivers drive, joined by [`snaprig_sim`].
//!
//! | module | what it is |
//! |---|---|
//! | [`points`] | where something can go wrong |
//! | [`model`] | the offload stack, and one run of a plan |
//! | [`verbs`] | verbs, and one run of a plan |
//! | [`scif`] | SCIF, and one run of a plan |
//! | [`coord`] | a job and its coordinator, and one run of a plan |
//! | `links` | nodes joined by links, for every system that has them |
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
mod links;
pub mod points;
pub mod report;
pub mod scenarios;
pub mod system;

pub use canary::Canary;
pub use model::{Ending, Outcome};
pub use scenarios::{coord, offload as model, scif, verbs};
pub use system::run;
