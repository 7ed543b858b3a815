//! Plans from seeds: a link that flaps, a GID that moves, a process that dies, packets that are lost, doubled, late or damaged.

use snaprig_sim::{Fault, Kind, Plan, Random, When};

/// What there is to break, as the undisturbed branch has shown it.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// HCAs of the fabric.
    pub hcas: u32,
    /// Processes that use them.
    pub processes: u32,
    /// How long the program ran, in nanoseconds.
    pub runs_ns: u64,
}

/// The longest time that a link is down: reliable connections wait longer.
const DOWN_NS_MAX: u64 = 400_000_000;
/// Most faults of packets, and the last packet that has one.
const PACKETS_MAX: u64 = 8;
const NTH_MAX: u64 = 400;
/// The longest delay of a packet.
const DELAY_NS_MAX: u64 = 20_000_000;

/// The plan of a seed.
pub fn draw(seed: u64, of: Extent) -> Plan {
    let mut random = Random::new(seed, "branch");
    let mut plan = Plan::new(seed, "verbs").with(&serde_json::json!({ "cards": of.hcas }));
    let at_ns = random.below(of.runs_ns.max(1));
    let hca = format!("hca{}", 1 + random.below(of.hcas.max(1).into()));
    plan.faults = match random.below(8) {
        0..2 => {
            let down_ns = 1 + random.below(DOWN_NS_MAX);
            vec![
                timed(at_ns, Kind::LinkDown(hca.clone())),
                timed(at_ns.saturating_add(down_ns), Kind::LinkUp(hca)),
            ]
        }
        2 => vec![timed(at_ns, Kind::GidChange(hca))],
        3 => {
            let process = 1 + random.below(of.processes.max(1).into());
            vec![timed(at_ns, Kind::Crash(format!("process{process}")))]
        }
        _ => {
            let count = 1 + random.below(PACKETS_MAX);
            (0..count).map(|_| of_packet(&mut random)).collect()
        }
    };
    plan
}

fn timed(at_ns: u64, kind: Kind) -> Fault {
    Fault {
        point: "fabric.time".into(),
        when: When::AtNs(at_ns),
        kind,
    }
}

fn of_packet(random: &mut Random) -> Fault {
    let point = match random.one_in(3) {
        true => "hca.response",
        false => "hca.packet",
    };
    let kind = match random.below(5) {
        0 => Kind::Drop,
        1 => Kind::Duplicate,
        2 => Kind::Reorder,
        3 => Kind::Delay(random.below(DELAY_NS_MAX)),
        _ => Kind::Corrupt(random.number() >> 32),
    };
    Fault {
        point: point.into(),
        when: When::Nth(1 + random.below(NTH_MAX)),
        kind,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_a_plan_that_a_fabric_can_carry_out() {
        let of = Extent {
            hcas: 2,
            processes: 4,
            runs_ns: 1_000_000_000,
        };
        let mut kinds = std::collections::BTreeSet::new();
        for seed in 0..200 {
            let plan = draw(seed, of);
            assert_eq!(plan, draw(seed, of));
            snaprig_verbs::daemon::check_plan(&plan, 2).expect("it can be carried out");
            kinds.extend(plan.faults.iter().map(|fault| fault.kind.name()));
        }
        assert_eq!(kinds.len(), 9, "{kinds:?}");
    }
}
