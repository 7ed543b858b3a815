//! A plan from a seed.

use snaprig_sim::{Fault, Kind, KindName, Plan, Random, When, Workload};

use crate::{
    model::{SCENARIOS, processes},
    points,
};

/// Most faults of a drawn plan.
const FAULTS_MAX: u64 = 3;
/// A fault's occurrence is drawn below 2 to the power of a number below this.
const NTH_BITS: u64 = 8;
/// Longest delay drawn: longer than a checkpoint takes.
const DELAY_NS: u64 = 2_000_000;
/// Timed faults are drawn before this: about as long as a run takes.
const TIME_NS: u64 = 500_000;

/// The plan of a seed.
pub fn draw(seed: u64) -> Plan {
    draw_on(seed, None)
}

/// The same, for a system with so many cards.
pub fn draw_on(seed: u64, cards: Option<u16>) -> Plan {
    let mut random = Random::new(seed, "plan");
    let drawn = 2 + random.below(2) as u16;
    let cards = cards.unwrap_or(drawn);
    let scenario = random.pick(&SCENARIOS).copied().unwrap_or("migrate");
    let mut plan = Plan::new(seed, cards, scenario);
    plan.workload = workload(seed);
    let points = points::all();
    for _ in 0..random.below(FAULTS_MAX + 1) {
        let Some(point) = random.pick(&points) else {
            continue;
        };
        let Some(name) = random.pick(point.kinds) else {
            continue;
        };
        if let Some(kind) = kind(*name, &plan, &mut random) {
            plan.faults.push(Fault {
                point: point.name.into(),
                when: when(&mut random),
                kind,
            });
        }
    }
    plan
}

fn workload(seed: u64) -> Workload {
    let mut random = Random::new(seed, "workload");
    let mut amount = |least: u64, most: u64| (least + random.below(most - least + 1)) as u16;
    Workload {
        processes: if amount(0, 3) == 0 { 2 } else { 1 },
        pipelines: amount(1, 2),
        runs: amount(1, 6),
        buffers: amount(0, 2),
        writes: amount(0, 2),
    }
}

fn when(random: &mut Random) -> When {
    if random.one_in(8) {
        return When::AtNs(random.below(TIME_NS));
    }
    // Some points are passed once in a run, others hundreds of times.
    let most = 1 << random.below(NTH_BITS);
    When::Nth(1 + random.below(most))
}

fn kind(name: KindName, plan: &Plan, random: &mut Random) -> Option<Kind> {
    let errnos = [libc::EIO, libc::ENOMEM, libc::ENOSPC, libc::EACCES];
    let card = |random: &mut Random| format!("card{}", 1 + random.below(plan.cards.into()));
    // Mostly cards.
    let process = |random: &mut Random| match random.one_in(4) {
        true => random.pick(&processes(plan)).cloned().unwrap_or_default(),
        false => card(random),
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
