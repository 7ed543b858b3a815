//! A job as a system of the simulator: from its start to its end, and how it is looked at before.

use std::{
    fmt::Write,
    hash::{Hash, Hasher},
};

use snaprig_coord::{coordinator::Input, member};
use snaprig_sim::ProcessId;
use xxhash_rust::xxh3::Xxh3;

use super::{
    operator::Part,
    run::{Event, World, label},
};
use crate::{
    scenario::Outcome,
    stage::{Stage, System},
};

/// After so many faults none happens any more: a plan may have a process die at each of its steps.
const FAULTS_MAX: u64 = 2000;

impl World {
    /// Runs to the end, or to where it is to be looked at.
    pub fn finish(mut self) -> Outcome<()> {
        let ending = self.play();
        self.stage.into_outcome(ending, Vec::new(), ())
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
        for agent in 0..self.agents.len() {
            self.start_agent(agent);
            self.step_later(agent);
        }
        self.operator_connects();
    }

    #[inline]
    fn happen(&mut self, _: ProcessId, event: Event) {
        match event {
            Event::PeerTick(peer, due) => self.peer_tick(peer, due),
            Event::CoordinatorTick(due) => self.coordinator_tick(due),
            Event::Dial(wire) => self.dial(wire),
            Event::Unreached(peer, why) => {
                self.peer_handles(peer, member::Input::Closed { why });
            }
            Event::Connected(wire) => {
                let (connection, nonce) = (wire.number, self.nonce());
                self.coordinator_handles(Input::Connected { connection, nonce });
            }
            Event::ToCoordinator(wire, message) => {
                self.heard_by_coordinator(wire.number, message);
            }
            Event::ToPeer(wire, message) => self.heard_by_peer(wire, message),
            Event::GoneAtCoordinator(wire) => self.gone_at_coordinator(wire),
            Event::GoneAtPeer(wire) => self.gone_at_peer(wire),
            Event::Members => self.keep_members(),
            Event::Commit(commit) => self.commit(&commit),
            Event::LateCommit(commit) => self.late_commit(&commit),
            Event::Committed(round, result) => {
                self.coordinator_handles(Input::Committed { round, result });
            }
            Event::Phase(agent, round, phase) => self.phase(agent, round, phase),
            Event::Step(agent) => self.step(agent),
            Event::Data(generation, connection, side, number) => {
                if generation == self.generation {
                    self.arrives(connection, side, number);
                }
            }
            Event::OperatorConnects => self.operator_connects(),
            Event::Order => self.order(),
            Event::Rested => self.rested(),
            Event::Look => self.look(),
        }
    }

    fn label(&self, event: &Event) -> String {
        label(event)
    }

    fn is_over(&self) -> bool {
        self.operator.part == Part::Over || self.stuck.is_some()
    }

    /// The operator heals, and then goes on.
    fn heal(&mut self) -> bool {
        false
    }

    fn waits(&self) -> Option<String> {
        let stuck = self.stuck.clone();
        stuck.or_else(|| (!self.is_over()).then(|| "nothing happens any more".into()))
    }

    fn has_faults(&self) -> bool {
        !self.faults_off && self.stage.may_have_faults(FAULTS_MAX)
    }

    fn delayed(&mut self, by_ns: u64) {
        let until_ns = self.stage.engine.now_ns().saturating_add(by_ns);
        self.late_until_ns = self.late_until_ns.max(until_ns);
    }

    fn hang(&mut self, process: ProcessId) {
        if self.stage.engine.is_alive(process) {
            self.stage.engine.hang(process);
        }
    }

    fn fill_disk(&mut self) {
        self.disk.fill();
    }

    fn crash(&mut self, process: ProcessId) {
        self.stage.engine.crash(process);
        if process == self.coordinator {
            return self.coordinator_gone();
        }
        let agent = self.agents.iter().position(|one| one.process == process);
        if let Some(agent) = agent {
            self.peer_gone(agent);
        }
    }

    fn describe(&self) -> String {
        let mut text = format!(
            "at {} ns, {:?}\n",
            self.stage.engine.now_ns(),
            self.operator.part
        );
        for (number, agent) in self.agents.iter().enumerate() {
            let life = match (self.lives(number), agent.is_running) {
                (false, _) => "not alive",
                (_, true) => "running",
                (_, false) => "stopped",
            };
            let round = self.peers[number].machine.round();
            // Writing to a string cannot fail.
            let _ = writeln!(text, "agent{}: {life}, in round {round:?}", number + 1);
            for end in &agent.program.ends {
                let _ = writeln!(text, "  {end:?}");
            }
        }
        let last = self.last_checkpoint();
        let _ = writeln!(text, "members {:?}, last checkpoint {last:?}", self.roster);
        text
    }

    fn state(&self) -> u64 {
        let mut hash = Xxh3::new();
        self.operator.part.hash(&mut hash);
        self.stage.engine.is_alive(self.coordinator).hash(&mut hash);
        for (number, agent) in self.agents.iter().enumerate() {
            let phase = self.peers[number].machine.round().map(|(_, phase)| phase);
            let is_joined = self.roster.contains(&number.to_string());
            (self.lives(number), agent.is_running, phase, is_joined).hash(&mut hash);
        }
        self.disk.hash_names(&mut hash);
        hash.finish()
    }
}
