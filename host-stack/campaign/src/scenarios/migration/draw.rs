//! Plans of a migration: from a seed, and those in which everything is tried.

use snaprig_coord::migration::faults;
use snaprig_sim::{Fault, Parameters as Fixed, Plan, Point, Process, Random, shrink::Amount};

use super::{Parameters, SCENARIO};
use crate::scenario::draw::{Faults, deaths};

/// Points by which a run comes a dozen times.
const OFTEN: [Point; 4] = [faults::STEP, faults::STEPPED, faults::MESSAGE, faults::RUN];
/// An occurrence is drawn below 2 to the power of a number below this: there, and elsewhere.
const NTH_BITS: [u64; 2] = [6, 2];

/// Orders of events in which everything is tried.
const SEEDS: u64 = 4;
/// Steps of the machines at which pairs of deaths happen.
const STEPS: u64 = 12;

/// What there can be less of.
pub const AMOUNTS: [Amount<'static>; 2] = [
    Amount {
        path: &["orders"],
        least: 0,
    },
    Amount {
        path: &["steps"],
        least: 1,
    },
];

/// Parameters from a seed.
pub fn parameters(random: &mut Random) -> Parameters {
    let mut amount = |least: u64, most: u64| (least + random.below(most - least + 1)) as u16;
    Parameters {
        steps: amount(5, 80),
        orders: amount(1, 3),
    }
}

/// The plan of a seed: up to twice as many faults as elsewhere, since a run is short.
pub fn draw(seed: u64, fixed: &Fixed) -> Plan {
    let mut random = Random::new(seed, "plan of a migration");
    let mut plan = Plan::new(seed, SCENARIO).with(&parameters(&mut random));
    plan.parameters.extend(fixed.clone());
    let processes = Parameters::processes();
    let faults = Faults {
        often: &OFTEN,
        nth_bits: NTH_BITS,
        ..Faults::of(faults::ALL, &processes)
    };
    plan.faults = faults.draw(&mut random);
    plan.faults.extend(faults.draw(&mut random));
    plan
}

/// The plans in which everything is tried.
pub fn undisturbed() -> Vec<Plan> {
    let plan = |seed| Plan::new(seed, SCENARIO).with(&Parameters::default());
    (0..SEEDS).map(plan).collect()
}

/// The deaths of which pairs are tried: of each side, before and after each of the first steps.
pub fn deaths_at_steps(processes: &[Process]) -> Vec<Fault> {
    let points = [faults::STEP, faults::STEPPED];
    (1..=STEPS)
        .flat_map(|nth| {
            points
                .iter()
                .flat_map(move |point| deaths(point, nth, processes))
        })
        .collect()
}
