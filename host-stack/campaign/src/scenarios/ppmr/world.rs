//! The system: source nodes, the target node, their buffer managers, and an operator who starts again whatever has died.

use std::{
    collections::BTreeMap,
    hash::{Hash, Hasher},
};

use snaprig_coord::migration::{Id, WriteError, source, target};
use snaprig_peers::Token;
use snaprig_ppmr as ppmr;
use snaprig_ppmr::target::StreamId;
use snaprig_sim::{Plan, ProcessId, Random};
use xxhash_rust::xxh3::Xxh3;

use super::{
    Canary, Ended, Parameters,
    draw::POINTS,
    invariants::{NEVER_TWO, UNDISTURBED},
    managers::Managers,
    net::{NOTICE_NS, Net, Said},
    rdma::Transfer,
    tree::{Program, Running, Tree},
};
use crate::{
    scenario::{Outcome, Watch},
    stage::{Effect, Stage, System},
};

/// One of the two sides.
pub type Side = usize;
pub const SOURCE: Side = 0;
pub const TARGET: Side = 1;

/// Longest time of a program's step.
const STEP_NS: u64 = 200_000;
/// An order comes before this, and so long after a move has failed.
const ORDER_NS: u64 = 500_000;
/// What has died, or hangs, is started again within this time: at first soon.
const START_NS: [u64; 2] = [1_000_000, 200_000_000_000];
/// After so many faults none happens any more: a plan may have a node die at each of its steps.
const FAULTS_MAX: u64 = 200;

/// What both sides of a decision know.
pub fn token() -> Token {
    Token::new([7; 32])
}

/// Whose machine it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Who {
    Source(usize),
    Target(usize),
    Sender(usize),
    Receiver,
}

/// Something that happens to a process. Trees are told apart by their places in a list.
#[derive(Debug)]
pub enum Event {
    /// A machine wants to be woken.
    Tick(Who, u64),
    /// Of connections.
    Dial(u64),
    Accepted(u64),
    Said(u64, Side, Said),
    Gone(u64, Side),
    Closed(u64, Side),
    /// To a supervisor: it does what its machine has said.
    Source(usize, source::Output),
    Target(usize, target::Output),
    SourceWrote(usize, Result<(), WriteError>),
    TargetWrote(usize, target::Input),
    Restored(usize, Id),
    /// To a source's node, from its buffer manager of this attempt.
    SenderReady(usize, u64),
    NoSender(usize, u64, String),
    Told(usize, u64, ppmr::source::Output),
    /// To a source's node: a writer's turn.
    Write(usize, u64, usize, bool),
    /// To a sender.
    Launch(usize),
    Ask(usize, u64, ppmr::source::Input),
    MadeUp(usize, u64, u32, u64),
    /// To the target's node: a reader's turn; what its buffer manager has said, or that it is gone.
    Read(StreamId, bool),
    ToldTarget(ppmr::target::Output),
    ReceiverGone,
    /// To the receiver.
    AskReceiver(ppmr::target::Input),
    /// To a buffer manager: RDMA; whether it was late.
    Transfer(Transfer, bool),
    /// To a tree: it does a step, in this life of it.
    Step(usize, Side, u64),
    /// To the operator.
    Order(usize),
    Start(ProcessId),
}

/// The system.
pub struct World {
    pub stage: Stage<Event>,
    pub random: Random,
    pub parameters: Parameters,
    pub canary: Option<Canary>,
    pub trees: Vec<Tree>,
    pub target: ProcessId,
    pub receiver: ProcessId,
    pub operator: ProcessId,
    pub managers: Managers,
    pub net: Net,
    ticks: BTreeMap<Who, u64>,
    pub attempts: u64,
    /// Bits were flipped: who is honest does not seem so any more.
    pub has_corrupted: bool,
    pub end: Ended,
}

impl World {
    pub fn new(plan: &Plan, parameters: &Parameters, watch: Watch<Canary>) -> Self {
        let canary = watch.canary;
        let stage = Stage::new(plan, &POINTS, watch).with(&parameters.all_processes());
        let count = parameters.sources;
        let trees =
            (0..count).map(|at| Tree::new(ProcessId(at), ProcessId(count + at), parameters));
        let mut world = Self {
            stage,
            random: Random::new(plan.seed, "migration through pipelines"),
            parameters: *parameters,
            canary,
            trees: trees.collect(),
            target: ProcessId(2 * count),
            receiver: ProcessId(2 * count + 1),
            operator: ProcessId(0),
            managers: Managers {
                receiver: None,
                chunks: [
                    u32::from(parameters.processes + parameters.chunks),
                    parameters.streams_max() + u32::from(parameters.chunks),
                ],
                streams_max: parameters.streams_max(),
            },
            net: Net::default(),
            ticks: BTreeMap::new(),
            attempts: 0,
            has_corrupted: false,
            end: Ended::default(),
        };
        world.operator = world.stage.engine.process("operator");
        world
    }

    /// Runs to the end, or to where it is to be looked at.
    pub fn finish(mut self) -> Outcome<Ended> {
        let ending = self.play();
        self.end.moved = self
            .trees
            .iter()
            .filter(|one| one.decided.is_some())
            .count();
        self.end.results = self.trees.into_iter().map(|tree| tree.results).collect();
        self.stage.into_outcome(ending, Vec::new(), self.end)
    }

    pub fn violation(&mut self, at: ProcessId, invariant: &'static str, what: impl Into<String>) {
        self.stage.violation(at, invariant, what);
    }

    /// The node of a tree, at one of its sides.
    pub fn node(&self, tree: usize, side: Side) -> ProcessId {
        match side {
            SOURCE => self.trees[tree].source,
            _ => self.target,
        }
    }

    /// A machine wants to be woken then.
    pub fn wake(&mut self, who: Who, due: Option<u64>) {
        let Some(due) = due else {
            return;
        };
        let is_sooner = self.ticks.get(&who).is_none_or(|tick| *tick > due);
        if is_sooner {
            self.ticks.insert(who, due);
            let process = match who {
                Who::Source(tree) => self.trees[tree].source,
                Who::Target(_) => self.target,
                Who::Sender(tree) => self.trees[tree].sender,
                Who::Receiver => self.receiver,
            };
            self.stage.engine.at(process, due, Event::Tick(who, due));
        }
    }

    fn tick(&mut self, who: Who, due: u64) {
        if self.ticks.get(&who) != Some(&due) {
            return;
        }
        self.ticks.remove(&who);
        match who {
            Who::Source(tree) => self.source_handles(tree, source::Input::Tick),
            Who::Target(tree) => self.target_handles(tree, target::Input::Tick),
            Who::Sender(tree) => self.sender_handles(tree, ppmr::source::Input::Tick),
            Who::Receiver => self.receiver_handles(ppmr::target::Input::Tick),
        }
    }

    /// A tree runs from here on.
    pub fn runs(&mut self, tree: usize, side: Side, program: Program) {
        let node = self.node(tree, side);
        let own = &mut self.trees[tree];
        let is_twice = own.at[1 - side].is_some_and(|other| other.is_running);
        let has_ended = !own.results.is_empty();
        own.at[side] = Some(Running {
            program,
            is_running: true,
        });
        own.lives += 1;
        if is_twice {
            self.violation(node, NEVER_TWO, "it runs at both sides");
        }
        if has_ended {
            self.violation(node, NEVER_TWO, "it runs, and has ended already");
        }
        self.step_later(tree, side);
    }

    fn step_later(&mut self, tree: usize, side: Side) {
        let by_ns = self.random.below(STEP_NS);
        let event = Event::Step(tree, side, self.trees[tree].lives);
        let node = self.node(tree, side);
        self.stage.engine.after(node, by_ns, event);
    }

    fn step(&mut self, tree: usize, side: Side, life: u64) {
        let own = &self.trees[tree];
        let is_there = life == own.lives && own.at[side].is_some_and(|one| one.is_running);
        let point = &snaprig_coord::migration::faults::RUN;
        if !is_there || self.fault(self.node(tree, side), point) == Effect::Ended {
            return;
        }
        let steps = u64::from(self.parameters.steps);
        let own = &mut self.trees[tree];
        let Some(running) = &mut own.at[side] else {
            return;
        };
        running.program.step();
        let Program { done, value } = running.program;
        if done < steps {
            return self.step_later(tree, side);
        }
        own.at[side] = None;
        own.results.push(value);
        let has_ended_twice = own.results.len() > 1;
        let node = self.node(tree, side);
        if value != Program::result(steps) {
            self.violation(node, UNDISTURBED, format!("it has computed {value:x}"));
        }
        if has_ended_twice {
            self.violation(node, NEVER_TWO, "it has ended twice");
        }
    }

    /// The next order for a tree.
    pub fn order_later(&mut self, tree: usize) {
        let orders = &mut self.trees[tree].orders;
        if *orders > 0 {
            *orders -= 1;
            let by_ns = self.random.below(ORDER_NS);
            let event = Event::Order(tree);
            self.stage.engine.after(self.operator, by_ns, event);
        }
    }

    fn accepted(&mut self, wire: u64) {
        match self.net.wire(wire).and_then(|one| one.images_of) {
            None => self.target_accepted(wire),
            Some(_) => self.receiver_handles(ppmr::target::Input::Connected { connection: wire }),
        }
    }

    /// A connection is made, at who has made it.
    pub fn connected(&mut self, wire: u64) {
        let tree = self.tree_of(wire);
        match self.net.wire(wire).and_then(|one| one.images_of) {
            None => self.source_connected(tree),
            Some(_) => self.sender_connected(tree),
        }
    }

    fn said(&mut self, wire: u64, end: Side, said: Said) {
        if !self.net.is_open(wire, end) {
            return;
        }
        let tree = self.tree_of(wire);
        match (end, said) {
            (SOURCE, Said::ToSource(message)) => {
                self.source_handles(tree, source::Input::Message(message));
            }
            (_, Said::ToTarget(message)) => {
                let connection = wire;
                self.target_handles(
                    tree,
                    target::Input::Message {
                        connection,
                        message,
                    },
                );
            }
            (SOURCE, Said::Bytes(bytes)) => self.sender_heard(tree, &bytes),
            (_, Said::Bytes(bytes)) => self.receiver_heard(wire, &bytes),
            _ => {}
        }
    }

    /// A connection has ended, at one side.
    pub fn closed(&mut self, wire: u64, end: Side) {
        let tree = self.tree_of(wire);
        let connection = wire;
        match (self.net.wire(wire).and_then(|one| one.images_of), end) {
            (None, SOURCE) => self.source_closed(tree, wire),
            (None, _) => self.target_handles(tree, target::Input::Closed { connection }),
            (Some(_), SOURCE) => self.sender_closed(tree),
            (Some(_), _) => self.receiver_handles(ppmr::target::Input::Closed { connection }),
        }
    }

    /// What died, or hangs, is started again.
    fn start_later(&mut self, process: ProcessId) {
        let most_ns = START_NS[self.random.below(2) as usize];
        let by_ns = self.random.below(most_ns);
        let event = Event::Start(process);
        self.stage.engine.after(self.operator, by_ns, event);
    }

    fn start_again(&mut self, process: ProcessId) {
        if self.stage.engine.is_hung(process) {
            self.lose(process);
        } else if self.stage.engine.is_alive(process) {
            return;
        }
        self.stage.engine.restart(process);
        match self.source_of(process) {
            Some(tree) => self.start_source(tree),
            None => self.start_target(),
        }
    }

    fn source_of(&self, process: ProcessId) -> Option<usize> {
        self.trees.iter().position(|tree| tree.source == process)
    }

    fn sender_of(&self, process: ProcessId) -> Option<usize> {
        self.trees.iter().position(|tree| tree.sender == process)
    }

    /// What a process had is gone. A node goes with its buffer manager.
    fn lose(&mut self, process: ProcessId) {
        self.stage.engine.crash(process);
        if let Some(tree) = self.source_of(process) {
            self.ticks.remove(&Who::Source(tree));
            let own = &mut self.trees[tree];
            (own.leaving, own.writing, own.wire) = (None, None, None);
            own.at[SOURCE] = None;
            self.lose_ends(SOURCE, |wire| wire.tree == tree && wire.images_of.is_none());
            self.lose_sender(tree);
        } else if process == self.target {
            self.ticks.retain(|who, _| !matches!(who, Who::Target(_)));
            for tree in &mut self.trees {
                (tree.coming, tree.expected, tree.arrival) = (None, None, None);
                tree.at[TARGET] = None;
            }
            self.lose_ends(TARGET, |wire| wire.images_of.is_none());
            self.lose_receiver();
        } else if let Some(tree) = self.sender_of(process) {
            self.lose_sender(tree);
            let node = self.trees[tree].source;
            let why = "the source's buffer manager is gone".into();
            let attempts = self.trees[tree].writing.as_ref().map(|one| one.attempt);
            let event = Event::NoSender(tree, attempts.unwrap_or_default(), why);
            self.stage.engine.after(node, NOTICE_NS, event);
        } else if process == self.receiver {
            self.lose_receiver();
            let event = Event::ReceiverGone;
            self.stage.engine.after(self.target, NOTICE_NS, event);
        }
    }

    /// The buffer manager of a source is gone.
    pub fn lose_sender(&mut self, tree: usize) {
        self.stage.engine.crash(self.trees[tree].sender);
        self.ticks.remove(&Who::Sender(tree));
        self.trees[tree].manager = None;
        self.lose_ends(SOURCE, |wire| wire.tree == tree && wire.images_of.is_some());
    }

    /// The buffer manager of the target is gone.
    pub fn lose_receiver(&mut self) {
        self.stage.engine.crash(self.receiver);
        self.ticks.remove(&Who::Receiver);
        self.managers.receiver = None;
        self.lose_ends(TARGET, |wire| wire.images_of.is_some());
    }

    /// Whether this can be started again by the operator.
    fn is_node(&self, process: ProcessId) -> bool {
        process == self.target || self.source_of(process).is_some()
    }
}

impl System for World {
    type Event = Event;

    #[inline]
    fn stage(&mut self) -> &mut Stage<Event> {
        &mut self.stage
    }

    #[inline]
    fn look(&self) -> &Stage<Event> {
        &self.stage
    }

    fn start(&mut self) {
        self.start_target();
        for tree in 0..self.trees.len() {
            self.runs(tree, SOURCE, Program::default());
            self.order_later(tree);
        }
    }

    fn happen(&mut self, at: ProcessId, event: Event) {
        let is_step = matches!(event, Event::Source(..) | Event::Target(..));
        match event {
            Event::Tick(who, due) => self.tick(who, due),
            Event::Dial(wire) => self.dial(wire),
            Event::Accepted(wire) => self.accepted(wire),
            Event::Said(wire, end, said) => self.said(wire, end, said),
            Event::Gone(wire, end) => self.gone(wire, end),
            Event::Closed(wire, end) => self.closed(wire, end),
            Event::Source(tree, output) => self.source_does(tree, output),
            Event::Target(tree, output) => self.target_does(tree, output),
            Event::SourceWrote(tree, result) => self.source_wrote(tree, result),
            Event::TargetWrote(tree, input) => self.target_wrote(tree, input),
            Event::Restored(tree, id) => self.restored(tree, id),
            Event::SenderReady(tree, attempt) => self.sender_ready(tree, attempt),
            Event::NoSender(tree, attempt, why) => self.no_sender(tree, attempt, why),
            Event::Told(tree, attempt, output) => self.told(tree, attempt, output),
            Event::Write(tree, attempt, rank, was_late) => {
                self.write(tree, attempt, rank, was_late);
            }
            Event::Launch(tree) => self.launch(tree),
            Event::Ask(tree, attempt, input) if attempt == self.attempt(tree) => {
                self.sender_handles(tree, input);
            }
            Event::MadeUp(tree, attempt, rank, offset) if attempt == self.attempt(tree) => {
                self.made_up(tree, rank, offset);
            }
            Event::Ask(..) | Event::MadeUp(..) => {}
            Event::Read(stream, was_late) => self.read(stream, was_late),
            Event::ToldTarget(output) => self.told_target(output),
            Event::ReceiverGone => self.receiver_gone(),
            Event::AskReceiver(input) => self.receiver_handles(input),
            Event::Transfer(transfer, was_late) => self.transfer(transfer, was_late),
            Event::Step(tree, side, life) => self.step(tree, side, life),
            Event::Order(tree) => self.order(tree),
            Event::Start(process) => self.start_again(process),
        }
        if is_step && self.stage.engine.is_alive(at) {
            self.fault(at, &snaprig_coord::migration::faults::STEPPED);
        }
    }

    fn describe(&self) -> String {
        let now = self.stage.engine.now_ns();
        let trees = self.trees.iter().enumerate().map(|(at, tree)| {
            let sender = tree.manager.as_ref().and_then(|own| own.machine.as_ref());
            format!(
                "tree {}: {:?}\n{:?}\n{:?}\n{sender:?}\n",
                at + 1,
                tree.at,
                tree.leaving,
                tree.coming
            )
        });
        let trees: String = trees.collect();
        let receiver = self.managers.receiver.as_ref().map(|own| &own.machine);
        format!("at {now} ns\n{trees}{receiver:?}\n")
    }

    fn state(&self) -> u64 {
        let mut hash = Xxh3::new();
        for tree in &self.trees {
            if let Some(source) = &tree.leaving {
                source.hash_state(&mut hash);
            }
            if let Some(target) = &tree.coming {
                target.hash_state(&mut hash);
            }
            if let Some(sender) = tree.manager.as_ref().and_then(|own| own.machine.as_ref()) {
                sender.hash_state(&mut hash);
            }
            tree.at
                .map(|one| one.map(|one| one.is_running))
                .hash(&mut hash);
        }
        if let Some(receiver) = &self.managers.receiver {
            receiver.machine.hash_state(&mut hash);
        }
        hash.finish()
    }

    /// Who waits for ever: a machine of a process that lives, and has something under way.
    fn waits(&self) -> Option<String> {
        let lives = |process| self.stage.engine.is_alive(process);
        let leaving = self
            .trees
            .iter()
            .find(|tree| lives(tree.source) && tree.leaving.is_some());
        let sender = self.trees.iter().find(|tree| {
            let machine = tree.manager.as_ref().and_then(|own| own.machine.as_ref());
            lives(tree.sender) && machine.is_some_and(|one| one.deadline().is_some())
        });
        let receiver = self
            .managers
            .receiver
            .as_ref()
            .filter(|_| lives(self.receiver));
        match () {
            () if leaving.is_some() => Some("a source has not come to its end".into()),
            () if sender.is_some() => Some("a sender has not come to its end".into()),
            () if receiver.is_some_and(|own| own.machine.used_chunks() > 0) => {
                Some("the receiver has chunks of streams that are over".into())
            }
            () => None,
        }
    }

    /// The operator heals.
    fn heal(&mut self) -> bool {
        false
    }

    fn has_faults(&self) -> bool {
        self.stage.may_have_faults(FAULTS_MAX)
    }

    fn crash(&mut self, process: ProcessId) {
        if self.stage.engine.is_alive(process) {
            self.lose(process);
            if self.is_node(process) {
                self.start_later(process);
            }
        }
    }

    fn hang(&mut self, process: ProcessId) {
        if self.stage.engine.is_alive(process) {
            self.stage.engine.hang(process);
            if self.is_node(process) {
                self.start_later(process);
            }
        }
    }

    fn restart(&mut self, process: ProcessId) {
        if self.stage.engine.is_alive(process) {
            self.lose(process);
            let event = Event::Start(process);
            self.stage.engine.after(self.operator, 0, event);
        }
    }

    fn cut_link(&mut self, process: ProcessId) {
        self.break_links(process);
    }

    fn partition(&mut self, process: ProcessId) {
        self.partition_links(process);
    }
}
