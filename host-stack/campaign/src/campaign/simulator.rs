//! What runs plans in simulation.

use super::*;

/// Runs plans in simulation.
#[derive(Clone, Debug, Default)]
pub struct Simulator {
    /// Which scenarios are drawn; none: all.
    pub scenarios: Vec<&'static str>,
    /// The planted bug.
    pub canary: Option<Canary>,
    /// Whether states are counted.
    pub counting: bool,
}

impl Runner for Simulator {
    fn name(&self) -> String {
        let canary = self.canary.map(Canary::name);
        let words = ["simulator"].into_iter().chain(canary);
        let words: Vec<_> = words.chain(self.scenarios.iter().copied()).collect();
        words.join(" ")
    }

    fn chunk(&self) -> u64 {
        500
    }

    fn draw(&self, seed: u64) -> Plan {
        draw(seed, &self.scenarios)
    }

    fn run(&self, plan: &Plan) -> Ran {
        let run = match self.counting {
            true => system::run_counting,
            false => run,
        };
        let outcome = run(plan, Trace::default(), self.canary);
        Ran {
            broken: check(&outcome).map(|broken| (class(&broken), broken)),
            events: outcome.trace.events(),
            faults: outcome.faults,
            trace_hash: outcome.trace.hash(),
            reached: outcome.reached,
            states: outcome.states,
        }
    }

    fn shrink(&self, plan: &Plan, broken: &Broken) -> Plan {
        shrink(plan, |plan| {
            let found = fails(plan, self.canary);
            found.is_some_and(|(_, found)| found.invariant == broken.invariant)
        })
    }

    fn report(&self, folder: &Path, found: &Found) -> io::Result<()> {
        report::write(folder, found, self.canary)
    }
}

/// The canaries that no seed finds: a campaign with these checks and faults would prove nothing.
pub fn unheard_canaries() -> Vec<Canary> {
    let unheard = |canary: &Canary| !(0..CANARY_SEEDS).any(|seed| finds(seed, *canary));
    Canary::ALL.into_iter().filter(unheard).collect()
}

fn finds(seed: u64, canary: Canary) -> bool {
    let scenarios = match canary.of_the_hca() {
        Some(_) => &[verbs::SCENARIO][..],
        None if canary.is_of_scif() => &[scif::SCENARIO],
        None if canary.is_of_coord() => &[coord::SCENARIO],
        None => &model::SCENARIOS,
    };
    fails(&draw(seed, scenarios), Some(canary)).is_some()
}

/// How a plan fails, if it does.
pub fn fails(plan: &Plan, canary: Option<Canary>) -> Option<(Class, Broken)> {
    let broken = check(&run(plan, Trace::default(), canary))?;
    Some((class(&broken), broken))
}
