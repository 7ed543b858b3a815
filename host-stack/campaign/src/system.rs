//! The two systems that plans are about, behind one door: the offload stack ([`model`]) and verbs
//! ([`verbs`]). A plan's scenario says which.

use snaprig_sim::{Plan, Trace};

use crate::{
    Canary, Outcome,
    model::{self, Until},
    verbs,
};

/// All scenarios.
pub fn scenarios() -> impl Iterator<Item = &'static str> {
    model::SCENARIOS.into_iter().chain([verbs::SCENARIO])
}

fn is_verbs(plan: &Plan) -> bool {
    plan.scenario == verbs::SCENARIO
}

/// The processes of a plan's system, as plans name them.
pub fn processes(plan: &Plan) -> Vec<String> {
    match is_verbs(plan) {
        true => verbs::processes(plan),
        false => model::processes(plan),
    }
}

/// What is impossible about the plan's system, if anything is.
pub fn impossible(plan: &Plan) -> Option<String> {
    if scenarios().all(|name| name != plan.scenario) {
        let scenarios: Vec<_> = scenarios().collect();
        let (scenario, all) = (&plan.scenario, scenarios.join(", "));
        return Some(format!("scenario {scenario:?}: there are {all}"));
    }
    match is_verbs(plan) {
        true => verbs::impossible(plan),
        false => model::impossible(plan),
    }
}

/// Runs a plan to its end, with a planted bug or without.
pub fn run(plan: &Plan, trace: Trace, canary: Option<Canary>) -> Outcome {
    match is_verbs(plan) {
        true => verbs::run(plan, trace, canary),
        false => model::run(plan, trace, canary),
    }
}

/// The same, and keeps every state that the system was in ([`Outcome::states`]).
pub fn run_counting(plan: &Plan, trace: Trace, canary: Option<Canary>) -> Outcome {
    match is_verbs(plan) {
        true => verbs::run_counting(plan, trace, canary),
        false => model::run_counting(plan, trace, canary),
    }
}

/// Runs a plan up to there, and describes every machine as it is then.
pub fn state_at(plan: &Plan, canary: Option<Canary>, until: Until) -> (Trace, String) {
    match is_verbs(plan) {
        true => verbs::state_at(plan, canary, until),
        false => model::state_at(plan, canary, until),
    }
}
