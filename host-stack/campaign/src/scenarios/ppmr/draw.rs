//! Plans of pipelines: from a seed, and those in which everything is tried.

use snaprig_coord::migration::faults as decision;
use snaprig_ppmr::{Mode, faults};
use snaprig_sim::{Fault, Parameters as Fixed, Plan, Point, Process, Random, shrink::Amount};

use super::{Parameters, SCENARIO};
use crate::scenario::draw::{Faults, deaths};

/// All points: of the pipelines, and of who decides.
pub const POINTS: [Point; 12] = [
    faults::CONNECT,
    faults::WRITE,
    faults::MESSAGE,
    faults::TRANSFER,
    faults::READ,
    decision::STEP,
    decision::STEPPED,
    decision::MESSAGE,
    decision::CONNECT,
    decision::RUN,
    decision::RECORD,
    decision::NAMED,
];
/// Points by which a run comes a dozen times.
const OFTEN: [Point; 8] = [
    faults::WRITE,
    faults::MESSAGE,
    faults::TRANSFER,
    faults::READ,
    decision::STEP,
    decision::STEPPED,
    decision::MESSAGE,
    decision::RUN,
];
/// An occurrence is drawn below 2 to the power of a number below this: there, and elsewhere.
const NTH_BITS: [u64; 2] = [7, 2];

/// Trees in which everything is tried: small ones, in both modes.
const MODES: [Mode; 2] = [Mode::Pull, Mode::Push];
/// Chunks and messages at which pairs of deaths happen.
const STEPS: u64 = 4;

/// What there can be less of.
pub const AMOUNTS: [Amount<'static>; 7] = [
    Amount {
        path: &["lacking"],
        least: 0,
    },
    Amount {
        path: &["sources"],
        least: 1,
    },
    Amount {
        path: &["processes"],
        least: 1,
    },
    Amount {
        path: &["bytes"],
        least: 0,
    },
    Amount {
        path: &["chunks"],
        least: 0,
    },
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
    let (sources, processes) = (amount(1, 3), amount(1, 3));
    let lacks = amount(0, 7) == 0 && sources * processes > 1;
    Parameters {
        sources,
        processes,
        bytes: amount(0, 200),
        chunks: amount(0, 6),
        lacking: u16::from(lacks),
        mode: MODES[usize::from(amount(0, 1))],
        slow: amount(0, 3) == 0,
        steps: amount(5, 40),
        orders: amount(1, 3),
    }
}

/// The plan of a seed.
pub fn draw(seed: u64, fixed: &Fixed) -> Plan {
    let mut random = Random::new(seed, "plan of pipelines");
    let mut plan = Plan::new(seed, SCENARIO).with(&parameters(&mut random));
    plan.parameters.extend(fixed.clone());
    let parameters: Parameters = plan.parameters_as().unwrap_or_default();
    let processes = parameters.all_processes();
    let faults = Faults {
        often: &OFTEN,
        nth_bits: NTH_BITS,
        ..Faults::of(&POINTS, &processes)
    };
    plan.faults = faults.draw(&mut random);
    plan
}

/// The plans in which everything is tried: a tree of two processes that has to use its chunks again, in both modes, and two
/// trees that share them.
pub fn undisturbed() -> Vec<Plan> {
    let small = |mode| Parameters {
        sources: 1,
        bytes: 40,
        chunks: 1,
        steps: 5,
        mode,
        ..Parameters::default()
    };
    let two = |mode| Parameters {
        sources: 2,
        processes: 1,
        slow: true,
        ..small(mode)
    };
    let all = MODES
        .into_iter()
        .flat_map(|mode| [small(mode), two(mode)])
        .enumerate();
    all.map(|(seed, parameters)| Plan::new(seed as u64, SCENARIO).with(&parameters))
        .collect()
}

/// The deaths of which pairs are tried: of everybody, at the first chunks and messages, and at the decision.
pub fn deaths_in_pipelines(processes: &[Process]) -> Vec<Fault> {
    let often = [faults::MESSAGE, faults::TRANSFER, decision::MESSAGE];
    let once = [decision::RECORD, decision::NAMED];
    let steps = (1..=STEPS).flat_map(|nth| often.map(|point| (point, nth)));
    steps
        .chain(once.map(|point| (point, 1)))
        .flat_map(|(point, nth)| deaths(&point, nth, processes))
        .collect()
}
