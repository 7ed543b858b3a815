//! The systems that plans are about, behind one door: the offload stack ([`model`]), verbs
//! ([`verbs`]), SCIF ([`scif`]) and a job ([`coord`]). A plan's scenario says which.

use snaprig_sim::{Plan, Trace};

use crate::{
    Canary, Outcome, coord,
    model::{self, Until},
    scif, verbs,
};

/// Which system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    /// The offload stack.
    Offload,
    /// Verbs.
    Verbs,
    /// SCIF.
    Scif,
    /// A job and its coordinator.
    Coord,
}

impl System {
    /// That of a scenario.
    pub fn of(scenario: &str) -> Self {
        match scenario {
            verbs::SCENARIO => Self::Verbs,
            scif::SCENARIO => Self::Scif,
            coord::SCENARIO => Self::Coord,
            _ => Self::Offload,
        }
    }
}

/// All scenarios.
pub fn scenarios() -> impl Iterator<Item = &'static str> {
    model::SCENARIOS
        .into_iter()
        .chain([verbs::SCENARIO, scif::SCENARIO, coord::SCENARIO])
}

/// The processes of a plan's system, as plans name them.
pub fn processes(plan: &Plan) -> Vec<String> {
    match System::of(&plan.scenario) {
        System::Verbs => verbs::processes(plan),
        System::Scif => scif::processes(plan),
        System::Coord => coord::processes(plan),
        System::Offload => model::processes(plan),
    }
}

/// What is impossible about the plan's system, if anything is.
pub fn impossible(plan: &Plan) -> Option<String> {
    if scenarios().all(|name| name != plan.scenario) {
        let scenarios: Vec<_> = scenarios().collect();
        let (scenario, all) = (&plan.scenario, scenarios.join(", "));
        return Some(format!("scenario {scenario:?}: there are {all}"));
    }
    match System::of(&plan.scenario) {
        System::Verbs => verbs::impossible(plan),
        System::Scif => scif::impossible(plan),
        System::Coord => coord::impossible(plan),
        System::Offload => model::impossible(plan),
    }
}

/// Runs a plan to its end, with a planted bug or without.
pub fn run(plan: &Plan, trace: Trace, canary: Option<Canary>) -> Outcome {
    match System::of(&plan.scenario) {
        System::Verbs => verbs::run(plan, trace, canary),
        System::Scif => scif::run(plan, trace, canary),
        System::Coord => coord::run(plan, trace, canary),
        System::Offload => model::run(plan, trace, canary),
    }
}

/// The same, and keeps every state that the system was in ([`Outcome::states`]).
pub fn run_counting(plan: &Plan, trace: Trace, canary: Option<Canary>) -> Outcome {
    match System::of(&plan.scenario) {
        System::Verbs => verbs::run_counting(plan, trace, canary),
        System::Scif => scif::run_counting(plan, trace, canary),
        System::Coord => coord::run_counting(plan, trace, canary),
        System::Offload => model::run_counting(plan, trace, canary),
    }
}

/// Runs a plan up to there, and describes every machine as it is then.
pub fn state_at(plan: &Plan, canary: Option<Canary>, until: Until) -> (Trace, String) {
    match System::of(&plan.scenario) {
        System::Verbs => verbs::state_at(plan, canary, until),
        System::Scif => scif::state_at(plan, canary, until),
        System::Coord => coord::state_at(plan, canary, until),
        System::Offload => model::state_at(plan, canary, until),
    }
}
