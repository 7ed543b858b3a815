//! A fault plan at work on a real fabric: its faults at the points that packets pass, and those that time brings. Occurrences
//! and time count from when the fabric got the plan; its seed draws. A packet that is delayed is overtaken by those behind it.

use serde::{Deserialize, de::IgnoredAny};
use snaprig_hca::{Packet, faults};
use snaprig_sim::{Faults, Kind, KindName, Plan, PlanError, Point, Process, When};

use super::faults::TIME;

/// The points that packets pass.
const OF_PACKETS: [Point; 2] = [faults::PACKET, faults::RESPONSE];
/// What can happen to an HCA.
const HCA: &[KindName] = &[
    KindName::LinkDown,
    KindName::LinkUp,
    KindName::Partition,
    KindName::GidChange,
];
/// Its scenario: other plans are about other systems.
const SCENARIO: &str = "verbs";

/// What a plan of that scenario may say beside its faults. A real fabric has what it has; but what is none of
/// this is a mistake, such as faults under a wrong name.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Parameters {
    #[serde(rename = "cards")]
    _cards: IgnoredAny,
    #[serde(default, rename = "workload")]
    _workload: IgnoredAny,
}

/// Why a plan cannot be carried out on a real fabric.
#[derive(Debug, thiserror::Error)]
pub enum LiveError {
    /// It is no good at all.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// It is about another system.
    #[error("scenario {0:?} is not about a fabric; {SCENARIO:?} is")]
    Scenario(String),
    /// The daemon does not see it.
    #[error(
        "fault {index}: {point} cannot be reached in real programs; hca.packet, hca.response and fabric.time can"
    )]
    Point {
        /// Which fault, from 0.
        index: usize,
        /// Its point.
        point: String,
    },
    /// It is about a program, in the middle of something.
    #[error(
        "fault {index}: {kind} cannot be done to real programs at a packet; at fabric.time it can"
    )]
    Kind {
        /// Which fault, from 0.
        index: usize,
        /// What it says.
        kind: &'static str,
    },
    /// Time has no occurrences.
    #[error("fault {index}: at fabric.time, at_ns says when")]
    When {
        /// Which fault, from 0.
        index: usize,
    },
}

/// Checks a plan for a fabric of so many HCAs: in a plan, the first is "hca1".
pub fn check(plan: &Plan, hcas: usize) -> Result<(), LiveError> {
    if plan.scenario != SCENARIO {
        return Err(LiveError::Scenario(plan.scenario.clone()));
    }
    plan.parameters_as::<Parameters>()?;
    for (index, fault) in plan.faults.iter().enumerate() {
        let point = &fault.point;
        let exists = faults::ALL.iter().any(|known| known.name == *point);
        if exists && OF_PACKETS.iter().all(|known| known.name != *point) {
            let point = point.clone();
            return Err(LiveError::Point { index, point });
        }
        let is_timed = *point == TIME.name;
        if is_timed && !matches!(fault.when, When::AtNs(_)) {
            return Err(LiveError::When { index });
        }
        if !is_timed && matches!(fault.kind, Kind::Crash(_) | Kind::Hang(_)) {
            let kind = fault.kind.name().name();
            return Err(LiveError::Kind { index, kind });
        }
    }
    let hca = |number| Process::new(format!("hca{number}"), HCA);
    // How many there will be, nobody knows yet.
    let named = plan.faults.iter().filter_map(|fault| fault.kind.process());
    let named = named.filter(|name| process(name).is_some());
    let named = named.map(|name| Process::new(name, Process::PROGRAM));
    let all: Vec<_> = (1..=hcas).map(hca).chain(named).collect();
    let [packet, response] = OF_PACKETS;
    Ok(plan.check(&[packet, response, TIME], &all)?)
}

/// A plan that was begun.
#[derive(Debug)]
pub struct Running {
    of_packets: Faults,
    /// When what happens, in nanoseconds of the daemon's clock; the next one is the last.
    timed: Vec<(u64, Kind)>,
    /// How many of those have happened.
    passed: u64,
    begun_ns: u64,
}

impl Running {
    /// Begins now.
    pub fn new(plan: &Plan, now_ns: u64) -> Self {
        let timed = plan.faults.iter().filter(|fault| fault.point == TIME.name);
        let timed = timed.filter_map(|fault| match fault.when {
            When::AtNs(at) => Some((now_ns.saturating_add(at), fault.kind.clone())),
            _ => None,
        });
        let mut timed: Vec<_> = timed.collect();
        // Of two at the same time the first one in the plan is first.
        timed.reverse();
        timed.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
        Self {
            of_packets: Faults::new(plan, &OF_PACKETS),
            timed,
            passed: 0,
            begun_ns: now_ns,
        }
    }

    /// What happens to a packet that leaves.
    pub fn at(&mut self, packet: &Packet<'_>, now_ns: u64) -> Option<Kind> {
        let point = match packet.is_response() {
            true => faults::RESPONSE,
            false => faults::PACKET,
        };
        self.of_packets
            .at(point.name, now_ns.saturating_sub(self.begun_ns))
    }

    /// How many faults have happened.
    pub fn happened(&self) -> u64 {
        let reached = self.of_packets.reached();
        let of_packets: u64 = reached.values().map(|reached| reached.faults).sum();
        of_packets + self.passed
    }

    /// Whether something is still to happen to packets.
    pub fn is_about_packets(&self) -> bool {
        !self.of_packets.are_over()
    }

    /// What was to happen by now, one after the other.
    pub fn due(&mut self, now_ns: u64) -> Option<Kind> {
        let (_, kind) = self.timed.pop_if(|(at, _)| *at <= now_ns)?;
        self.passed += 1;
        Some(kind)
    }

    /// When the next thing happens that time brings.
    pub fn next_ns(&self) -> Option<u64> {
        self.timed.last().map(|(at, _)| *at)
    }
}

/// The HCA that a plan names, from 0.
pub fn hca(name: &str) -> Option<u32> {
    let number: u32 = name.strip_prefix("hca")?.parse().ok()?;
    number.checked_sub(1)
}

/// The process that a plan names, from 0.
pub fn process(name: &str) -> Option<usize> {
    let number: usize = name.strip_prefix("process")?.parse().ok()?;
    number.checked_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_done_to_real_programs_is_refused_by_name() {
        let refused = |scenario: &str, fault: &str| {
            let text = format!(
                r#"{{"version": 1, "seed": 1, "cards": 1, "scenario": "{scenario}", "faults": [{fault}]}}"#
            );
            let plan = Plan::parse(&text, "").expect("a plan");
            check(&plan, 2).err().map(|error| error.to_string())
        };
        let drop = r#"{"point": "hca.packet", "nth": 1, "kind": "drop"}"#;
        assert_eq!(refused("verbs", drop), None);
        let timed = |when: &str, kind: &str| {
            refused(
                "verbs",
                &format!(r#"{{"point": "fabric.time", {when}, "kind": {kind}}}"#),
            )
        };
        for kind in ["link_down", "link_up", "gid_change", "partition"] {
            let kind = format!(r#"{{"{kind}": "hca1"}}"#);
            assert_eq!(timed(r#""at_ns": 5"#, &kind), None);
        }
        assert_eq!(timed(r#""at_ns": 5"#, r#"{"crash": "process70"}"#), None);
        let never = timed(r#""nth": 5"#, r#"{"hang": "process1"}"#);
        assert!(never.is_some_and(|error| error.contains("at_ns")));
        let misspelt = r#"{"version": 1, "seed": 1, "cards": 1, "scenario": "verbs", "fault": []}"#;
        let misspelt = check(&Plan::parse(misspelt, "").expect("a plan"), 2);
        assert!(misspelt.is_err_and(|error| error.to_string().contains("`fault`")));
        for (scenario, fault, says) in [
            ("swap", drop, "swap"),
            (
                "verbs",
                r#"{"point": "hca.post", "nth": 1, "kind": {"delay": 1}}"#,
                "hca.post cannot",
            ),
            (
                "verbs",
                r#"{"point": "hca.packet", "nth": 1, "kind": {"crash": "process1"}}"#,
                "crash cannot",
            ),
            (
                "verbs",
                r#"{"point": "hca.packet", "nth": 1, "kind": {"link_down": "hca3"}}"#,
                "hca3",
            ),
            (
                "verbs",
                r#"{"point": "scif.copy", "nth": 1, "kind": {"error": 5}}"#,
                "scif.copy",
            ),
        ] {
            let error = refused(scenario, fault).expect("it is refused");
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn time_brings_faults_in_its_order() {
        let fault = |at_ns, kind| snaprig_sim::Fault {
            point: TIME.name.into(),
            when: When::AtNs(at_ns),
            kind,
        };
        let [down, up] = [Kind::LinkDown("hca1".into()), Kind::LinkUp("hca1".into())];
        let mut plan = Plan::new(1, SCENARIO);
        plan.faults = vec![fault(30, up.clone()), fault(10, down.clone())];
        let mut running = Running::new(&plan, 100);
        assert!(!running.is_about_packets(), "paths stay fast");
        assert_eq!((running.next_ns(), running.due(109)), (Some(110), None));
        assert_eq!(running.due(140), Some(down));
        assert_eq!((running.due(140), running.due(140)), (Some(up), None));
        assert_eq!((running.happened(), running.next_ns()), (2, None));
    }
}
