//! The smallest plan that still fails the same way: faults are left out, then parameters become smaller, then
//! what is left happens earlier, as long as the same thing breaks (Zeller, Hildebrandt, "Simplifying
//! and isolating failure-inducing input", IEEE TSE 2002).

use crate::plan::{Plan, When};

/// Runs that one shrinking may cost.
const RUNS_MAX: usize = 2000;

/// A number among a plan's parameters of which there can be less.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Amount<'a> {
    /// The names that lead to it.
    pub path: &'a [&'a str],
    /// The least that there can be.
    pub least: u64,
}

/// Shrinks `plan`, of whose parameters these may be smaller; `fails` runs a plan and says whether the same
/// thing breaks.
pub fn shrink(plan: &Plan, amounts: &[Amount<'_>], mut fails: impl FnMut(&Plan) -> bool) -> Plan {
    let mut best = plan.clone();
    let mut runs = 0;
    let mut try_plan = |candidate: &Plan| {
        runs += 1;
        runs <= RUNS_MAX && fails(candidate)
    };
    let mut chunk = best.faults.len().div_ceil(2).max(1);
    while !best.faults.is_empty() {
        let mut start = 0;
        while start < best.faults.len() {
            let mut candidate = best.clone();
            let end = (start + chunk).min(candidate.faults.len());
            candidate.faults.drain(start..end);
            match try_plan(&candidate) {
                true => best = candidate,
                false => start += chunk,
            }
        }
        if chunk == 1 {
            break;
        }
        chunk = chunk.div_ceil(2);
    }
    for amount in amounts {
        let most = best.number(amount.path).unwrap_or(0);
        for count in (amount.least..most).take(RUNS_MAX) {
            let mut candidate = best.clone();
            candidate.set_number(amount.path, count);
            if try_plan(&candidate) {
                best = candidate;
                break;
            }
        }
    }
    for index in 0..best.faults.len() {
        for nth in 1..=8 {
            let earlier = match best.faults[index].when {
                When::Nth(now) => nth < now,
                _ => true,
            };
            let mut candidate = best.clone();
            candidate.faults[index].when = When::Nth(nth);
            if earlier && try_plan(&candidate) {
                best = candidate;
                break;
            }
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Fault, Kind};

    #[test]
    fn only_what_matters_is_left() {
        const AMOUNTS: [Amount<'_>; 3] = [
            Amount {
                path: &["cards"],
                least: 2,
            },
            Amount {
                path: &["workload", "runs"],
                least: 1,
            },
            Amount {
                path: &["workload", "buffers"],
                least: 0,
            },
        ];
        let parameters = serde_json::json!({"cards": 5, "workload": {"runs": 6, "buffers": 1}});
        let mut plan = Plan::new(1, "").with(&parameters);
        for i in 0..40 {
            plan.faults.push(Fault {
                point: format!("point{i}"),
                when: When::AtNs(1000),
                kind: Kind::Drop,
            });
        }
        let mut runs = 0;
        let small = shrink(&plan, &AMOUNTS, |plan| {
            runs += 1;
            let has = |name: &str| plan.faults.iter().any(|fault| fault.point == name);
            has("point7") && has("point33") && plan.number(&["workload", "runs"]) >= Some(2)
        });
        let points: Vec<_> = small.faults.iter().map(|fault| &fault.point[..]).collect();
        assert_eq!(points, ["point7", "point33"]);
        assert!(small.faults.iter().all(|fault| fault.when == When::Nth(1)));
        let numbers = AMOUNTS.map(|amount| small.number(amount.path));
        assert_eq!(numbers, [Some(2), Some(2), Some(0)]);
        assert!(runs < 120, "{runs}");
    }
}
