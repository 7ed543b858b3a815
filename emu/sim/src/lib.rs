//! The deterministic simulator: virtual time, seeded order, faults that are data.
//!
//! A system is a set of processes that hand each other events over links; [`Engine`] decides when
//! each arrives, and never asks the machine it runs on for time, order or randomness. Places where
//! something can go wrong are [`Point`]s, declared by the crates that have them; what goes wrong
//! there, and when, is a [`Plan`]. What a system does beside that is its own: a plan carries its parameters, and the
//! simulator does not know them.
//!
//! | module | what it is |
//! |---|---|
//! | [`random`] | one seed, a stream of numbers for each concern |
//! | [`plan`] | fault plans: read, checked, written |
//! | [`faults`] | a plan at work: what happens at which occurrence, and what was reached |
//! | [`engine`] | virtual time, links, processes |
//! | [`disk`] | files that tear, fill up and forget what was not synced |
//! | [`trace`] | what happened: a hash always, a record if wanted |
//! | [`shrink`] | the smallest plan that still fails the same way |
//!
//! What must stay true: the same system, seed and plan give the same trace hash on every machine;
//! a draw for one concern does not move the numbers of another.

pub mod disk;
pub mod engine;
pub mod faults;
pub mod plan;
pub mod random;
pub mod shrink;
pub mod trace;

pub use disk::Disk;
pub use engine::{Engine, ProcessId};
pub use faults::Faults;
pub use plan::{Fault, Kind, Parameters, Plan, PlanError, Process, When};
pub use random::Random;
pub use snaprig_wire::fault::{KindName, Point};
pub use trace::Trace;
