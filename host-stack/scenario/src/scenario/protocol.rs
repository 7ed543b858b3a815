//! The short way to a scenario: a protocol among a few processes, in one type. Everything that is not said has a
//! default; what has no default here can be said with [`Scenario`].
//!
//! ```
//! use snaprig_campaign::{Registry, campaign::Simulator, scenario::protocol::*};
//!
//! snaprig_wire::fault_points! {
//!     /// A ball is in the air.
//!     BALL = "game.ball", "a ball is in the air", [Drop, Delay];
//! }
//!
//! /// Two who throw a ball to and fro. Nobody throws another one when it is lost.
//! struct Game(u64);
//!
//! impl Protocol for Game {
//!     const NAME: &'static str = "game";
//!     const PROCESSES: &'static [&'static str] = &["ping", "pong"];
//!     const POINTS: &'static [Point] = ALL;
//!     type Event = ();
//!     type Parameters = Nothing;
//!     type Canary = NoCanary;
//!
//!     fn parameters(_: &mut Random) -> Nothing {
//!         Nothing {}
//!     }
//!
//!     fn new(_: &Nothing, _: Option<NoCanary>) -> Self {
//!         Self(0)
//!     }
//!
//!     fn start(&mut self, stage: &mut Stage<()>) {
//!         self.happen(ProcessId(0), (), stage);
//!     }
//!
//!     fn happen(&mut self, at: ProcessId, _: (), stage: &mut Stage<()>) {
//!         self.0 += 1;
//!         if self.0 < 10 {
//!             stage.send(at, ProcessId(1 - at.0), &BALL, ());
//!         }
//!     }
//!
//!     fn waits(&self) -> Option<String> {
//!         (self.0 < 10).then(|| "the ball is lost".into())
//!     }
//! }
//!
//! let simulator = Simulator::of(Registry::of(Own::<Game>::scenario()));
//! let found = &simulator.campaign(0..200).found[0];
//! assert_eq!((&*found.how, found.plan.faults.len()), ("the ball is lost", 1));
//! ```

use std::{fmt::Debug, marker::PhantomData};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use snaprig_sim::engine::Lane;

pub use std::convert::Infallible as NoCanary;

pub use super::{
    Invariant, Scenario, Watch,
    canary::PlantedBug,
    invariant::MESSAGES,
    outcome::{Ending, Outcome},
};
pub use crate::stage::{Effect, Stage, System};
pub use snaprig_sim::{KindName, Plan, Point, Process, ProcessId, Random};

/// No parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nothing {}

/// A protocol among processes, in virtual time.
pub trait Protocol: Sized + Send + 'static {
    /// What plans call it.
    const NAME: &'static str;
    /// Its processes: the first is `ProcessId(0)`.
    const PROCESSES: &'static [&'static str];
    /// The fault points that it can reach.
    const POINTS: &'static [Point];
    /// What must be true of every run, beside that nobody panics and nobody waits for ever.
    const INVARIANTS: &'static [Invariant<Self>] = &[];

    /// What happens to its processes.
    type Event: Clone + Debug + Send;
    /// How much there is of everything; [`Nothing`] if there is nothing to say.
    type Parameters: Serialize + DeserializeOwned;
    /// Its planted bugs; [`NoCanary`] if it has none.
    type Canary: PlantedBug;

    /// Parameters from a seed.
    fn parameters(random: &mut Random) -> Self::Parameters;

    /// All processes as they are at first.
    fn new(parameters: &Self::Parameters, canary: Option<Self::Canary>) -> Self;

    /// Everybody starts.
    fn start(&mut self, stage: &mut Stage<Self::Event>);

    /// Something happens to a process that lives.
    fn happen(&mut self, at: ProcessId, event: Self::Event, stage: &mut Stage<Self::Event>);

    /// A process has died.
    fn died(&mut self, _: ProcessId, _: &mut Stage<Self::Event>) {}

    /// A process has died and been started again.
    fn restarted(&mut self, _: ProcessId, _: &mut Stage<Self::Event>) {}

    /// Who waits for what never comes, when nothing is to come any more.
    fn waits(&self) -> Option<String> {
        None
    }
}

impl<E> Stage<E> {
    /// Sends a message to another process, over a link on which faults happen at `point`; whether it left. What
    /// goes from one process to another keeps its order, unless a fault says otherwise.
    pub fn send(&mut self, from: ProcessId, to: ProcessId, point: &Point, message: E) -> bool
    where
        E: Clone,
    {
        let effect = self.fault(from, point);
        let lane = Lane::from(from.0) << 16 | Lane::from(to.0);
        self.deliver(&effect, from, to, lane, message)
    }
}

/// A protocol as a scenario.
pub struct Own<P>(PhantomData<fn() -> P>);

impl<P: Protocol> Own<P> {
    /// The scenario, as lists of scenarios have it.
    pub const fn scenario() -> &'static Self {
        const { &Self(PhantomData) }
    }
}

/// What can happen to a process of a protocol.
const KINDS: &[KindName] = &[KindName::Crash, KindName::Hang, KindName::Restart];

impl<P: Protocol> Scenario for Own<P> {
    type Parameters = P::Parameters;
    type Canary = P::Canary;
    type End = P;

    fn names(&self) -> &'static [&'static str] {
        const { &[P::NAME] }
    }

    fn points(&self) -> &'static [Point] {
        P::POINTS
    }

    fn processes(&self, _: &P::Parameters) -> Vec<Process> {
        let names = P::PROCESSES.iter();
        names.map(|name| Process::new(*name, KINDS)).collect()
    }

    fn parameters(&self, random: &mut Random) -> P::Parameters {
        P::parameters(random)
    }

    fn run(&self, plan: &Plan, parameters: &P::Parameters, watch: Watch<P::Canary>) -> Outcome<P> {
        let protocol = P::new(parameters, watch.canary);
        let stage = Stage::new(plan, P::POINTS, watch).with(&self.processes(parameters));
        let mut play = Play { stage, protocol };
        let ending = play.play();
        play.stage.into_outcome(ending, Vec::new(), play.protocol)
    }

    fn invariants(&self) -> &'static [Invariant<P>] {
        P::INVARIANTS
    }
}

/// A protocol and its stage.
struct Play<P: Protocol> {
    stage: Stage<P::Event>,
    protocol: P,
}

impl<P: Protocol> Play<P> {
    /// Whoever died meanwhile, or was started again, is told to the protocol.
    fn tell(&mut self) {
        while let Some((process, is_alive)) = self.stage.changed.pop() {
            match is_alive {
                true => self.protocol.restarted(process, &mut self.stage),
                false => self.protocol.died(process, &mut self.stage),
            }
        }
    }
}

impl<P: Protocol> System for Play<P> {
    type Event = P::Event;

    #[inline]
    fn stage(&mut self) -> &mut Stage<P::Event> {
        &mut self.stage
    }

    #[inline]
    fn look(&self) -> &Stage<P::Event> {
        &self.stage
    }

    fn start(&mut self) {
        self.protocol.start(&mut self.stage);
        self.tell();
    }

    fn happen(&mut self, at: ProcessId, event: P::Event) {
        self.protocol.happen(at, event, &mut self.stage);
        self.tell();
    }

    fn waits(&self) -> Option<String> {
        self.protocol.waits()
    }

    fn crash(&mut self, process: ProcessId) {
        self.stage.crash(process);
        self.tell();
    }
}
