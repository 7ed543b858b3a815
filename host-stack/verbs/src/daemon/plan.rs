//! A fault plan at work on a real fabric: its faults at the points that packets pass. Occurrences and
//! time count from when the fabric got the plan; its seed draws. A packet that is delayed is overtaken
//! by those behind it.

use serde::{Deserialize, de::IgnoredAny};
use snaprig_hca::{Packet, faults};
use snaprig_sim::{Faults, Kind, Plan, PlanError, Point, Process};

/// The points that the daemon sees: it carries packets, and no more.
const POINTS: [Point; 2] = [faults::PACKET, faults::RESPONSE];
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
    /// No packet passes there.
    #[error(
        "fault {index}: {point} cannot be reached in real programs; hca.packet and hca.response can"
    )]
    Point {
        /// Which fault, from 0.
        index: usize,
        /// Its point.
        point: String,
    },
    /// It is about a program.
    #[error("fault {index}: {kind} cannot be done to real programs; `kill` can")]
    Kind {
        /// Which fault, from 0.
        index: usize,
        /// What it says.
        kind: &'static str,
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
        if exists && POINTS.iter().all(|known| known.name != *point) {
            let point = point.clone();
            return Err(LiveError::Point { index, point });
        }
        if matches!(fault.kind, Kind::Crash(_) | Kind::Hang(_)) {
            let kind = fault.kind.name().name();
            return Err(LiveError::Kind { index, kind });
        }
    }
    let hca = |number| Process::new(format!("hca{number}"), Process::DEVICE);
    let hcas: Vec<_> = (1..=hcas).map(hca).collect();
    Ok(plan.check(&POINTS, &hcas)?)
}

/// A plan that was begun.
#[derive(Debug)]
pub struct Running {
    faults: Faults,
    begun_ns: u64,
}

impl Running {
    /// Begins now.
    pub fn new(plan: &Plan, now_ns: u64) -> Self {
        Self {
            faults: Faults::new(plan, &POINTS),
            begun_ns: now_ns,
        }
    }

    /// What happens to a packet that leaves.
    pub fn at(&mut self, packet: &Packet<'_>, now_ns: u64) -> Option<Kind> {
        let point = match packet.is_response() {
            true => faults::RESPONSE,
            false => faults::PACKET,
        };
        self.faults
            .at(point.name, now_ns.saturating_sub(self.begun_ns))
    }

    /// How many faults have happened.
    pub fn happened(&self) -> u64 {
        let reached = self.faults.reached();
        reached.values().map(|reached| reached.faults).sum()
    }
}

/// The HCA that a plan names, from 0.
pub fn hca(name: &str) -> Option<u32> {
    let number: u32 = name.strip_prefix("hca")?.parse().ok()?;
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
}
