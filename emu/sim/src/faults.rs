//! A plan at work: counts the occurrences of each fault point, says what happens at which, and
//! keeps what was reached.

use std::{collections::BTreeMap, ptr};

use snaprig_wire::fault::Point;

use crate::{
    plan::{Kind, Plan, When},
    random::Random,
};

/// How often a point was reached, and how often something happened there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reached {
    /// Occurrences.
    pub times: u64,
    /// Faults.
    pub faults: u64,
}

/// The faults of one run.
#[derive(Debug)]
pub struct Faults {
    pending: Vec<(&'static str, When, Kind)>,
    /// Points in the order in which they were first reached: there are few, and each is reached often.
    reached: Vec<(&'static str, Reached)>,
    random: Random,
}

impl Faults {
    /// The plan's faults. Those at points that are not among `points` never happen;
    /// [`Plan::check`] refuses such plans.
    pub fn new(plan: &Plan, points: &[Point]) -> Self {
        let named = |name: &str| points.iter().find(|point| point.name == name);
        let pending = plan.faults.iter().filter_map(|fault| {
            named(&fault.point).map(|point| (point.name, fault.when, fault.kind.clone()))
        });
        Self {
            pending: pending.collect(),
            reached: Vec::new(),
            random: Random::new(plan.seed, "faults"),
        }
    }

    /// The point is reached at `now`; what happens there. Of several faults the first one in the
    /// plan happens, the others have another chance.
    pub fn at(&mut self, point: &'static str, now_ns: u64) -> Option<Kind> {
        // A point is a constant: mostly the same text is in the same place.
        let of =
            |is: fn(&str, &str) -> bool| self.reached.iter().position(|(name, _)| is(name, point));
        let known = of(|a, b| ptr::eq(a, b)).or_else(|| of(|a, b| a == b));
        let place = known.unwrap_or_else(|| {
            self.reached.push((point, Reached::default()));
            self.reached.len() - 1
        });
        let reached = &mut self.reached[place].1;
        reached.times += 1;
        let times = reached.times;
        let mut due = None;
        for (index, (name, when, _)) in self.pending.iter().enumerate() {
            let now = *name == point
                && match when {
                    When::Nth(nth) => *nth == times,
                    When::AtNs(at) => *at <= now_ns,
                    When::PerMille(per_mille) => self.random.below(1000) < *per_mille,
                };
            if now && due.is_none() {
                due = Some(index);
            }
        }
        let index = due?;
        reached.faults += 1;
        Some(match self.pending[index].1 {
            When::PerMille(_) => self.pending[index].2.clone(),
            _ => self.pending.remove(index).2,
        })
    }

    /// Whether nothing happens any more, whatever is reached.
    pub fn are_over(&self) -> bool {
        self.pending.is_empty()
    }

    /// What was reached, by name.
    pub fn reached(&self) -> BTreeMap<&'static str, Reached> {
        self.reached.iter().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Fault;
    use snaprig_wire::fault::KindName;

    #[test]
    fn faults_happen_when_the_plan_says() {
        let points = [Point {
            name: "a",
            what: "",
            kinds: &[KindName::Drop, KindName::Delay],
        }];
        let mut plan = Plan::new(3, "");
        for (when, kind) in [(When::Nth(2), Kind::Drop), (When::AtNs(50), Kind::Delay(1))] {
            let point = "a".into();
            plan.faults.push(Fault { point, when, kind });
        }
        let mut faults = Faults::new(&plan, &points);
        let happened: Vec<_> = (1..=6).map(|turn| faults.at("a", turn * 10)).collect();
        let expected = [
            None,
            Some(Kind::Drop),
            None,
            None,
            Some(Kind::Delay(1)),
            None,
        ];
        assert_eq!(happened, expected);
        let reached = faults.reached()["a"];
        assert_eq!((reached.times, reached.faults), (6, 2));
    }
}
