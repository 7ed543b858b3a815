//! Plans of the offload stack: from a seed, and those in which everything is tried.

use std::sync::LazyLock;

use snaprig_sim::{
    Fault, Kind, KindName, Parameters as Fixed, Plan, Point, Process, Random, When, shrink::Amount,
};
use snaprig_snapify::{Step, faults::of_step};

use crate::{
    parameters::{Parameters, Workload},
    variants::Variant,
};
use snaprig_scenario::scenario::draw::{self, Faults, any_victim, pick};

/// The points that the stack can reach.
pub static POINTS: LazyLock<Vec<Point>> = LazyLock::new(|| {
    let of_crates = [
        snaprig_scif::faults::ALL,
        snaprig_coi::faults::ALL,
        coi_device::faults::ALL,
        snaprig_snapify::faults::ALL,
        snaprig_snapify_io::faults::ALL,
    ];
    of_crates.concat()
});
/// Points by which a run comes a hundred times.
const OFTEN: [Point; 2] = [snaprig_scif::faults::MESSAGE, snaprig_coi::faults::THREAD];
/// Those that make one thing late, and nothing else.
const SLOW: [Point; 7] = [
    snaprig_coi::faults::PIPE_THREAD1,
    coi_device::faults::PIPE_THREAD2,
    coi_device::faults::RUN_FUNCTION,
    coi_device::faults::RESULT,
    coi_device::faults::GIVE_BACK,
    snaprig_coi::faults::TRANSFER,
    snaprig_coi::faults::TRANSFERRED,
];
/// One plan in so many has something that is slow again and again: what is under way when a
/// process is paused is what matters.
const SLOW_ONE_IN: u64 = 2;
/// Longest delay of what is slow: most of a checkpoint.
const SLOW_NS: u64 = 300_000;
/// One plan in so many is of two snapshots, which have more in them.
const TWICE_ONE_IN: u64 = 5;

/// What there can be less of.
pub const AMOUNTS: [Amount<'static>; 7] = [
    Amount {
        path: &["cards"],
        least: 2,
    },
    Amount {
        path: &["workload", "processes"],
        least: 1,
    },
    Amount {
        path: &["workload", "offloads"],
        least: 1,
    },
    Amount {
        path: &["workload", "buffers"],
        least: 0,
    },
    Amount {
        path: &["workload", "writes"],
        least: 0,
    },
    Amount {
        path: &["workload", "pipelines"],
        least: 1,
    },
    Amount {
        path: &["workload", "runs"],
        least: 1,
    },
];

/// The order of events in which everything is tried.
const SEED: u64 = 0;
/// So many cards then.
const CARDS: u16 = 2;
/// The order of events of two offload processes: one with pipelines and buffers that are destroyed.
const TWO_SEED: u64 = 7;

/// Parameters from a seed.
pub fn parameters(random: &mut Random) -> Parameters {
    let mut amount = |least: u64, most: u64| (least + random.below(most - least + 1)) as u16;
    let workload = Workload {
        processes: if amount(0, 7) == 0 { 2 } else { 1 },
        offloads: if amount(0, 2) == 0 { 2 } else { 1 },
        pipelines: amount(1, 2),
        runs: amount(1, 5),
        buffers: amount(0, 3),
        writes: amount(0, 3),
    };
    Parameters {
        cards: CARDS,
        workload,
    }
}

/// The plan of a seed.
pub fn draw(seed: u64, fixed: &Fixed) -> Plan {
    let mut random = Random::new(seed, "plan");
    let cards = 2 + random.below(2) as u16;
    let scenario = match random.one_in(TWICE_ONE_IN) {
        true => "twice",
        false => random.pick(&Variant::NAMES).copied().unwrap_or("migrate"),
    };
    let drawn = Parameters {
        cards,
        ..parameters(&mut Random::new(seed, "workload"))
    };
    let mut plan = Plan::new(seed, scenario).with(&drawn);
    plan.parameters.extend(fixed.clone());
    let parameters = plan.parameters_as().unwrap_or(drawn);
    let processes = parameters.processes();
    let faults = Faults {
        favourite: Some(snaprig_scif::faults::MESSAGE),
        often: &OFTEN,
        victim,
        ..Faults::of(&POINTS, &processes)
    };
    plan.faults = faults.draw(&mut random);
    if random.one_in(SLOW_ONE_IN)
        && let Some(point) = random.pick(&SLOW)
    {
        plan.faults.push(Fault {
            point: point.name.into(),
            when: When::PerMille(100 + random.below(400)),
            kind: Kind::Delay(random.below(SLOW_NS)),
        });
    }
    plan
}

/// Mostly cards.
fn victim(kind: KindName, processes: &[Process], random: &mut Random) -> Option<String> {
    let is_death = matches!(kind, KindName::Crash | KindName::Hang);
    match is_death && random.one_in(4) {
        true => any_victim(kind, processes, random),
        false => pick(processes, |process| process.can(KindName::Restart), random),
    }
}

/// The plans in which everything is tried: each variant, and two offload processes that share buffers.
pub fn undisturbed() -> Vec<Plan> {
    let usual = Parameters::of(CARDS);
    let variants = Variant::NAMES.map(|name| Plan::new(SEED, name).with(&usual));
    let two = Parameters {
        cards: CARDS,
        workload: Workload {
            processes: 1,
            offloads: 2,
            pipelines: 1,
            runs: 2,
            buffers: 1,
            writes: 2,
        },
    };
    let two = Plan::new(TWO_SEED, "swap").with(&two);
    variants.into_iter().chain([two]).collect()
}

/// The deaths of which pairs are tried: of each process, at each step of Snapify's calls.
pub fn deaths(processes: &[Process]) -> Vec<Fault> {
    let steps = Step::ALL.into_iter().map(of_step);
    steps
        .flat_map(|point| draw::deaths(&point, 1, processes))
        .collect()
}
