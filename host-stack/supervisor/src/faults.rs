//! Where a supervisor can be killed on purpose, and all points of checkpoints.

use std::env;

pub use snaprig_tracee::faults::{CrashPlan, follow};
use snaprig_wire::fault::Point;

/// Carries the plan of a supervisor to it: `POINT`, or `POINT:ROUND`.
pub const PLAN_ENV: &str = "SNAPRIG_CKPT_FAULT";

snaprig_wire::fault_points! {
    /// A checkpoint begins.
    BEGUN = "supervisor.begun", "a checkpoint begins", [Crash];
    /// All of a tree is described.
    DESCRIBED = "supervisor.described", "all of a tree is described", [Crash];
    /// The image has all bytes; the tree stands still.
    WRITTEN = "supervisor.written", "the image has all bytes; the tree stands still", [Crash];
    /// The image is complete; the round is not.
    FINISHED = "supervisor.finished", "the image is complete; the round is not", [Crash];
    /// The round is complete; whoever asked for it has no answer.
    COMMITTED = "supervisor.committed", "the round is complete; whoever asked for it has no answer", [Crash];
}

/// All fault points of checkpoints, restarts and migrations, crate by crate.
pub fn all() -> Vec<Point> {
    let crates = [
        ALL,
        crate::migrate::faults::ALL,
        crate::moving::faults::ALL,
        snaprig_tracee::faults::ALL,
        snaprig_resources::faults::ALL,
        snaprig_ckpt::faults::ALL,
    ];
    crates.concat()
}

/// The plan that the environment has for this process, if it has one.
pub fn plan_of_environment() -> Result<Option<CrashPlan>, String> {
    let set = env::var(PLAN_ENV).ok().filter(|text| !text.is_empty());
    let Some(text) = set else {
        return Ok(None);
    };
    let plan: CrashPlan = text.parse()?;
    match all().iter().any(|point| point.name == plan.point) {
        true => Ok(Some(plan)),
        false => Err(format!(
            "{PLAN_ENV}: there is no fault point {:?}; `snaprig faults` lists them",
            plan.point
        )),
    }
}
