//! Plans of a job: from a seed, and those in which everything is tried.

use snaprig_coord::faults;
use snaprig_sim::{
    Fault, KindName, Parameters as Fixed, Plan, Point, Process, Random, shrink::Amount,
};

use super::{COORDINATOR, Parameters, SCENARIO, Workload};
use crate::scenario::draw::{Faults, any_victim, deaths};

/// Points by which a run comes a hundred times.
const OFTEN: [Point; 1] = [faults::MESSAGE];
/// Orders of events in which everything is tried: jobs whose checkpoints are of different kinds.
const SEEDS: u64 = 2;
/// Phases at which pairs of faults happen.
const PHASES: u64 = 12;

/// What there can be less of.
pub const AMOUNTS: [Amount<'static>; 4] = [
    Amount {
        path: &["workload", "processes"],
        least: 1,
    },
    Amount {
        path: &["workload", "checkpoints"],
        least: 0,
    },
    Amount {
        path: &["workload", "connections"],
        least: 1,
    },
    Amount {
        path: &["workload", "messages"],
        least: 1,
    },
];

/// Parameters from a seed.
pub fn parameters(random: &mut Random) -> Parameters {
    let mut amount = |least: u64, most: u64| (least + random.below(most - least + 1)) as u16;
    let workload = Workload {
        processes: amount(1, 4),
        // Who is not connected with a peer does not miss it.
        connections: amount(0, 4),
        messages: amount(1, 30),
        checkpoints: amount(1, 3),
    };
    Parameters {
        workload,
        ..Parameters::default()
    }
}

/// The plan of a seed.
pub fn draw(seed: u64, fixed: &Fixed) -> Plan {
    let mut random = Random::new(seed, "plan of coord");
    let drawn = parameters(&mut random);
    let mut plan = Plan::new(seed, SCENARIO).with(&drawn);
    plan.parameters.extend(fixed.clone());
    let processes = plan.parameters_as().unwrap_or(drawn).processes();
    let faults = Faults {
        often: &OFTEN,
        victim,
        ..Faults::of(faults::ALL, &processes)
    };
    plan.faults = faults.draw(&mut random);
    plan
}

/// As often the coordinator as anybody.
fn victim(kind: KindName, processes: &[Process], random: &mut Random) -> Option<String> {
    match random.one_in(2) {
        true => Some(COORDINATOR.into()),
        false => any_victim(kind, processes, random),
    }
}

/// The plans in which everything is tried.
pub fn undisturbed() -> Vec<Plan> {
    let parameters = Parameters {
        workload: Workload {
            processes: 2,
            connections: 2,
            messages: 8,
            checkpoints: 2,
        },
        ..Parameters::default()
    };
    let plan = |seed| Plan::new(seed, SCENARIO).with(&parameters);
    (0..SEEDS).map(plan).collect()
}

/// The deaths of which pairs are tried: of each process, in the first phases.
pub fn deaths_in_phases(processes: &[Process]) -> Vec<Fault> {
    (1..=PHASES)
        .flat_map(|nth| deaths(&faults::PHASE, nth, processes))
        .collect()
}
