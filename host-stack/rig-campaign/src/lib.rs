//! Campaigns on real rigs: the demo's application, or several that share cards which are too small for all, with real processes killed (SIGKILL), stopped (SIGSTOP) and kept
//! from writing (RLIMIT_FSIZE) at steps that the seed draws. Whoever still can finishes, with the golden result;
//! everybody else is told.
//!
//! | module | what it is |
//! |---|---|
//! | [`runner`] | what runs plans for [`snaprig_campaign::campaign`] |
//! | [`plan`] | plans that real rigs can run: from a seed, or somebody's |
//! | `run` | one run of a plan |
//! | `shared` | the same, of programs that take turns on cards |
//! | `faults` | its faults, when steps begin |
//! | `check` | what must be true of it |
//! | [`work`] | the directory of a run |
//! | [`host_process`], [`rig_process`] | the processes of a run, as who started them has them: the demo uses them, too |
//! | [`deadline`] | until when something must be over |
//!
//! The processes are of the running program: it is `snaprig`, or has its hidden commands (`rig-process`,
//! `card-process`, `workload`).
//!
//! Real processes take their own time, so a plan is not the same run again and has no trace hash; a bug that it shows
//! may need several runs to show again.

mod check;
pub mod deadline;
mod error;
mod faults;
pub mod host_process;
pub mod plan;
pub mod rig_process;
mod run;
pub mod runner;
mod shared;
pub mod work;

pub use self::{error::Error, runner::RigRunner};
