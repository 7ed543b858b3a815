//! Whether a checkpoint is whole, and one moment of the job: of each message, either it was not sent
//! yet, or it came.

use std::collections::BTreeMap;

use snaprig_coord::coordinator::GRACE_NS;
use snaprig_wire::frame;
use xxhash_rust::xxh3::xxh3_64;

use super::invariants::HALF;
use super::{
    keeper::{folder, manifest_of},
    program::{End, Program},
    run::World,
};
use crate::scenario::invariant::MESSAGES;

/// Within which time both ends of a connection notice that it has ended.
const NOTICED_NS: u64 = 1_000_000;

/// What a member says of its image.
pub fn report(image: &[u8]) -> String {
    format!("{:016x}", xxh3_64(image))
}

impl World {
    /// The last checkpoint that is offered: its round.
    pub fn last_checkpoint(&self) -> Option<u64> {
        let names = self.disk.names("round-").into_iter();
        let rounds = names.filter_map(|name| {
            let (number, rest) = name.strip_prefix("round-")?.split_once('/')?;
            number.parse::<u64>().ok().filter(|_| rest == "manifest")
        });
        rounds.max()
    }

    /// The programs of a checkpoint, by agent; or what is not whole.
    pub fn load(&self, round: u64) -> Result<BTreeMap<usize, Program>, String> {
        let manifest = self.disk.read(&manifest_of(round));
        let manifest = manifest.ok_or("there is no manifest")?;
        let text = String::from_utf8_lossy(manifest);
        let image = |line: &str| {
            let (name, said) = line.split_once(' ').ok_or("a line is no member's")?;
            let path = folder(round) + name;
            let image = self
                .disk
                .read(&path)
                .ok_or(format!("{path} is not there"))?;
            if report(image) != said {
                return Err(format!("{path} is not what its member wrote"));
            }
            let agent = name.parse::<usize>().map_err(|error| error.to_string())?;
            let program = frame::decode(image).map_err(|error| error.to_string())?;
            Ok((agent, program))
        };
        text.lines().map(image).collect()
    }

    /// Whether an agent must be part of the round that has begun: it had joined, and lives. Who is
    /// kept from coming again for longer than a coordinator waits counts as dead.
    pub fn belongs(&self, agent: usize) -> bool {
        // A connection that is being made is none yet, nor is one over which it has not been taken in.
        let wire = self.peers[agent].wire;
        let is_away = wire.is_none_or(|wire| !self.wires.contains_key(&wire))
            || self.agents[agent].apart_ns.is_some();
        let is_late = self.late_until_ns > self.stage.engine.now_ns() || self.is_given_up(agent);
        let had_joined = self.agents[agent]
            .joined_ns
            .is_some_and(|at| at < self.begun_ns);
        had_joined && self.lives(agent) && !(is_away && is_late)
    }

    /// Whether an agent has been away for as long as its coordinator waits, which may have noticed a little earlier.
    fn is_given_up(&self, agent: usize) -> bool {
        let (apart, keeper) = (self.agents[agent].apart_ns, self.keeper.as_ref());
        let since_ns = apart
            .zip(keeper)
            .map(|(apart_ns, keeper)| apart_ns.max(keeper.since_ns));
        let now_ns = self.stage.engine.now_ns() + NOTICED_NS;
        since_ns.is_some_and(|since_ns| now_ns - since_ns >= GRACE_NS)
    }

    /// A checkpoint has just come to be.
    pub fn check_commit(&mut self, round: u64) {
        let programs = match self.load(round) {
            Ok(programs) => programs,
            Err(what) => return self.violation(HALF, format!("round {round}: {what}")),
        };
        let mut agents = 0..self.agents.len();
        let missing = agents.find(|agent| self.belongs(*agent) && !programs.contains_key(agent));
        if let Some(agent) = missing {
            let what = format!("round {round}: agent{} lives, and is not in it", agent + 1);
            self.violation(HALF, what);
        }
        if let Some(what) = uncut(&programs) {
            self.violation(MESSAGES, format!("round {round}: {what}"));
        }
    }
}

/// What is on its way where it is lost, or came before it was sent.
fn uncut(programs: &BTreeMap<usize, Program>) -> Option<String> {
    let ends = programs.values().flat_map(|program| &program.ends);
    let ends: BTreeMap<_, &End> = ends.map(|end| ((end.connection, end.side), end)).collect();
    ends.iter().find_map(|((connection, side), end)| {
        let peer = ends.get(&(*connection, 1 - side))?;
        (end.sent != peer.came()).then(|| {
            let (sent, came) = (end.sent, peer.came());
            format!("connection {connection}: end {side} has sent {sent}, {came} came")
        })
    })
}
