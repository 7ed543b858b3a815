//! Connections between nodes: between supervisors, who decide, and between buffer managers. Each keeps its order; a message
//! that is lost is a connection that breaks, and both ends notice, unless a link loses everything.

use std::collections::BTreeMap;

use snaprig_coord::migration::{
    Id,
    message::{ToSource, ToTarget},
};
use snaprig_sim::{Point, ProcessId, engine::Lane};

use super::world::{Event, SOURCE, Side, TARGET, World};
use crate::stage::{Effect, System as _};

/// How long a kernel takes to say that a process or a connection is gone.
pub const NOTICE_NS: u64 = 50_000;
/// The longest time that a link loses everything.
const PARTITION_NS: u64 = 100_000_000_000;

/// What goes over a connection.
#[derive(Clone, Debug)]
pub enum Said {
    /// Between supervisors.
    ToTarget(ToTarget),
    ToSource(ToSource),
    /// A message between buffer managers, as bytes.
    Bytes(Vec<u8>),
}

/// A connection.
#[derive(Debug)]
pub struct Wire {
    /// Whose, and for which migration, if it is one of buffer managers.
    pub tree: usize,
    pub images_of: Option<Id>,
    /// Which ends have it.
    pub open: [bool; 2],
    /// It loses everything, though both ends have it.
    is_lost: bool,
}

/// All connections, and the links that they go over, one for each source.
#[derive(Debug, Default)]
pub struct Net {
    wires: BTreeMap<u64, Wire>,
    partition_until_ns: BTreeMap<usize, u64>,
}

impl Net {
    /// A connection that is being made.
    pub fn new_wire(&mut self, tree: usize, images_of: Option<Id>) -> u64 {
        let number = self.wires.len() as u64 + 1;
        let wire = Wire {
            tree,
            images_of,
            open: [true, false],
            is_lost: false,
        };
        self.wires.insert(number, wire);
        number
    }

    pub fn wire(&self, number: u64) -> Option<&Wire> {
        self.wires.get(&number)
    }

    pub fn is_open(&self, number: u64, end: Side) -> bool {
        self.wires.get(&number).is_some_and(|wire| wire.open[end])
    }

    /// The connections of somebody.
    fn of(&self, is_one: impl Fn(&Wire) -> bool) -> Vec<u64> {
        let all = self.wires.iter().filter(|(_, wire)| is_one(wire));
        all.map(|(number, _)| *number).collect()
    }
}

impl World {
    fn lane(wire: u64, to: Side) -> Lane {
        1000 + 2 * wire + to as u64
    }

    /// Who has an end of a connection.
    fn process_at(&self, number: u64, end: Side) -> ProcessId {
        let wire = self.net.wire(number);
        let tree = &self.trees[wire.map_or(0, |wire| wire.tree)];
        match (wire.and_then(|wire| wire.images_of), end) {
            (None, SOURCE) => tree.source,
            (None, _) => self.target,
            (Some(_), SOURCE) => tree.sender,
            (Some(_), _) => self.receiver,
        }
    }

    fn partitioned_ns(&self, tree: usize) -> u64 {
        let until_ns = self.net.partition_until_ns.get(&tree);
        let until_ns = until_ns.copied().unwrap_or_default();
        until_ns.saturating_sub(self.stage.engine.now_ns())
    }

    /// Whether RDMA gets through.
    pub fn is_up(&self, number: u64) -> bool {
        let wire = self.net.wire(number);
        wire.is_some_and(|wire| {
            let is_there = wire.open == [true; 2] && !wire.is_lost;
            is_there && self.partitioned_ns(wire.tree) == 0
        })
    }

    /// The kernels make a connection, whatever the process is doing that listens.
    pub fn dial(&mut self, number: u64) {
        let Some(wire) = self.net.wire(number) else {
            return;
        };
        if !wire.open[SOURCE] || self.partitioned_ns(wire.tree) > 0 {
            return;
        }
        let [from, to] = [SOURCE, TARGET].map(|end| self.process_at(number, end));
        let engine = &mut self.stage.engine;
        if !engine.is_alive(to) && !engine.is_hung(to) {
            return self.notice(number, SOURCE);
        }
        engine.send(
            from,
            to,
            Self::lane(number, TARGET),
            Event::Accepted(number),
        );
        if let Some(wire) = self.net.wires.get_mut(&number) {
            wire.open[TARGET] = true;
        }
        self.connected(number);
    }

    /// Something leaves, if a fault does not have it otherwise.
    pub fn say(&mut self, number: u64, from: Side, point: &Point, mut said: Said) {
        let own = self.process_at(number, from);
        let late_ns = match self.fault(own, point) {
            Effect::Ended => return,
            Effect::Late(by_ns) => by_ns,
            Effect::Dropped | Effect::Error(_) => return self.break_wire(number),
            Effect::Corrupt(bit) => {
                if let Said::Bytes(bytes) = &mut said {
                    self.flip(bytes, bit);
                }
                0
            }
            _ => 0,
        };
        let to = self.process_at(number, 1 - from);
        let Some(wire) = self.net.wires.get_mut(&number) else {
            return;
        };
        let tree = wire.tree;
        if wire.open[from] && !wire.is_lost {
            let lane = Self::lane(number, 1 - from);
            let event = Event::Said(number, 1 - from, said);
            let engine = &mut self.stage.engine;
            engine.send_late(own, to, lane, late_ns, event);
        }
        self.lose_if_partitioned(number, tree);
    }

    fn lose_if_partitioned(&mut self, number: u64, tree: usize) {
        if self.partitioned_ns(tree) > 0
            && let Some(wire) = self.net.wires.get_mut(&number)
        {
            wire.is_lost = true;
        }
    }

    /// A bit of something is wrong.
    pub fn flip(&mut self, bytes: &mut [u8], bit: u64) {
        let bits = bytes.len() as u64 * 8;
        if let Some(bit) = bit.checked_rem(bits) {
            bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
            self.has_corrupted = true;
        }
    }

    /// One end lets go of a connection; the other one notices.
    pub fn hang_up(&mut self, number: u64, end: Side) {
        if let Some(wire) = self.net.wires.get_mut(&number)
            && std::mem::take(&mut wire.open[end])
        {
            self.notice(number, 1 - end);
        }
    }

    /// An end learns that a connection has ended: soon, or when the link works again.
    fn notice(&mut self, number: u64, end: Side) {
        let tree = self.net.wire(number).map_or(0, |wire| wire.tree);
        let late_ns = self.partitioned_ns(tree).saturating_add(NOTICE_NS);
        let (process, lane) = (self.process_at(number, end), Self::lane(number, end));
        let event = Event::Gone(number, end);
        let engine = &mut self.stage.engine;
        engine.send_late(process, process, lane, late_ns, event);
    }

    fn break_wire(&mut self, number: u64) {
        if let Some(wire) = self.net.wires.get_mut(&number) {
            wire.is_lost = true;
        }
        self.notice(number, SOURCE);
        self.notice(number, TARGET);
    }

    /// The links of a process go down: whatever is connected is so no more.
    pub fn break_links(&mut self, process: ProcessId) {
        for tree in self.links_of(process) {
            let wires = self
                .net
                .of(|wire| wire.tree == tree && wire.open != [false; 2]);
            wires.into_iter().for_each(|one| self.break_wire(one));
        }
    }

    /// The links of a process lose everything, for some time.
    pub fn partition_links(&mut self, process: ProcessId) {
        let for_ns = self.random.below(PARTITION_NS);
        let until_ns = self.stage.engine.now_ns().saturating_add(for_ns);
        for tree in self.links_of(process) {
            let until = self.net.partition_until_ns.entry(tree).or_default();
            *until = until_ns.max(*until);
        }
        // What was lost is found to be when it works again.
        self.break_links(process);
    }

    /// A source has a link, and the target all of them.
    fn links_of(&self, process: ProcessId) -> Vec<usize> {
        let all = 0..self.trees.len();
        all.filter(|tree| process == self.target || process == self.trees[*tree].source)
            .collect()
    }

    /// An end of a connection learns that it has ended.
    pub fn gone(&mut self, number: u64, end: Side) {
        if let Some(wire) = self.net.wires.get_mut(&number)
            && std::mem::take(&mut wire.open[end])
        {
            self.closed(number, end);
        }
    }

    /// A process is gone, and its ends of connections with it.
    pub fn lose_ends(&mut self, end: Side, is_one: impl Fn(&Wire) -> bool) {
        for number in self.net.of(is_one) {
            self.hang_up(number, end);
        }
    }
}
