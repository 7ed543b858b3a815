//! Scenarios that are listed: which one a plan is about, and what of all of them there is.

use snaprig_sim::{Parameters, Plan, PlanError, Point, Process, Random, shrink::Amount};

use crate::scenario::{AnyScenario, Canary, Finished, Watch};

/// A line of the list.
#[derive(Clone, Copy)]
pub struct Entry {
    /// The scenario.
    pub scenario: &'static dyn AnyScenario,
    /// When no scenario is asked for: of the seeds that no entry before has taken, it takes one in so many.
    /// The first entry takes what none of the others does.
    pub one_in: u64,
}

impl Entry {
    /// A scenario that takes one seed in so many.
    pub const fn new(scenario: &'static dyn AnyScenario, one_in: u64) -> Self {
        Self { scenario, one_in }
    }
}

/// Why a plan cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// The plan is no good.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// There is no such system.
    #[error("{0}")]
    Impossible(String),
}

/// Scenarios by their names.
#[derive(Clone)]
pub struct Registry {
    entries: Vec<Entry>,
    replay: Option<&'static str>,
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}

impl Registry {
    /// Scenarios of a list, and the command that replays a failure of theirs.
    pub fn listed(entries: &[Entry], replay: &'static str) -> Self {
        Self {
            entries: entries.to_vec(),
            replay: Some(replay),
        }
    }

    /// A scenario of somebody else's.
    pub fn of(scenario: &'static dyn AnyScenario) -> Self {
        Self {
            entries: vec![Entry::new(scenario, 1)],
            replay: None,
        }
    }

    /// The same with another scenario, which takes one seed in so many.
    #[must_use]
    pub fn and(mut self, scenario: &'static dyn AnyScenario, one_in: u64) -> Self {
        self.entries.push(Entry::new(scenario, one_in));
        self
    }

    /// The same, of whose failures reports say that this command replays them; the path of a plan, or of a
    /// failure's directory, follows.
    #[must_use]
    pub fn replayed_by(mut self, command: &'static str) -> Self {
        self.replay = Some(command);
        self
    }

    /// The line that replays a plan or a failure's directory.
    pub fn replay_line(&self, path: &std::path::Path) -> String {
        match self.replay {
            Some(command) => format!("{command} {}", path.display()),
            None => format!("run the plan {} again", path.display()),
        }
    }

    /// All scenarios.
    pub fn scenarios(&self) -> impl Iterator<Item = &'static dyn AnyScenario> {
        self.entries.iter().map(|entry| entry.scenario)
    }

    /// The scenario that runs unless another one is asked for.
    ///
    /// # Panics
    /// If nothing is listed.
    pub fn first(&self) -> &'static dyn AnyScenario {
        let first = self.entries.first();
        first.expect("a scenario is listed").scenario
    }

    /// What plans call them.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.scenarios().flat_map(|one| one.names()).copied()
    }

    /// The scenario that plans call so.
    pub fn named(&self, name: &str) -> Option<&'static dyn AnyScenario> {
        self.scenarios().find(|one| one.names().contains(&name))
    }

    /// The scenario of a plan.
    fn scenario_of(&self, plan: &Plan) -> Result<&'static dyn AnyScenario, CheckError> {
        self.named(&plan.scenario).ok_or_else(|| {
            let (name, all) = (&plan.scenario, self.names().collect::<Vec<_>>().join(", "));
            CheckError::Impossible(format!("scenario {name:?}: there are {all}"))
        })
    }

    /// The fault points that these scenarios can reach, each once; of all of them, if none is named.
    pub fn points(&self, names: &[&str]) -> Vec<Point> {
        let is_asked_for = |one: &&dyn AnyScenario| {
            names.is_empty() || one.names().iter().any(|name| names.contains(name))
        };
        let mut found: Vec<Point> = Vec::new();
        for scenario in self.scenarios().filter(is_asked_for) {
            let new = scenario.points().iter().filter(|one| !found.contains(one));
            found.extend(new.copied().collect::<Vec<_>>());
        }
        found
    }

    /// All planted bugs, with the scenario of each.
    pub fn canaries(&self) -> impl Iterator<Item = (Canary, &'static dyn AnyScenario)> {
        self.scenarios().flat_map(|scenario| {
            let of_it = scenario.canaries().into_iter();
            of_it.map(move |canary| (canary, scenario))
        })
    }

    /// The planted bug with this name; an error names those that there are.
    pub fn canary(&self, name: &str) -> Result<Canary, String> {
        let found = self.canaries().find(|(canary, _)| canary.is_called(name));
        found.map(|(canary, _)| canary).ok_or_else(|| {
            let names: Vec<_> = self.canaries().map(|(canary, _)| canary.name).collect();
            format!("no such canary; there are {}", names.join(", "))
        })
    }

    /// The plan of a seed, of one of these scenarios, or, if none is named, of any.
    pub fn draw(&self, seed: u64, names: &[&str]) -> Plan {
        self.draw_with(seed, names, &Parameters::new())
    }

    /// The same with these parameters, whatever else is drawn.
    ///
    /// # Panics
    /// If nothing is listed.
    pub fn draw_with(&self, seed: u64, names: &[&str], fixed: &Parameters) -> Plan {
        let name = Random::new(seed, "scenario").pick(names).copied();
        let named = name.and_then(|name| Some((name, self.named(name)?)));
        if let Some((name, scenario)) = named {
            return Plan {
                scenario: name.into(),
                ..scenario.draw(seed, fixed)
            };
        }
        let (first, others) = self.entries.split_first().expect("a scenario is listed");
        let mut system = Random::new(seed, "system");
        let taken = others.iter().find(|entry| system.one_in(entry.one_in));
        taken.unwrap_or(first).scenario.draw(seed, fixed)
    }

    /// The processes of a plan's system, as plans name them.
    pub fn processes(&self, plan: &Plan) -> Result<Vec<Process>, CheckError> {
        Ok(self.scenario_of(plan)?.processes(plan)?)
    }

    /// Whether a plan makes sense: it is about a system that there can be, and so are its faults.
    pub fn check(&self, plan: &Plan) -> Result<(), CheckError> {
        self.check_system(plan)?;
        let processes = self.processes(plan)?;
        Ok(plan.check(&self.points(&[]), &processes)?)
    }

    /// Whether it is about a system that there can be.
    pub fn check_system(&self, plan: &Plan) -> Result<(), CheckError> {
        match self.scenario_of(plan)?.impossible(plan)? {
            Some(why) => Err(CheckError::Impossible(why)),
            None => Ok(()),
        }
    }

    /// The same plan with all its parameters, also those that it leaves out, and what there can be less of.
    pub fn to_shrink(&self, plan: &Plan) -> Result<(Plan, &'static [Amount<'static>]), CheckError> {
        let scenario = self.scenario_of(plan)?;
        Ok((scenario.complete(plan)?, scenario.amounts()))
    }

    /// Runs a plan that makes sense ([`Registry::check`]) to its end.
    pub fn run(&self, plan: &Plan, watch: Watch<Canary>) -> Result<Finished, CheckError> {
        Ok(self.scenario_of(plan)?.run(plan, watch)?)
    }
}
