//! Every fault at every step: in each of a scenario's undisturbed plans, each kind that applies at each
//! occurrence of each fault point that the run reaches, once; and pairs of deaths, where the scenario says.

use snaprig_sim::{Fault, Kind, KindName, Plan, Point, Process, When};

use crate::{
    registry::{CheckError, Registry},
    scenario::{AnyScenario, Watch},
};

/// Longer than a whole checkpoint takes.
const DELAY_NS: u64 = 5_000_000;

/// All plans with one fault.
pub fn single(registry: &Registry) -> Result<Vec<Plan>, CheckError> {
    let mut plans = Vec::new();
    for scenario in registry.scenarios() {
        for plan in scenario.undisturbed() {
            plans.extend(singles_of(scenario, &plan)?);
        }
    }
    Ok(plans)
}

fn singles_of(scenario: &dyn AnyScenario, plan: &Plan) -> Result<Vec<Plan>, CheckError> {
    let reached = scenario.run(plan, Watch::default())?.outcome.reached;
    let processes = scenario.processes(plan)?;
    let mut plans = Vec::new();
    for (name, times, _) in reached {
        let point = scenario.points().iter().find(|point| point.name == name);
        let kinds = point.map_or(Vec::new(), |point| kinds(point, &processes));
        for nth in 1..=times {
            plans.extend(kinds.iter().map(|kind| Plan {
                faults: vec![Fault {
                    point: name.into(),
                    when: When::Nth(nth),
                    kind: kind.clone(),
                }],
                ..plan.clone()
            }));
        }
    }
    Ok(plans)
}

/// All plans with two faults of those that a scenario has for that: one process dies (or a link), and
/// another one, or the same again, at the same step or a later one.
pub fn pairs(registry: &Registry) -> Vec<Plan> {
    let with_two = |scenario: &dyn AnyScenario, plan: Plan| {
        let deaths = scenario.deaths(&plan);
        let both = |(at, first): (usize, &Fault)| {
            let seconds = deaths[at + 1..].iter();
            let with = |second: &Fault| Plan {
                faults: vec![first.clone(), second.clone()],
                ..plan.clone()
            };
            seconds.map(with).collect::<Vec<_>>()
        };
        deaths.iter().enumerate().flat_map(both).collect::<Vec<_>>()
    };
    let plans = registry.scenarios().flat_map(|scenario| {
        let plans = scenario.undisturbed().into_iter();
        plans.map(move |plan| (scenario, plan))
    });
    plans
        .flat_map(|(scenario, plan)| with_two(scenario, plan))
        .collect()
}

/// One of each kind that applies; where a process is named, each of them.
fn kinds(point: &Point, processes: &[Process]) -> Vec<Kind> {
    let named = |name: KindName, kind: fn(String) -> Kind| {
        let can = processes.iter().filter(|process| process.can(name));
        can.map(|process| kind(process.name.clone())).collect()
    };
    let all = |name: &KindName| match name {
        KindName::Crash => named(*name, Kind::Crash),
        KindName::Hang => named(*name, Kind::Hang),
        KindName::Restart => named(*name, Kind::Restart),
        KindName::LinkDown => named(*name, Kind::LinkDown),
        KindName::Partition => named(*name, Kind::Partition),
        KindName::LinkUp => named(*name, Kind::LinkUp),
        KindName::GidChange => named(*name, Kind::GidChange),
        KindName::Delay => vec![Kind::Delay(DELAY_NS)],
        KindName::Error => vec![Kind::Error(libc::EIO)],
        KindName::Corrupt => vec![Kind::Corrupt(0)],
        KindName::TornWrite => vec![Kind::TornWrite(1)],
        KindName::DiskFull => vec![Kind::DiskFull],
        KindName::Drop => vec![Kind::Drop],
        KindName::Duplicate => vec![Kind::Duplicate],
        KindName::Reorder => vec![Kind::Reorder],
    };
    point.kinds.iter().flat_map(all).collect()
}
