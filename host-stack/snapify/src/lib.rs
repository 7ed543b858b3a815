//! Snapify: snapshots, swap and migration of offload processes (paper sections 4 and 5).
//!
//! ```text
//!             pause                    capture                 resume
//!  Running ----------> Paused ------------------> Paused ---------------> Running
//!              ^  agree, locks,         |  (in the background; wait)
//!              |  marker, drain         '--terminate--> Swapped out --restore--> Paused
//!              '------------------- restore, on any card --------------------------'
//! ```
//!
//! | module | what it is |
//! |---|---|
//! | [`machine`] | the order of the steps, and what is undone when one fails |
//! | [`snapify`](mod@snapify) | the five calls of the paper's table 1, and the scenarios of section 5 |
//! | [`step`] | every step of them, by name |
//! | [`Phase`] | what a process is doing, for those who look |
//! | [`faults`] | where something can go wrong |
//! | [`plugin`] | the same as part of a checkpoint of the whole application |
//! | [`control`] | the same from outside: a socket in the host process |
//! | [`oversubscribe`] | more processes than card memory holds |
//!
//! What must stay true: one request at a time; a failed capture leaves the earlier snapshot and a
//! process that can resume; a failed restore leaves a paused process that can be restored
//! elsewhere.

pub mod control;
mod error;
pub mod faults;
pub mod machine;
pub mod oversubscribe;
mod phase;
pub mod plugin;
pub mod snapify;
pub mod step;

pub use error::SnapifyError;
pub use phase::Phase;
pub use snapify::Snapify;
pub use step::{Step, StepReport};

/// What the directory of a process's snapshot is called within one that people choose, which may be that of many: after its
/// program, its host process, and its number in that.
pub fn snapshot_name(program: &str, host: u32, process: u64) -> String {
    format!("{program}-{host}-{process}")
}
