//! A plan from a seed.

use snaprig_sim::{Fault, Kind, KindName, Plan, Point, Random, When, Workload};

use crate::{
    coord,
    model::SCENARIOS,
    points, scif,
    system::{System, processes},
    verbs,
};

/// Most faults of a drawn plan.
const FAULTS_MAX: u64 = 3;
/// A fault's occurrence is drawn below 2 to the power of a number below this: where a run comes by
/// often, and elsewhere.
const NTH_BITS: [u64; 2] = [8, 3];
/// Points by which a run comes a hundred times.
const OFTEN: [Point; 6] = [
    snaprig_coord::faults::MESSAGE,
    snaprig_scif::faults::MESSAGE,
    snaprig_scif::faults::program::CALL,
    snaprig_hca::faults::PACKET,
    snaprig_hca::faults::RESPONSE,
    snaprig_coi::faults::THREAD,
];
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
/// Longest delay drawn: longer than a checkpoint takes.
const DELAY_NS: u64 = 2_000_000;
/// Timed faults are drawn before this: about as long as a run takes.
const TIME_NS: u64 = 500_000;

/// One seed in so many is about verbs.
const VERBS_ONE_IN: u64 = 5;
/// Of the others, one in so many is about SCIF: as many.
const SCIF_ONE_IN: u64 = 4;
/// Of the others again, one in so many is about a job and its coordinator.
const COORD_ONE_IN: u64 = 10;
/// Of faults in a system with links, one in so many is one of a link's: there are many ways in which
/// one message can go wrong.
const LINK_ONE_IN: u64 = 4;
/// One offload stack in so many has something that is slow again and again: what is under way when a
/// process is paused is what matters.
const SLOW_ONE_IN: u64 = 2;
/// Longest delay of what is slow: most of a checkpoint.
const SLOW_NS: u64 = 300_000;
/// The most packets in a thousand that a drawn plan loses, and so on.
const PER_MILLE: [u64; 3] = [20, 50, 200];

/// The plan of a seed, of one of these scenarios, or, if none is named, of any.
pub fn draw(seed: u64, scenarios: &[&str]) -> Plan {
    let Some(scenario) = Random::new(seed, "scenario").pick(scenarios).copied() else {
        let mut system = Random::new(seed, "system");
        return match () {
            () if system.one_in(VERBS_ONE_IN) => draw_verbs(seed, None),
            () if system.one_in(SCIF_ONE_IN) => draw_scif(seed, None),
            () if system.one_in(COORD_ONE_IN) => draw_coord(seed),
            () => draw_on(seed, None),
        };
    };
    match System::of(scenario) {
        System::Verbs => draw_verbs(seed, None),
        System::Scif => draw_scif(seed, None),
        System::Coord => draw_coord(seed),
        System::Offload => Plan {
            scenario: scenario.into(),
            ..draw_on(seed, None)
        },
    }
}

/// The plan of a seed for SCIF, with so many cards.
pub fn draw_scif(seed: u64, cards: Option<u16>) -> Plan {
    let mut random = Random::new(seed, "plan of scif");
    let mut amount = |least: u64, most: u64| (least + random.below(most - least + 1)) as u16;
    // Cards talk with each other, too.
    let drawn = if amount(0, 3) == 0 { 1 } else { amount(2, 3) };
    let mut plan = Plan::new(seed, cards.unwrap_or(drawn), scif::SCENARIO);
    plan.workload = Workload {
        processes: amount(1, 2),
        offloads: 1,
        pipelines: amount(2, 6),
        runs: amount(1, 6),
        buffers: amount(1, 4),
        writes: amount(0, 8),
    };
    draw_faults(&mut plan, &points::scif(), &mut random);
    plan
}

/// The plan of a seed for a job and its coordinator.
pub fn draw_coord(seed: u64) -> Plan {
    let mut random = Random::new(seed, "plan of coord");
    let mut amount = |least: u64, most: u64| (least + random.below(most - least + 1)) as u16;
    let mut plan = Plan::new(seed, 1, coord::SCENARIO);
    plan.workload = Workload {
        processes: amount(1, 4),
        offloads: 1,
        // Who is not connected with a peer does not miss it.
        pipelines: amount(0, 4),
        runs: amount(1, 30),
        buffers: 0,
        writes: amount(1, 3),
    };
    draw_faults(&mut plan, snaprig_coord::faults::ALL, &mut random);
    plan
}

/// The plan of a seed for verbs, on so many HCAs.
pub fn draw_verbs(seed: u64, cards: Option<u16>) -> Plan {
    let mut random = Random::new(seed, "plan of verbs");
    let mut amount = |least: u64, most: u64| (least + random.below(most - least + 1)) as u16;
    let drawn = amount(1, 3);
    let mut plan = Plan::new(seed, cards.unwrap_or(drawn), verbs::SCENARIO);
    plan.workload = Workload {
        processes: amount(2, 4),
        offloads: 1,
        pipelines: amount(1, 4),
        runs: amount(1, 20),
        buffers: 0,
        writes: 0,
    };
    let points = snaprig_hca::faults::ALL;
    draw_faults(&mut plan, points, &mut random);
    if random.one_in(2) {
        plan.faults.extend(draw_rates(&mut random));
    }
    plan
}

/// A network that is bad all the time.
fn draw_rates(random: &mut Random) -> Vec<Fault> {
    let most = random.pick(&PER_MILLE).copied().unwrap_or(1);
    let points = [snaprig_hca::faults::PACKET, snaprig_hca::faults::RESPONSE];
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

/// The plan of a seed for an offload stack with so many cards.
pub fn draw_on(seed: u64, cards: Option<u16>) -> Plan {
    let mut random = Random::new(seed, "plan");
    let drawn = 2 + random.below(2) as u16;
    let cards = cards.unwrap_or(drawn);
    // That of two snapshots has more in it.
    let scenario = match random.one_in(5) {
        true => "twice",
        false => random.pick(&SCENARIOS).copied().unwrap_or("migrate"),
    };
    let mut plan = Plan::new(seed, cards, scenario);
    plan.workload = workload(seed);
    draw_faults(&mut plan, &points::offload(), &mut random);
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

fn draw_faults(plan: &mut Plan, points: &[Point], random: &mut Random) {
    for _ in 0..random.below(FAULTS_MAX + 1) {
        let link = snaprig_scif::faults::MESSAGE;
        let point = match points.contains(&link) && random.one_in(LINK_ONE_IN) {
            true => Some(&link),
            false => random.pick(points),
        };
        let Some(point) = point else {
            continue;
        };
        let Some(name) = random.pick(point.kinds) else {
            continue;
        };
        if let Some(kind) = kind(*name, plan, random) {
            plan.faults.push(Fault {
                point: point.name.into(),
                when: when(point, random),
                kind,
            });
        }
    }
}

fn workload(seed: u64) -> Workload {
    let mut random = Random::new(seed, "workload");
    let mut amount = |least: u64, most: u64| (least + random.below(most - least + 1)) as u16;
    Workload {
        processes: if amount(0, 7) == 0 { 2 } else { 1 },
        offloads: if amount(0, 2) == 0 { 2 } else { 1 },
        pipelines: amount(1, 2),
        runs: amount(1, 5),
        buffers: amount(0, 3),
        writes: amount(0, 3),
    }
}

fn when(point: &Point, random: &mut Random) -> When {
    if random.one_in(8) {
        return When::AtNs(random.below(TIME_NS));
    }
    let bits = NTH_BITS[usize::from(!OFTEN.contains(point))];
    let most = 1 << random.below(bits);
    When::Nth(1 + random.below(most))
}

fn kind(name: KindName, plan: &Plan, random: &mut Random) -> Option<Kind> {
    let errnos = [libc::EIO, libc::ENOMEM, libc::ENOSPC, libc::EACCES];
    let system = System::of(&plan.scenario);
    let numbered = |what: &str, count: u16, random: &mut Random| {
        format!("{what}{}", 1 + random.below(count.into()))
    };
    let card = |random: &mut Random| match system {
        System::Verbs => numbered("hca", plan.cards, random),
        System::Offload | System::Scif | System::Coord => numbered("card", plan.cards, random),
    };
    // Mostly cards, which are processes of the offload stack.
    let process = |random: &mut Random| match system {
        System::Verbs => numbered("process", plan.workload.processes, random),
        System::Scif if random.one_in(2) => card(random),
        System::Coord if random.one_in(2) => coord::COORDINATOR.into(),
        System::Scif | System::Coord => random.pick(&processes(plan)).cloned().unwrap_or_default(),
        System::Offload if random.one_in(4) => {
            random.pick(&processes(plan)).cloned().unwrap_or_default()
        }
        System::Offload => card(random),
    };
    Some(match name {
        KindName::Drop => Kind::Drop,
        KindName::Duplicate => Kind::Duplicate,
        KindName::Reorder => Kind::Reorder,
        KindName::Delay => Kind::Delay(random.below(DELAY_NS)),
        KindName::Error => Kind::Error(*random.pick(&errnos)?),
        KindName::Corrupt => Kind::Corrupt(random.number() >> 32),
        KindName::TornWrite => Kind::TornWrite(random.below(6)),
        KindName::DiskFull => Kind::DiskFull,
        KindName::Crash => Kind::Crash(process(random)),
        KindName::Hang => Kind::Hang(process(random)),
        KindName::Restart => Kind::Restart(card(random)),
        KindName::LinkDown => Kind::LinkDown(card(random)),
        KindName::Partition => Kind::Partition(card(random)),
    })
}
