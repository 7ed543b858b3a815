//! The smallest plan that still fails the same way: faults are left out, then cards and work, then
//! what is left happens earlier, as long as the same thing breaks (Zeller, Hildebrandt, "Simplifying
//! and isolating failure-inducing input", IEEE TSE 2002).

use crate::plan::{Plan, When, Workload};

/// Runs that one shrinking may cost.
const RUNS_MAX: usize = 2000;

type Amount = fn(&mut Workload) -> &mut u16;

/// What there can be less of, and how little.
const AMOUNTS: [(Amount, u16); 6] = [
    (|work| &mut work.processes, 1),
    (|work| &mut work.offloads, 1),
    (|work| &mut work.buffers, 0),
    (|work| &mut work.writes, 0),
    (|work| &mut work.pipelines, 1),
    (|work| &mut work.runs, 1),
];

/// Shrinks `plan`; `fails` runs a plan and says whether the same thing breaks.
pub fn shrink(plan: &Plan, mut fails: impl FnMut(&Plan) -> bool) -> Plan {
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
    while best.cards > 2 {
        let mut candidate = best.clone();
        candidate.cards -= 1;
        if !try_plan(&candidate) {
            break;
        }
        best = candidate;
    }
    for (amount, least) in AMOUNTS {
        for count in least..*amount(&mut best.workload.clone()) {
            let mut candidate = best.clone();
            *amount(&mut candidate.workload) = count;
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
        let mut plan = Plan::new(1, 5, "");
        for i in 0..40 {
            plan.faults.push(Fault {
                point: format!("point{i}"),
                when: When::AtNs(1000),
                kind: Kind::Drop,
            });
        }
        plan.workload.processes = 3;
        let mut runs = 0;
        let small = shrink(&plan, |plan| {
            runs += 1;
            let has = |name: &str| plan.faults.iter().any(|fault| fault.point == name);
            has("point7") && has("point33") && plan.workload.runs >= 2
        });
        let points: Vec<_> = small.faults.iter().map(|fault| &fault.point[..]).collect();
        assert_eq!(points, ["point7", "point33"]);
        assert!(small.faults.iter().all(|fault| fault.when == When::Nth(1)));
        assert_eq!(small.cards, 2);
        let work = small.workload;
        assert_eq!((work.processes, work.runs, work.buffers), (1, 2, 0));
        assert!(runs < 120, "{runs}");
    }
}
