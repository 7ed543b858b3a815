//! What a simulated system needs to be a scenario of campaigns: what it says of itself, the stage that it runs on, and
//! the list that it is on. The scenarios that come with snaprig, and campaigns over them, are in `snaprig-campaign`.
//!
//! | module | what it is |
//! |---|---|
//! | [`scenario`] | what a scenario is, and says of itself |
//! | [`registry`] | scenarios that are listed: whose plan it is, what there is of all of them |
//! | [`stage`] | what every system on the simulator's engine has: faults, a lossy link, the way to the end |
//! | [`parameters`] | how plans of earlier versions are read |
//! | [`links`] | SCIF nodes joined by links, for every system that has them |
//! | [`caught`] | a run that panics is a failure like others |

pub mod caught;
pub mod links;
pub mod parameters;
pub mod registry;
pub mod scenario;
pub mod stage;

pub use registry::Registry;
pub use scenario::{Ending, Outcome, Scenario};
