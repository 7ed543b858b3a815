//! Simulated systems: a plan says what goes wrong, invariants say whether that was survived.

use std::{env, fmt, io, path::PathBuf};

use snaprig_campaign::{
    check::{Broken, check},
    coord,
    draw::{draw_coord, draw_on, draw_scif, draw_verbs},
    model, points,
    report::write_file,
    scif, system, verbs,
};
use snaprig_sim::{Plan, PlanError, Trace, Workload};
use xxhash_rust::xxh3::xxh3_64;

pub use snaprig_campaign::{Ending, Outcome};

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
}

impl std::error::Error for Failure {}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.invariant, self.how)?;
        match &self.plan {
            Ok(plan) => write!(f, "\nreplay: snaprig repro {}", plan.display()),
            Err(why) => write!(f, "\nthe plan cannot be kept: {why}"),
        }
    }
}

/// A simulated system.
#[derive(Clone, Debug, Default)]
pub struct Sim {
    seed: u64,
    cards: Option<u16>,
    scenario: Option<String>,
    workload: Option<Workload>,
}

impl Sim {
    /// As a plan says.
    pub fn builder() -> SimBuilder {
        SimBuilder(Self::default())
    }

    /// The plan that the seed draws for this system.
    pub fn draw(&self) -> Plan {
        self.plan(match self.scenario.as_deref() {
            Some(verbs::SCENARIO) => draw_verbs(self.seed, self.cards),
            Some(scif::SCENARIO) => draw_scif(self.seed, self.cards),
            Some(coord::SCENARIO) => draw_coord(self.seed),
            _ => draw_on(self.seed, self.cards),
        })
    }

    /// A plan for this system without faults.
    pub fn undisturbed(&self) -> Plan {
        self.plan(Plan::new(self.seed, 2, model::SCENARIOS[0]))
    }

    fn plan(&self, plan: Plan) -> Plan {
        Plan {
            cards: self.cards.unwrap_or(plan.cards),
            scenario: self.scenario.clone().unwrap_or(plan.scenario),
            workload: self.workload.unwrap_or(plan.workload),
            ..plan
        }
    }

    /// Runs a plan on this system: the plan's seed and faults, and of everything else what the
    /// system does not say.
    pub fn run(&self, plan: &Plan) -> Result<Run, SimError> {
        let plan = self.plan(plan.clone());
        if let Some(why) = system::impossible(&plan) {
            return Err(SimError::Impossible(why));
        }
        plan.check(&points::all(), &system::processes(&plan))?;
        let outcome = snaprig_campaign::run(&plan, Trace::default(), None);
        Ok(Run { plan, outcome })
    }
}

/// Builds a [`Sim`].
#[derive(Clone, Debug, Default)]
pub struct SimBuilder(Sim);

impl SimBuilder {
    /// How many cards (1 to 32).
    #[must_use]
    pub fn cards(mut self, cards: u16) -> Self {
        self.0.cards = Some(cards);
        self
    }

    /// Which snapshots are taken: "migrate", "swap", "checkpoint" or "twice"; or "verbs", or "scif", or
    /// "coord".
    #[must_use]
    pub fn scenario(mut self, scenario: &str) -> Self {
        self.0.scenario = Some(scenario.into());
        self
    }

    /// What the application does meanwhile.
    #[must_use]
    pub fn workload(mut self, workload: Workload) -> Self {
        self.0.workload = Some(workload);
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
    /// What was run.
    pub plan: Plan,
    /// What came of it.
    pub outcome: Outcome,
}

impl Run {
    /// An error if an invariant is broken. The plan is kept in the directory for temporary files,
    /// under a name that is the same for the same plan.
    pub fn check(&self) -> Result<(), SimError> {
        match check(&self.outcome) {
            None => Ok(()),
            Some(Broken { invariant, how }) => Err(SimError::Broken(Failure {
                invariant,
                how,
                plan: self.keep_plan().map_err(|error| error.to_string()),
            })),
        }
    }

    fn keep_plan(&self) -> io::Result<PathBuf> {
        let text = self.plan.to_text();
        let name = format!("snaprig-plan-{:016x}.json", xxh3_64(text.as_bytes()));
        let path = env::temp_dir().join(name);
        write_file(&path, text.as_bytes())?;
        Ok(path)
    }
}
