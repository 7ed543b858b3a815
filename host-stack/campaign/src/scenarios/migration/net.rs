//! The connection between both sides. It keeps its order; a message that is lost is a connection that breaks, and
//! both ends notice, unless the link loses everything.

use snaprig_coord::migration::{
    faults,
    message::{ToSource, ToTarget},
    source, target,
};
use snaprig_sim::engine::Lane;

use super::world::{Event, Message, SOURCE, Side, TARGET, World};
use crate::stage::{Effect, System as _};

/// How long a kernel takes to say that a process or a connection is gone.
const NOTICE_NS: u64 = 50_000;
/// The longest time that the link loses everything.
const PARTITION_NS: u64 = 100_000_000_000;

/// Connections of both sides.
#[derive(Debug, Default)]
pub struct Net {
    /// The last connection's number.
    last: u64,
    /// That which the source has, or makes.
    source: Option<u64>,
    /// Those that the target has.
    target: Vec<u64>,
    /// Those that lose everything, though both ends have them.
    lost: Vec<u64>,
    /// Until then, the link loses everything.
    partition_until_ns: u64,
}

impl World {
    fn lane(wire: u64, to: Side) -> Lane {
        16 + 2 * wire + to as u64
    }

    fn is_partitioned(&self) -> bool {
        self.stage.engine.now_ns() < self.net.partition_until_ns
    }

    /// The source connects, with a new connection.
    pub fn connect(&mut self) {
        let process = self.processes[SOURCE];
        let late_ns = match self.fault(process, &faults::CONNECT) {
            Effect::Ended => return,
            Effect::Late(by_ns) => by_ns,
            Effect::Error(errno) => {
                let why = format!("errno {errno}");
                return self.stage.engine.after(process, 0, Event::Unreached(why));
            }
            _ => 0,
        };
        self.net.last += 1;
        let wire = self.net.last;
        self.net.source = Some(wire);
        self.stage.engine.after(process, late_ns, Event::Dial(wire));
    }

    /// The kernels make the connection, whatever the target's process is doing.
    pub fn dial(&mut self, wire: u64) {
        if self.net.source != Some(wire) || self.is_partitioned() {
            return;
        }
        let [source, target] = self.processes;
        let engine = &mut self.stage.engine;
        if !engine.is_alive(target) && !engine.is_hung(target) {
            self.net.source = None;
            let why = "nobody listens".into();
            return engine.after(source, 0, Event::Unreached(why));
        }
        self.net.target.push(wire);
        let lane = Self::lane(wire, TARGET);
        engine.send(source, target, lane, Event::Accepted(wire));
        let nonce = self.nonce();
        self.source_handles(source::Input::Connected { nonce });
    }

    /// Somebody has connected to the target.
    pub fn accepted(&mut self, wire: u64) {
        let nonce = self.nonce();
        self.target_handles(target::Input::Connected {
            connection: wire,
            nonce,
        });
    }

    fn nonce(&mut self) -> [u8; 32] {
        let mut nonce = [0; 32];
        nonce[..8].copy_from_slice(&self.random.number().to_le_bytes());
        nonce
    }

    /// Something leaves, if a fault does not have it otherwise.
    fn leaves(&mut self, from: Side, wire: u64, point: &snaprig_sim::Point, said: Message) {
        let own = self.processes[from];
        let late_ns = match self.fault(own, point) {
            Effect::Ended => return,
            Effect::Late(by_ns) => by_ns,
            Effect::Dropped | Effect::Error(_) => return self.break_wire(wire),
            _ => 0,
        };
        if self.is_partitioned() && !self.net.lost.contains(&wire) {
            self.net.lost.push(wire);
        }
        let is_there = self.net.source == Some(wire) || self.net.target.contains(&wire);
        if is_there && !self.net.lost.contains(&wire) {
            let (to, lane) = (self.processes[1 - from], Self::lane(wire, 1 - from));
            let event = Event::Said(wire, said);
            self.stage.engine.send_late(own, to, lane, late_ns, event);
        }
    }

    pub fn tell_target(&mut self, message: ToTarget) {
        if let Some(wire) = self.net.source {
            self.leaves(SOURCE, wire, &faults::MESSAGE, Message::ToTarget(message));
        }
    }

    pub fn tell_source(&mut self, wire: u64, message: ToSource) {
        self.leaves(TARGET, wire, &faults::MESSAGE, Message::ToSource(message));
    }

    /// The image leaves, over the connection that there is.
    pub fn send_image(&mut self, image: Vec<u8>) {
        if let Some(wire) = self.net.source {
            self.leaves(SOURCE, wire, &faults::IMAGE, Message::Image(image));
        }
    }

    /// Something has come to a side.
    pub fn said(&mut self, wire: u64, said: Message) {
        match said {
            Message::ToSource(message) if self.net.source == Some(wire) => {
                self.source_handles(source::Input::Message(message));
            }
            Message::ToTarget(message) if self.net.target.contains(&wire) => {
                self.target_handles(target::Input::Message {
                    connection: wire,
                    message,
                });
            }
            Message::Image(image) if self.net.target.contains(&wire) => {
                self.image_came(wire, image)
            }
            _ => {}
        }
    }

    /// One end lets go of a connection; the other one notices.
    pub fn close(&mut self, side: Side, wire: Option<u64>) {
        let wire = match side {
            SOURCE => self.net.source.take(),
            _ => wire,
        };
        if let Some(wire) = wire {
            self.net.target.retain(|one| side == SOURCE || *one != wire);
            self.notice(1 - side, wire);
        }
    }

    /// A side learns that a connection has ended: at once, or when the link works again.
    fn notice(&mut self, side: Side, wire: u64) {
        let until_ns = self.net.partition_until_ns;
        let late_ns = until_ns.saturating_sub(self.stage.engine.now_ns()) + NOTICE_NS;
        let (process, lane) = (self.processes[side], Self::lane(wire, side));
        let event = Event::Gone(side, wire);
        let engine = &mut self.stage.engine;
        engine.send_late(process, process, lane, late_ns, event);
    }

    fn break_wire(&mut self, wire: u64) {
        self.notice(SOURCE, wire);
        self.notice(TARGET, wire);
    }

    /// The link goes down: whatever is connected is so no more.
    pub fn break_all(&mut self) {
        let wires = self.net.source.into_iter().chain(self.net.target.clone());
        for wire in wires.collect::<Vec<_>>() {
            self.break_wire(wire);
        }
    }

    /// The link loses everything, for some time.
    pub fn lose_everything(&mut self) {
        let for_ns = self.random.below(PARTITION_NS);
        let until_ns = self.stage.engine.now_ns().saturating_add(for_ns);
        self.net.partition_until_ns = self.net.partition_until_ns.max(until_ns);
        self.net.lost.extend(self.net.source);
        self.net.lost.extend(self.net.target.clone());
        // What was lost is found to be when it works again.
        self.break_all();
    }

    /// A connection has ended, at one side.
    pub fn gone(&mut self, side: Side, wire: u64) {
        if side == SOURCE && self.net.source == Some(wire) {
            self.net.source = None;
            let why = "the connection has ended".into();
            self.source_closed(why);
        }
        if side == TARGET && self.net.target.contains(&wire) {
            self.net.target.retain(|one| *one != wire);
            self.target_handles(target::Input::Closed { connection: wire });
        }
    }

    /// A side's process is gone, and its connections with it.
    pub fn lose_connections(&mut self, side: Side) {
        let wires = match side {
            SOURCE => self.net.source.take().into_iter().collect(),
            _ => std::mem::take(&mut self.net.target),
        };
        for wire in wires {
            self.notice(1 - side, wire);
        }
    }
}
