//! What runs plans in simulation.

use std::{
    io,
    num::NonZero,
    ops::{ControlFlow, Range},
    path::Path,
    thread::available_parallelism,
};

use snaprig_sim::{
    Plan,
    shrink::{Amount, shrink},
};

use super::{Found, Options, Plans, Ran, Results, Runner, campaign};
use crate::{
    registry::Registry,
    report,
    scenario::{Broken, Canary, Class, Finished, Watch},
};

/// Seeds by which every canary is found many times over.
const CANARY_SEEDS: u64 = 20_000;

/// Runs plans in simulation.
#[derive(Clone, Debug)]
pub struct Simulator {
    /// The scenarios that plans can be about.
    pub registry: Registry,
    /// Which of them are drawn; none: all.
    pub scenarios: Vec<&'static str>,
    /// The planted bug.
    pub canary: Option<Canary>,
    /// Whether states are counted.
    pub counting: bool,
}

impl Default for Simulator {
    fn default() -> Self {
        Self::of(crate::standard().clone())
    }
}

impl Simulator {
    /// Of these scenarios.
    pub fn of(registry: Registry) -> Self {
        Self {
            registry,
            scenarios: Vec::new(),
            canary: None,
            counting: false,
        }
    }

    /// The same with a planted bug.
    #[must_use]
    pub fn with(self, canary: Option<Canary>) -> Self {
        Self { canary, ..self }
    }

    /// Runs the plans of these seeds on all processors, without a report.
    ///
    /// # Panics
    /// Never: what can fail is a report.
    pub fn campaign(&self, seeds: Range<u64>) -> Results {
        let options = Options {
            plans: Plans::Drawn(seeds),
            shard: (0, 1),
            jobs: available_parallelism().map_or(1, NonZero::get),
            time: None,
            report: None,
        };
        campaign(self, &options, &|_, _| ControlFlow::Continue(())).expect("there is no report")
    }

    /// How a plan fails, if it does.
    pub fn fails(&self, plan: &Plan) -> Option<Broken> {
        let watch = Watch::with(self.canary);
        match self.registry.run(plan, watch) {
            Ok(finished) => finished.broken,
            Err(error) => Some(cannot_be_made(error)),
        }
    }
}

/// A plan that is about nothing that there is.
fn cannot_be_made(error: impl std::fmt::Display) -> Broken {
    Broken {
        invariant: "the run can be made",
        how: error.to_string(),
        class: Class::Crash,
    }
}

impl Runner for Simulator {
    fn name(&self) -> String {
        let canary = self.canary.map(|canary| canary.name);
        let words = ["simulator"].into_iter().chain(canary);
        let words: Vec<_> = words.chain(self.scenarios.iter().copied()).collect();
        words.join(" ")
    }

    fn chunk(&self) -> u64 {
        500
    }

    fn draw(&self, seed: u64) -> Plan {
        self.registry.draw(seed, &self.scenarios)
    }

    fn run(&self, plan: &Plan) -> Ran {
        let watch = Watch {
            is_counting: self.counting,
            ..Watch::with(self.canary)
        };
        match self.registry.run(plan, watch) {
            Ok(Finished { outcome, broken }) => Ran {
                broken,
                events: outcome.trace.events(),
                faults: outcome.faults,
                trace_hash: outcome.trace.hash(),
                reached: outcome.reached,
                states: outcome.states,
            },
            Err(error) => Ran {
                broken: Some(cannot_be_made(error)),
                ..Ran::default()
            },
        }
    }

    fn shrink(&self, plan: &Plan, broken: &Broken) -> Plan {
        let Ok((complete, amounts)) = self.registry.to_shrink(plan) else {
            return plan.clone();
        };
        let numbers = complete.numbers();
        let all = numbers.iter().map(|path| Amount { path, least: 1 });
        let all: Vec<_> = match amounts.is_empty() {
            true => all.collect(),
            false => amounts.to_vec(),
        };
        shrink(&complete, &all, |plan| {
            // Of fewer processes, a fault may name one that there is not.
            let found = self
                .registry
                .check(plan)
                .ok()
                .and_then(|()| self.fails(plan));
            found.is_some_and(|found| found.invariant == broken.invariant)
        })
    }

    fn report(&self, folder: &Path, found: &Found) -> io::Result<()> {
        report::write(folder, found, &self.registry, self.canary)
    }
}

/// The canaries that no seed finds: a campaign with these checks and faults would prove nothing.
pub fn unheard_canaries(registry: &Registry) -> Vec<Canary> {
    let unheard = registry.canaries().filter(|(canary, scenario)| {
        let simulator = Simulator::of(registry.clone()).with(Some(*canary));
        let draw = |seed| registry.draw(seed, scenario.names());
        !(0..CANARY_SEEDS).any(|seed| simulator.fails(&draw(seed)).is_some())
    });
    unheard.map(|(canary, _)| canary).collect()
}
