//! Plans with SCIF: from a seed, and those in which everything is tried.

use std::sync::LazyLock;

use snaprig_scif::faults;
use snaprig_sim::{
    Fault, KindName, Parameters as Fixed, Plan, Point, Process, Random, shrink::Amount,
};

use super::{Parameters, SCENARIO, Workload};
use crate::scenario::draw::{self, Faults, any_victim, pick};

/// The points that nodes, links and programs can reach.
pub static POINTS: LazyLock<Vec<Point>> =
    LazyLock::new(|| [faults::ALL, faults::program::ALL].concat());
/// Points by which a run comes a hundred times.
const OFTEN: [Point; 2] = [faults::MESSAGE, faults::program::CALL];
/// Cards when everything is tried.
const CARDS: u16 = 2;
/// Orders of events in which everything is tried: work that is different.
const SEEDS: u64 = 3;
/// Calls at which pairs of faults happen, and how far apart they are.
const CALLS: u64 = 8;
const CALLS_APART: u64 = 9;

/// What there can be less of.
pub const AMOUNTS: [Amount<'static>; 6] = [
    Amount {
        path: &["cards"],
        least: 2,
    },
    Amount {
        path: &["workload", "processes"],
        least: 1,
    },
    Amount {
        path: &["workload", "windows"],
        least: 0,
    },
    Amount {
        path: &["workload", "copies"],
        least: 0,
    },
    Amount {
        path: &["workload", "pairs"],
        least: 1,
    },
    Amount {
        path: &["workload", "sends"],
        least: 1,
    },
];

/// Parameters from a seed.
pub fn parameters(random: &mut Random) -> Parameters {
    let mut amount = |least: u64, most: u64| (least + random.below(most - least + 1)) as u16;
    // Cards talk with each other, too.
    let cards = if amount(0, 3) == 0 { 1 } else { amount(2, 3) };
    let workload = Workload {
        processes: amount(1, 2),
        pairs: amount(2, 6),
        sends: amount(1, 6),
        windows: amount(1, 4),
        copies: amount(0, 8),
    };
    Parameters { cards, workload }
}

/// The plan of a seed.
pub fn draw(seed: u64, fixed: &Fixed) -> Plan {
    let mut random = Random::new(seed, "plan of scif");
    let drawn = parameters(&mut random);
    let mut plan = Plan::new(seed, SCENARIO).with(&drawn);
    plan.parameters.extend(fixed.clone());
    let processes = plan.parameters_as().unwrap_or(drawn).processes();
    let faults = Faults {
        favourite: Some(faults::MESSAGE),
        often: &OFTEN,
        victim,
        ..Faults::of(&POINTS, &processes)
    };
    plan.faults = faults.draw(&mut random);
    plan
}

/// As often cards as anybody.
fn victim(kind: KindName, processes: &[Process], random: &mut Random) -> Option<String> {
    let is_death = matches!(kind, KindName::Crash | KindName::Hang);
    match !is_death || random.one_in(2) {
        true => pick(processes, |process| process.can(KindName::Restart), random),
        false => any_victim(kind, processes, random),
    }
}

/// The plans in which everything is tried.
pub fn undisturbed() -> Vec<Plan> {
    let parameters = Parameters {
        cards: CARDS,
        workload: Workload {
            processes: 1,
            pairs: 2,
            sends: 1,
            windows: 1,
            copies: 1,
        },
    };
    let plan = |seed| Plan::new(seed, SCENARIO).with(&parameters);
    (0..SEEDS).map(plan).collect()
}

/// The deaths of which pairs are tried: of each process, at the first calls.
pub fn deaths(processes: &[Process]) -> Vec<Fault> {
    (1..=CALLS)
        .flat_map(|nth| draw::deaths(&faults::program::CALL, nth * CALLS_APART, processes))
        .collect()
}
