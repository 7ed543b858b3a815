//! What is checkpointed: programs that send each other numbered messages, and the kernel's queues.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use snaprig_sim::Random;

use super::Workload;

/// One end of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct End {
    /// Which connection.
    pub connection: usize,
    /// Which of its two ends.
    pub side: usize,
    /// Messages that the program has sent: the next one has this number.
    pub sent: u64,
    /// Messages that the program has read.
    pub read: u64,
    /// Those that came, and that it has not read.
    pub queue: VecDeque<u64>,
}

impl End {
    /// Messages that came.
    pub fn came(&self) -> u64 {
        self.read + self.queue.len() as u64
    }

    /// The key under which it is published.
    pub fn key(connection: usize, side: usize) -> Vec<u8> {
        format!("connection {connection}, end {side}").into_bytes()
    }
}

/// A program, and what the kernel keeps for it: what an image holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Program {
    /// Its ends of connections.
    pub ends: Vec<End>,
}

impl Program {
    /// The program reads what came; what is wrong with it.
    pub fn read(&mut self) -> Option<String> {
        for end in &mut self.ends {
            while let Some(number) = end.queue.pop_front() {
                if number != end.read {
                    let (at, side, due) = (end.connection, end.side, end.read);
                    return Some(format!(
                        "message {number} came at end {side} of connection {at}, not {due}"
                    ));
                }
                end.read += 1;
            }
        }
        None
    }
}

/// Which agents' programs a connection joins, and what they have to do.
#[derive(Clone, Debug)]
pub struct Work {
    /// The agents of each connection's ends.
    pub connections: Vec<[usize; 2]>,
    /// Messages each way.
    pub runs: u64,
}

impl Work {
    /// What a plan's seed and workload stand for.
    pub fn new(seed: u64, work: &Workload) -> Self {
        let agents = u64::from(work.processes);
        let connection = |number: u16| {
            let mut random = Random::new(seed, &format!("connection {number} of coord"));
            let one = random.below(agents);
            // With one agent, it is connected with itself.
            let other = (one + 1 + random.below(agents.saturating_sub(1).max(1))) % agents;
            [one as usize, other as usize]
        };
        Self {
            connections: (0..work.connections).map(connection).collect(),
            runs: work.messages.into(),
        }
    }

    /// An agent's program as it is started.
    pub fn program(&self, agent: usize) -> Program {
        let ends = self.connections.iter().enumerate();
        let ends = ends.flat_map(|(connection, agents)| {
            let own = (0..2).filter(move |side| agents[*side] == agent);
            own.map(move |side| End {
                connection,
                side,
                sent: 0,
                read: 0,
                queue: VecDeque::new(),
            })
        });
        Program {
            ends: ends.collect(),
        }
    }
}
