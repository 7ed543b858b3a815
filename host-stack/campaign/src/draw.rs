//! A plan from a seed.

use snaprig_sim::{Fault, Kind, KindName, Plan, Random, When};

use crate::{model::SCENARIOS, points};

/// Most faults of a drawn plan.
const FAULTS_MAX: u64 = 3;
/// A fault's occurrence is drawn below 2 to the power of a number below this.
const NTH_BITS: u64 = 8;
/// Longest delay drawn: longer than a checkpoint takes.
const DELAY_NS: u64 = 2_000_000;

/// The plan of a seed.
pub fn draw(seed: u64) -> Plan {
    let mut random = Random::new(seed, "plan");
    let cards = 2 + random.below(2) as u16;
    let scenario = random.pick(&SCENARIOS).copied().unwrap_or("migrate");
    let mut plan = Plan::new(seed, cards, scenario);
    let points = points::all();
    for _ in 0..random.below(FAULTS_MAX + 1) {
        let Some(point) = random.pick(&points) else {
            continue;
        };
        let Some(name) = random.pick(point.kinds) else {
            continue;
        };
        if let Some(kind) = kind(*name, cards, &mut random) {
            // Some points are passed once in a run, others hundreds of times.
            let most = 1 << random.below(NTH_BITS);
            let nth = 1 + random.below(most);
            plan.faults.push(Fault {
                point: point.name.into(),
                when: When::Nth(nth),
                kind,
            });
        }
    }
    plan
}

fn kind(name: KindName, cards: u16, random: &mut Random) -> Option<Kind> {
    let errnos = [libc::EIO, libc::ENOMEM, libc::ENOSPC, libc::EACCES];
    let process = |random: &mut Random| match random.below(8) {
        0 => "host".to_owned(),
        1 => "rig".to_owned(),
        _ => format!("card{}", 1 + random.below(cards.into())),
    };
    Some(match name {
        KindName::Delay => Kind::Delay(random.below(DELAY_NS)),
        KindName::Error => Kind::Error(*random.pick(&errnos)?),
        KindName::Corrupt => Kind::Corrupt(random.number() >> 32),
        KindName::TornWrite => Kind::TornWrite(random.below(6)),
        KindName::DiskFull => Kind::DiskFull,
        KindName::Crash => Kind::Crash(process(random)),
        KindName::Hang => Kind::Hang(process(random)),
        _ => return None,
    })
}
