//! A fault plan as a source of health: the same nodes are about to fail at the same moments, run after run.
//!
//! ```json
//! { "version": 1, "seed": 7, "scenario": "health",
//!   "faults": [ { "point": "health.look", "nth": 3, "kind": { "crash": "node3" } } ] }
//! ```
//!
//! A look at the health of nodes is the one fault point. Its kind is the crash that a node is about to have: from that look on
//! the node is failing.

use std::{collections::BTreeSet, path::Path, time::Instant};

use snaprig_sim::{Faults, Kind, Plan, Process};

use crate::AnyError;

snaprig_wire::fault_points! {
    /// All nodes are looked at.
    LOOK = "health.look", "ppmr watch looks at nodes: one begins to fail", [Crash];
}

/// A plan, and what has come of it.
pub struct HealthPlan {
    faults: Faults,
    begun: Instant,
    failing: BTreeSet<String>,
}

impl HealthPlan {
    /// Reads one for these nodes, whose time begins now.
    pub fn read(path: &Path, nodes: &[&str]) -> Result<Self, AnyError> {
        let plan = Plan::read(path)?;
        let nodes: Vec<_> = nodes
            .iter()
            .map(|node| Process::new(*node, LOOK.kinds))
            .collect();
        plan.check(ALL, &nodes)
            .map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Self {
            faults: Faults::new(&plan, ALL),
            begun: Instant::now(),
            failing: BTreeSet::new(),
        })
    }

    /// Nodes are looked at once more.
    pub fn look(&mut self) {
        let now = self.begun.elapsed().as_nanos();
        let now_ns = now.try_into().unwrap_or(u64::MAX);
        if let Some(Kind::Crash(node)) = self.faults.at(LOOK.name, now_ns) {
            self.failing.insert(node);
        }
    }

    /// Whether a node is failing.
    pub fn names(&self, node: &str) -> bool {
        self.failing.contains(node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(faults: &str) -> Result<HealthPlan, AnyError> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("plan.json");
        let text =
            format!(r#"{{"version": 1, "seed": 7, "scenario": "health", "faults": [{faults}]}}"#);
        std::fs::write(&path, text).unwrap();
        HealthPlan::read(&path, &["node1", "node2"])
    }

    #[test]
    fn a_node_fails_from_the_look_that_the_plan_says() {
        let mut plan = read(
            r#"{"point": "health.look", "nth": 2, "kind": {"crash": "node2"}},
               {"point": "health.look", "at_ns": 3600000000000, "kind": {"crash": "node1"}}"#,
        )
        .unwrap();
        let failing: Vec<_> = (0..4)
            .map(|_| {
                plan.look();
                ["node1", "node2"].map(|node| plan.names(node))
            })
            .collect();
        assert_eq!(
            failing,
            [[false, false], [false, true], [false, true], [false, true]]
        );
    }

    #[test]
    fn what_cannot_happen_is_refused_by_name() {
        for (fault, why) in [
            (
                r#"{"point": "health.look", "nth": 1, "kind": {"crash": "node9"}}"#,
                "node9",
            ),
            (
                r#"{"point": "health.look", "nth": 1, "kind": "drop"}"#,
                "drop does not apply",
            ),
            (
                r#"{"point": "fabric.time", "at_ns": 1, "kind": {"crash": "node1"}}"#,
                "fabric.time",
            ),
        ] {
            let error = read(fault).err().unwrap().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
