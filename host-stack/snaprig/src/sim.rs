//! Simulated systems: a plan says what goes wrong, invariants say whether that was survived.

use std::{env, fmt, io, path::PathBuf};

use serde::Serialize;
use snaprig_campaign::{
    registry::{CheckError, Registry},
    report::write_file,
    scenario::{Broken, Finished, Watch},
};
use snaprig_sim::{Parameters, Plan, PlanError};
use xxhash_rust::xxh3::xxh3_64;

pub use snaprig_campaign::scenario::{Ending, Outcome};

/// Why a simulation is not a success.
#[derive(Debug, thiserror::Error)]
pub enum SimError {
    /// The plan is no good.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// There is no such system.
    #[error("{0}")]
    Impossible(String),
    /// An invariant does not hold.
    #[error("{0}")]
    Broken(#[from] Failure),
}

/// A run that broke an invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Which.
    pub invariant: &'static str,
    /// How.
    pub how: String,
    /// Where the plan is that replays it; why it could not be written otherwise.
    pub plan: Result<PathBuf, String>,
    /// The line that replays it, if the plan is there.
    pub replay: Option<String>,
}

impl std::error::Error for Failure {}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.invariant, self.how)?;
        match (&self.replay, &self.plan) {
            (Some(line), _) => write!(f, "\nreplay: {line}"),
            (None, Ok(_)) => Ok(()),
            (None, Err(why)) => write!(f, "\nthe plan cannot be kept: {why}"),
        }
    }
}

impl From<CheckError> for SimError {
    fn from(error: CheckError) -> Self {
        match error {
            CheckError::Plan(error) => Self::Plan(error),
            CheckError::Impossible(why) => Self::Impossible(why),
        }
    }
}

/// A simulated system.
#[derive(Clone, Debug)]
pub struct Sim {
    registry: Registry,
    seed: u64,
    scenario: Option<String>,
    /// Parameters that it has, whatever a plan says.
    fixed: Parameters,
}

impl Default for Sim {
    fn default() -> Self {
        Self {
            registry: snaprig_campaign::standard().clone(),
            seed: 0,
            scenario: None,
            fixed: Parameters::new(),
        }
    }
}

impl Sim {
    /// As a plan says.
    pub fn builder() -> SimBuilder {
        SimBuilder(Self::default())
    }

    /// The plan that the seed draws for this system.
    pub fn draw(&self) -> Plan {
        self.plan(match self.scenario.as_deref() {
            Some(name) => self.registry.draw_with(self.seed, &[name], &self.fixed),
            None => self.registry.first().draw(self.seed, &self.fixed),
        })
    }

    /// A plan for this system without faults.
    pub fn undisturbed(&self) -> Plan {
        let name = self.scenario.as_deref();
        let scenario = name.and_then(|name| self.registry.named(name));
        let scenario = scenario.unwrap_or_else(|| self.registry.first());
        let mut plans = scenario.undisturbed().into_iter();
        let plan = plans.find(|plan| name.is_none_or(|name| plan.scenario == name));
        let plan = plan.unwrap_or_else(|| scenario.draw(self.seed, &self.fixed));
        self.plan(Plan {
            seed: self.seed,
            faults: Vec::new(),
            ..plan
        })
    }

    fn plan(&self, mut plan: Plan) -> Plan {
        plan.parameters.extend(self.fixed.clone());
        let scenario = self.scenario.clone();
        Plan {
            scenario: scenario.unwrap_or(plan.scenario),
            ..plan
        }
    }

    /// Runs a plan on this system: the plan's seed and faults, and of everything else what the
    /// system does not say.
    pub fn run(&self, plan: &Plan) -> Result<Run, SimError> {
        let plan = self.plan(plan.clone());
        self.registry.check(&plan)?;
        let Finished { outcome, broken } = self.registry.run(&plan, Watch::default())?;
        Ok(Run {
            registry: self.registry.clone(),
            plan,
            outcome,
            broken,
        })
    }
}

/// Builds a [`Sim`].
#[derive(Clone, Debug, Default)]
pub struct SimBuilder(Sim);

impl SimBuilder {
    /// How many cards (1 to 32).
    #[must_use]
    pub fn cards(self, cards: u16) -> Self {
        self.parameter("cards", &cards)
    }

    /// Which snapshots are taken: "migrate", "swap", "checkpoint" or "twice"; or another scenario.
    #[must_use]
    pub fn scenario(mut self, scenario: &str) -> Self {
        self.0.scenario = Some(scenario.into());
        self
    }

    /// The scenarios that there are: those that come with snaprig, if this is not said.
    #[must_use]
    pub fn registry(mut self, registry: Registry) -> Self {
        self.0.registry = registry;
        self
    }

    /// What runs meanwhile, and how much of it: the scenario's own type.
    #[must_use]
    pub fn workload(self, workload: impl Serialize) -> Self {
        self.parameter("workload", &workload)
    }

    /// A parameter of the scenario's, by name.
    ///
    /// # Panics
    /// If it cannot be said in JSON: a mistake of whoever wrote its type.
    #[must_use]
    pub fn parameter(mut self, name: &str, value: &impl Serialize) -> Self {
        let value = serde_json::to_value(value).expect("a parameter is plain data");
        self.0.fixed.insert(name.into(), value);
        self
    }

    /// The seed of plans that are drawn for it.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.0.seed = seed;
        self
    }

    /// The system.
    pub fn build(self) -> Sim {
        self.0
    }

    /// Runs a plan on it.
    pub fn run(self, plan: &Plan) -> Result<Run, SimError> {
        self.build().run(plan)
    }
}

/// A run that has ended.
#[derive(Debug)]
pub struct Run {
    registry: Registry,
    /// What was run.
    pub plan: Plan,
    /// What came of it.
    pub outcome: Outcome,
    /// The first invariant that does not hold.
    pub broken: Option<Broken>,
}

impl Run {
    /// An error if an invariant is broken. The plan is kept in the directory for temporary files,
    /// under a name that is the same for the same plan.
    pub fn check(&self) -> Result<(), SimError> {
        let Some(broken) = &self.broken else {
            return Ok(());
        };
        let plan = self.keep_plan().map_err(|error| error.to_string());
        Err(SimError::Broken(Failure {
            invariant: broken.invariant,
            how: broken.how.clone(),
            replay: plan
                .as_ref()
                .ok()
                .map(|path| self.registry.replay_line(path)),
            plan,
        }))
    }

    fn keep_plan(&self) -> io::Result<PathBuf> {
        let text = self.plan.to_text();
        let name = format!("snaprig-plan-{:016x}.json", xxh3_64(text.as_bytes()));
        let path = env::temp_dir().join(name);
        write_file(&path, text.as_bytes())?;
        Ok(path)
    }
}
