//! What comes of a run, and how one is looked at before.

use std::{
    fmt::Write,
    hash::{Hash, Hasher},
};

use xxhash_rust::xxh3::Xxh3;

use super::run::World;
use crate::{Ending, Outcome, caught::caught, scif, verbs};

impl World {
    pub fn finish(mut self) -> Outcome {
        let ended = caught(|| {
            self.start();
            self.go()
        });
        let ending = match (ended, self.stuck) {
            (Err(panic), _) => Ending::Crashed(panic),
            (Ok(false), _) => Ending::Endless,
            (Ok(true), Some(why)) => Ending::Stuck(why),
            (Ok(true), None) => Ending::Finished,
        };
        let reached = self.engine.faults().reached().iter();
        Outcome {
            ending,
            apps: Vec::new(),
            violations: self.violations,
            leftovers: Vec::new(),
            faults: self.tally.faults,
            // Whether they are told of is for rounds to say.
            loud_faults: 0,
            states: self.states.unwrap_or_default(),
            reached: reached
                .map(|(name, reached)| (*name, reached.times, reached.faults))
                .collect(),
            now_ns: self.engine.now_ns(),
            processes: self.engine.names(),
            verbs: verbs::Ended::default(),
            scif: scif::Ended::default(),
            trace: self.engine.trace,
        }
    }

    /// Everybody, as they are.
    pub fn describe(&self) -> String {
        let mut text = format!("at {} ns, {:?}\n", self.engine.now_ns(), self.operator.part);
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

    /// What everybody would do next depends on this, and on nothing else but numbers and times.
    pub fn state(&self) -> u64 {
        let mut hash = Xxh3::new();
        self.operator.part.hash(&mut hash);
        self.engine.is_alive(self.coordinator).hash(&mut hash);
        for (number, agent) in self.agents.iter().enumerate() {
            let phase = self.peers[number].machine.round().map(|(_, phase)| phase);
            let is_joined = self.roster.contains(&number.to_string());
            (self.lives(number), agent.is_running, phase, is_joined).hash(&mut hash);
        }
        self.disk.hash_names(&mut hash);
        hash.finish()
    }
}
