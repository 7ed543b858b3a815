//! What a scenario is: a system that plans can be about, and all that campaigns have to know of it.
//!
//! A scenario is a folder and a line. The folder has everything that is its own: parameters, fault points
//! that it can reach, planted bugs, the run itself, and what must be true of it. The line is where scenarios
//! are listed: `snaprig_campaign::scenarios::ALL` for those that come with snaprig, and [`Registry::of`] for those of
//! others.
//!
//! | module | what it is |
//! |---|---|
//! | `mod` | [`Scenario`]: what a scenario says of itself |
//! | [`outcome`] | what comes of a run |
//! | [`invariant`] | what must be true of it |
//! | [`canary`] | planted bugs |
//! | [`any`] | a scenario whose types are not known |
//! | [`draw`] | faults from a seed |
//! | [`protocol`] | the short way: a protocol among a few processes |
//!
//! What must stay true: a run depends on its plan, its planted bug and nothing else; a draw that is added for one
//! concern does not move the numbers of another.
//!
//! [`Registry::of`]: crate::registry::Registry::of

pub mod any;
pub mod canary;
pub mod draw;
pub mod invariant;
pub mod outcome;
pub mod protocol;

use serde::{Serialize, de::DeserializeOwned};
use snaprig_sim::{
    Fault, KindName, Parameters, Plan, Point, Process, Random, Trace, shrink::Amount,
};

pub use self::{
    any::{AnyScenario, Finished},
    canary::{Canary, PlantedBug},
    invariant::{Broken, Class, Invariant},
    outcome::{AnyEnd, Ending, Outcome},
};

/// A system that plans can be about.
///
/// What has to be said is names, points, processes, parameters and the run; everything else has a default
/// that does.
pub trait Scenario: Sync + 'static {
    /// How much there is of everything: what a plan says beside its faults. Fields that a plan leaves out
    /// need defaults of serde's; those that it has and the type does not should be refused.
    type Parameters: Serialize + DeserializeOwned;
    /// Its planted bugs, declared with [`canaries!`](crate::canaries).
    type Canary: PlantedBug;
    /// What it alone knows of a run's end, for its checks.
    type End: Send + 'static;

    /// What plans call it: a name, or one for each variant.
    fn names(&self) -> &'static [&'static str];

    /// The fault points that it can reach. The crates that have them declare them.
    fn points(&self) -> &'static [Point];

    /// All that faults can name, as the engine has it: in the same order.
    fn processes(&self, parameters: &Self::Parameters) -> Vec<Process>;

    /// Parameters from a seed.
    fn parameters(&self, random: &mut Random) -> Self::Parameters;

    /// Runs a plan to its end. [`crate::stage::System::play`] does that for whoever has a
    /// [`System`](crate::stage::System).
    fn run(
        &self,
        plan: &Plan,
        parameters: &Self::Parameters,
        watch: Watch<Self::Canary>,
    ) -> Outcome<Self::End>;

    /// What must be true of every run, the worst first.
    fn invariants(&self) -> &'static [Invariant<Self::End>] {
        &[]
    }

    /// What is impossible about parameters, if anything is.
    fn impossible(&self, _: &Self::Parameters) -> Option<String> {
        None
    }

    /// The parameters of which there can be less, in the order in which that is tried when a plan is shrunk. If
    /// none are listed: each that is a number, down to 1.
    fn amounts(&self) -> &'static [Amount<'static>] {
        &[]
    }

    /// The plan of a seed; `fixed` are parameters that it is to have, whatever is drawn.
    fn draw(&self, seed: u64, fixed: &Parameters) -> Plan {
        let name = self.names()[0];
        let mut random = Random::new(seed, name);
        let mut plan = Plan::new(seed, name).with(&self.parameters(&mut random));
        plan.parameters.extend(fixed.clone());
        let processes = self.processes_of(&plan);
        let faults = draw::Faults::of(self.points(), &processes);
        plan.faults = faults.draw(&mut random);
        plan
    }

    /// The processes of a plan; none if its parameters make no sense.
    fn processes_of(&self, plan: &Plan) -> Vec<Process> {
        let parameters = plan.parameters_as();
        parameters.map_or(Vec::new(), |parameters| self.processes(&parameters))
    }

    /// Plans without faults, in which every fault is tried at every step.
    fn undisturbed(&self) -> Vec<Plan> {
        let plan = |name: &&str| Plan {
            scenario: (*name).into(),
            faults: Vec::new(),
            ..self.draw(0, &Parameters::new())
        };
        self.names().iter().map(plan).collect()
    }

    /// Deaths of which all pairs are tried in such a plan.
    fn deaths(&self, plan: &Plan) -> Vec<Fault> {
        let at = |point: &&Point| point.kinds.contains(&KindName::Crash);
        let all = self.processes_of(plan);
        let points = self.points().iter().filter(at);
        points
            .flat_map(|point| draw::deaths(point, 1, &all))
            .collect()
    }
}

/// How a run is looked at.
#[derive(Debug)]
pub struct Watch<C> {
    /// Takes what happens: as a hash, or as a record, too.
    pub trace: Trace,
    /// The planted bug that it has.
    pub canary: Option<C>,
    /// Whether the states are counted that it is in.
    pub is_counting: bool,
    /// Where it is stopped and described ([`Outcome::description`]).
    pub until: Option<Until>,
}

impl<C> Default for Watch<C> {
    fn default() -> Self {
        Self {
            trace: Trace::default(),
            canary: None,
            is_counting: false,
            until: None,
        }
    }
}

impl<C> Watch<C> {
    /// With a planted bug, or without.
    pub fn with(canary: Option<C>) -> Self {
        Self {
            canary,
            ..Self::default()
        }
    }

    /// With a record for people.
    #[must_use]
    pub fn recording(self) -> Self {
        Self {
            trace: Trace::recording(),
            ..self
        }
    }

    /// The same, of a planted bug as its scenario knows it.
    pub fn map<D>(self, with: impl FnOnce(C) -> Option<D>) -> Watch<D> {
        Watch {
            trace: self.trace,
            canary: self.canary.and_then(with),
            is_counting: self.is_counting,
            until: self.until,
        }
    }
}

/// Where a run is stopped to be looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Until {
    /// After so many events.
    Event(u64),
    /// When this fault point is first reached.
    Point(String),
    /// It is reached.
    Now,
}
