//! Connections between the coordinator and its peers: ordered, and noticed when they end. A message
//! that is lost is a connection that breaks.

use snaprig_coord::{
    coordinator, faults,
    member::{self, Machine},
    message::{ToCoordinator, ToMember},
};
use snaprig_sim::ProcessId;

use super::run::{Event, World};
use crate::stage::{Effect, System as _};

/// How long a kernel takes to say that a process or a connection is gone.
const NOTICE_NS: u64 = 50_000;
/// Lanes of connections: two each.
const LANES: u64 = 1 << 32;

/// A connection, as numbered by the coordinator that has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wire {
    /// Its number.
    pub number: u64,
    /// Whose it is.
    pub peer: usize,
}

/// A peer's side: a machine, and its connection.
#[derive(Debug)]
pub struct Peer {
    /// The machine.
    pub machine: Machine,
    /// Its process.
    pub process: ProcessId,
    /// The connection that it has, or makes.
    pub wire: Option<u64>,
    /// When it wants to be woken.
    pub tick_ns: Option<u64>,
    /// The last call's number.
    pub last_call: u64,
}

impl Peer {
    pub fn new(machine: Machine, process: ProcessId) -> Self {
        Self {
            machine,
            process,
            wire: None,
            tick_ns: None,
            last_call: 0,
        }
    }
}

impl World {
    /// Something happens to a peer's machine; what it says is done.
    pub fn peer_handles(&mut self, peer: usize, input: member::Input) {
        let now = self.stage.engine.now_ns();
        let outputs = self.peers[peer].machine.handle(input, now);
        for output in outputs {
            self.peer_acts(peer, output);
            if !self.stage.engine.is_alive(self.peers[peer].process) {
                return;
            }
        }
        self.wake_peer(peer);
    }

    fn wake_peer(&mut self, peer: usize) {
        let of = &mut self.peers[peer];
        let due = of.machine.deadline();
        if let Some(due) = due.filter(|due| of.tick_ns.is_none_or(|tick| tick > *due)) {
            of.tick_ns = Some(due);
            let process = of.process;
            self.stage
                .engine
                .at(process, due, Event::PeerTick(peer, due));
        }
    }

    pub fn peer_tick(&mut self, peer: usize, due: u64) {
        if self.peers[peer].tick_ns == Some(due) {
            self.peers[peer].tick_ns = None;
            self.peer_handles(peer, member::Input::Tick);
        }
    }

    fn peer_acts(&mut self, peer: usize, output: member::Output) {
        match output {
            member::Output::Connect => self.connect(peer),
            member::Output::Send(message) => self.tell_coordinator(peer, message),
            member::Output::Close => {
                if let Some(number) = self.peers[peer].wire.take() {
                    self.close_later(Wire { number, peer }, true);
                }
            }
            member::Output::Answer { id, result } => self.answered(peer, id, result),
            member::Output::Event(event) => self.told(peer, event),
        }
    }

    fn connect(&mut self, peer: usize) {
        let process = self.peers[peer].process;
        let late_ns = match self.fault(process, &faults::CONNECT) {
            Effect::Ended => return,
            Effect::Late(by_ns) => by_ns,
            Effect::Error(errno) => {
                let why = format!("errno {errno}");
                return self
                    .stage
                    .engine
                    .after(process, 0, Event::Unreached(peer, why));
            }
            _ => 0,
        };
        self.next_wire += 1;
        let number = self.next_wire;
        self.peers[peer].wire = Some(number);
        self.stage
            .engine
            .after(process, late_ns, Event::Dial(Wire { number, peer }));
    }

    /// The kernel makes a connection, whatever the coordinator's process is doing.
    pub fn dial(&mut self, wire: Wire) {
        if self.peers[wire.peer].wire != Some(wire.number) {
            return;
        }
        let (process, coordinator) = (self.peers[wire.peer].process, self.coordinator);
        let is_there =
            self.stage.engine.is_alive(coordinator) || self.stage.engine.is_hung(coordinator);
        if !is_there || self.keeper.is_none() {
            self.peers[wire.peer].wire = None;
            let why = "nobody listens".into();
            return self
                .stage
                .engine
                .after(process, 0, Event::Unreached(wire.peer, why));
        }
        self.wires.insert(wire.number, wire.peer);
        let lane = LANES + 2 * wire.number;
        let connected = Event::Connected(wire);
        self.stage
            .engine
            .send(process, coordinator, lane, connected);
        let nonce = self.nonce();
        self.peer_handles(wire.peer, member::Input::Connected { nonce });
    }

    pub fn nonce(&mut self) -> [u8; 32] {
        let mut nonce = [0; 32];
        nonce[..8].copy_from_slice(&self.random.number().to_le_bytes());
        nonce
    }

    fn tell_coordinator(&mut self, peer: usize, message: ToCoordinator) {
        let Some(number) = self.peers[peer].wire else {
            return;
        };
        let wire = Wire { number, peer };
        let own = self.peers[peer].process;
        if let Some(late_ns) = self.leaves(own, wire) {
            let lane = LANES + 2 * number;
            let event = Event::ToCoordinator(wire, message);
            let to = self.coordinator;
            self.stage.engine.send_late(own, to, lane, late_ns, event);
        }
    }

    pub fn tell_peer(&mut self, number: u64, message: ToMember) {
        let Some(peer) = self.wires.get(&number).copied() else {
            return;
        };
        let wire = Wire { number, peer };
        let own = self.coordinator;
        if let Some(late_ns) = self.leaves(own, wire) {
            let lane = LANES + 2 * number + 1;
            let (to, event) = (self.peers[peer].process, Event::ToPeer(wire, message));
            self.stage.engine.send_late(own, to, lane, late_ns, event);
        }
    }

    /// A message leaves: how late, if it does.
    fn leaves(&mut self, own: ProcessId, wire: Wire) -> Option<u64> {
        match self.fault(own, &faults::MESSAGE) {
            Effect::Ended => None,
            Effect::Dropped => {
                self.break_wire(wire);
                None
            }
            Effect::Late(by_ns) => Some(by_ns),
            _ => self.stage.engine.is_alive(own).then_some(0),
        }
    }

    /// Both ends notice.
    fn break_wire(&mut self, wire: Wire) {
        self.close_later(wire, true);
        self.close_later(wire, false);
    }

    /// One end of a connection learns that it has ended: the coordinator's, or the peer's.
    pub fn close_later(&mut self, wire: Wire, at_coordinator: bool) {
        let (to, lane, event) = match at_coordinator {
            true => (self.coordinator, 0, Event::GoneAtCoordinator(wire)),
            false => (self.peers[wire.peer].process, 1, Event::GoneAtPeer(wire)),
        };
        let lane = LANES + 2 * wire.number + lane;
        // Of a process that is dead, the kernel says so.
        self.stage.engine.send_late(to, to, lane, NOTICE_NS, event);
    }

    pub fn heard_by_peer(&mut self, wire: Wire, message: ToMember) {
        if self.peers[wire.peer].wire == Some(wire.number) {
            self.peer_handles(wire.peer, member::Input::Message(message));
        }
    }

    pub fn gone_at_peer(&mut self, wire: Wire) {
        if self.peers[wire.peer].wire == Some(wire.number) {
            self.peers[wire.peer].wire = None;
            let why = "the connection has ended".into();
            self.peer_handles(wire.peer, member::Input::Closed { why });
        }
    }

    pub fn gone_at_coordinator(&mut self, wire: Wire) {
        if self.wires.remove(&wire.number).is_some() {
            let connection = wire.number;
            self.coordinator_handles(coordinator::Input::Gone { connection });
        }
    }

    /// A peer's process is gone: its connection ends.
    pub fn peer_gone(&mut self, peer: usize) {
        self.peers[peer].tick_ns = None;
        if let Some(number) = self.peers[peer].wire.take() {
            self.close_later(Wire { number, peer }, true);
        }
    }

    /// The coordinator's process is gone.
    pub fn coordinator_gone(&mut self) {
        self.keeper = None;
        for (number, peer) in std::mem::take(&mut self.wires) {
            self.close_later(Wire { number, peer }, false);
        }
    }
}
