//! A scenario whose types are not known: what campaigns, reports and commands work with. Every
//! [`Scenario`] is one.

use snaprig_sim::{Fault, Parameters, Plan, PlanError, Point, Process, shrink::Amount};

use super::{
    Scenario, Watch,
    canary::{Canary, PlantedBug},
    invariant::{Broken, check},
    outcome::{AnyEnd, Outcome},
};

/// What came of a run, and whether that was right.
#[derive(Debug)]
pub struct Finished {
    /// What came of it.
    pub outcome: Outcome,
    /// The first invariant that does not hold.
    pub broken: Option<Broken>,
}

/// A [`Scenario`] without its types. An error says that a plan's parameters are not those of the scenario.
pub trait AnyScenario: Sync {
    /// See [`Scenario::names`].
    fn names(&self) -> &'static [&'static str];
    /// See [`Scenario::points`].
    fn points(&self) -> &'static [Point];
    /// Its planted bugs.
    fn canaries(&self) -> Vec<Canary>;
    /// See [`Scenario::amounts`].
    fn amounts(&self) -> &'static [Amount<'static>];
    /// See [`Scenario::draw`].
    fn draw(&self, seed: u64, fixed: &Parameters) -> Plan;
    /// See [`Scenario::undisturbed`].
    fn undisturbed(&self) -> Vec<Plan>;
    /// See [`Scenario::deaths`].
    fn deaths(&self, plan: &Plan) -> Vec<Fault>;
    /// See [`Scenario::impossible`].
    fn impossible(&self, plan: &Plan) -> Result<Option<String>, PlanError>;
    /// See [`Scenario::processes`].
    fn processes(&self, plan: &Plan) -> Result<Vec<Process>, PlanError>;
    /// The same plan with every parameter written out, also those that it leaves out.
    fn complete(&self, plan: &Plan) -> Result<Plan, PlanError>;
    /// Runs a plan to its end, and checks what came of it.
    fn run(&self, plan: &Plan, watch: Watch<Canary>) -> Result<Finished, PlanError>;
}

impl<S: Scenario> AnyScenario for S {
    fn names(&self) -> &'static [&'static str] {
        Scenario::names(self)
    }

    fn points(&self) -> &'static [Point] {
        Scenario::points(self)
    }

    fn canaries(&self) -> Vec<Canary> {
        S::Canary::ALL.iter().map(|(_, canary)| *canary).collect()
    }

    fn amounts(&self) -> &'static [Amount<'static>] {
        Scenario::amounts(self)
    }

    fn draw(&self, seed: u64, fixed: &Parameters) -> Plan {
        Scenario::draw(self, seed, fixed)
    }

    fn undisturbed(&self) -> Vec<Plan> {
        Scenario::undisturbed(self)
    }

    fn deaths(&self, plan: &Plan) -> Vec<Fault> {
        Scenario::deaths(self, plan)
    }

    fn impossible(&self, plan: &Plan) -> Result<Option<String>, PlanError> {
        let parameters = plan.parameters_as()?;
        Ok(Scenario::impossible(self, &parameters))
    }

    fn processes(&self, plan: &Plan) -> Result<Vec<Process>, PlanError> {
        let parameters = plan.parameters_as()?;
        Ok(Scenario::processes(self, &parameters))
    }

    fn complete(&self, plan: &Plan) -> Result<Plan, PlanError> {
        let parameters: S::Parameters = plan.parameters_as()?;
        let bare = Plan {
            parameters: Parameters::new(),
            ..plan.clone()
        };
        Ok(bare.with(&parameters))
    }

    fn run(&self, plan: &Plan, watch: Watch<Canary>) -> Result<Finished, PlanError> {
        let parameters = plan.parameters_as()?;
        let outcome = Scenario::run(self, plan, &parameters, watch.map(S::Canary::of));
        let broken = check(self.invariants(), &outcome);
        Ok(Finished {
            outcome: outcome.map(|end| Box::new(end) as AnyEnd),
            broken,
        })
    }
}
