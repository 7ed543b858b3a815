//! Plans with verbs: from a seed, and those in which everything is tried.

use snaprig_hca::faults;
use snaprig_sim::{
    Fault, Kind, Parameters as Fixed, Plan, Point, Process, Random, When, shrink::Amount,
};

use super::{Parameters, SCENARIO, Workload};
use crate::scenario::draw::{Faults, deaths};

/// Points by which a run comes a hundred times.
const OFTEN: [Point; 2] = [faults::PACKET, faults::RESPONSE];
/// The most packets in a thousand that a drawn plan loses, and so on.
const PER_MILLE: [u64; 3] = [20, 50, 200];
/// HCAs when everything is tried.
const HCAS: u16 = 2;
/// Orders of events in which everything is tried: work that is different, packet by packet and not.
const SEEDS: u64 = 8;
/// Work requests at which pairs of faults happen.
const POSTS: u64 = 6;

/// What there can be less of.
pub const AMOUNTS: [Amount<'static>; 4] = [
    Amount {
        path: &["cards"],
        least: 2,
    },
    Amount {
        path: &["workload", "processes"],
        least: 1,
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
    let hcas = amount(1, 3);
    let workload = Workload {
        processes: amount(2, 4),
        connections: amount(1, 4),
        messages: amount(1, 20),
    };
    Parameters { hcas, workload }
}

/// The plan of a seed.
pub fn draw(seed: u64, fixed: &Fixed) -> Plan {
    let mut random = Random::new(seed, "plan of verbs");
    let drawn = parameters(&mut random);
    let mut plan = Plan::new(seed, SCENARIO).with(&drawn);
    plan.parameters.extend(fixed.clone());
    let processes = plan.parameters_as().unwrap_or(drawn).processes();
    let faults = Faults {
        often: &OFTEN,
        ..Faults::of(faults::ALL, &processes)
    };
    plan.faults = faults.draw(&mut random);
    if random.one_in(2) {
        plan.faults.extend(rates(&mut random));
    }
    plan
}

/// A network that is bad all the time.
fn rates(random: &mut Random) -> Vec<Fault> {
    let most = random.pick(&PER_MILLE).copied().unwrap_or(1);
    let points = [faults::PACKET, faults::RESPONSE];
    let kinds = [Kind::Drop, Kind::Duplicate, Kind::Reorder, Kind::Corrupt(0)];
    let mut rates = Vec::new();
    for kind in kinds {
        if random.one_in(2) {
            let when = When::PerMille(1 + random.below(most));
            rates.extend(points.iter().map(|point| Fault {
                point: point.name.into(),
                when,
                kind: kind.clone(),
            }));
        }
    }
    rates
}

/// The plans in which everything is tried.
pub fn undisturbed() -> Vec<Plan> {
    let parameters = Parameters {
        hcas: HCAS,
        workload: Workload {
            processes: 2,
            connections: 2,
            messages: 4,
        },
    };
    let plan = |seed| Plan::new(seed, SCENARIO).with(&parameters);
    (0..SEEDS).map(plan).collect()
}

/// The deaths of which pairs are tried: of each process, and of each HCA's link, at the first posts.
pub fn deaths_at_posts(processes: &[Process]) -> Vec<Fault> {
    (1..=POSTS)
        .flat_map(|nth| deaths(&faults::POST, nth, processes))
        .collect()
}
