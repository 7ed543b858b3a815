//! Records between the host's node and a card's, and what happens to them: they are lost, come
//! twice, early or damaged, the link goes down, or loses everything; the card is started again.
//! What notices, and what is done about it, is [`snaprig_scif::link`].

use std::hash::{Hash, Hasher};

use snaprig_scif::{host::SILENCE_MAX, link::Link, node::Input};
use snaprig_sim::{ProcessId, engine::Lane};
use snaprig_wire::{
    frame,
    link::HEADER_BYTES,
    scif::{HOST, Message, NodeId},
};

use super::{Effect, Event, NOTICE_NS, World, sockets::Sockets};
use crate::Canary;

/// How long a card takes to boot: longer than its death takes to be noticed.
const BOOT_NS: u64 = 10 * NOTICE_NS;
/// When the host's node next looks after a card, at the latest.
const LOOK_NS: u64 = 5_000_000_000;

/// A direction of a card's link, in one life of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    card: NodeId,
    to_card: bool,
    life: u32,
}

/// Something that happens to a card's link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// To the host's node: in this life, the card is gone.
    CardGone(u32),
    /// To the card: in this life, the host is gone.
    HostGone(u32),
    /// To the host's node: it looks whether the card still answers.
    Look(u32),
    /// To the host's node: the card has not answered for too long.
    Silent(u32),
    /// To the rig: the card has been started again.
    Boot,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum State {
    #[default]
    Up,
    /// It loses everything.
    Partitioned,
    Down,
}

/// The link between host and one card.
#[derive(Clone, Debug, Default)]
pub struct CardLink {
    life: u32,
    state: State,
    /// The host's end, the card's end.
    ends: [Link; 2],
    /// Copies that the card's DMA engine, which hangs, never ends: the node that asked, its job.
    held: Vec<(NodeId, u64)>,
}

impl CardLink {
    /// What it will do with the next record.
    pub fn hash_state(&self, hash: &mut impl Hasher) {
        self.state.hash(hash);
    }
}

/// The message of a record, whatever its number.
pub fn peek(record: &[u8]) -> Option<Message> {
    frame::decode(record.get(HEADER_BYTES..)?).ok()
}

/// Flips a bit, modulo the length.
pub fn flip(bytes: &mut [u8], bit: u64) {
    if !bytes.is_empty() {
        let bit = bit % (bytes.len() as u64 * 8);
        bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
    }
}

impl World {
    fn link(&mut self, card: NodeId) -> &mut CardLink {
        &mut self.links[usize::from(card) - 1]
    }

    fn way(&mut self, node: NodeId, to: NodeId) -> Way {
        let card = if node == HOST { to } else { node };
        Way {
            card,
            to_card: node == HOST,
            life: self.link(card).life,
        }
    }

    pub(super) fn send_message(
        &mut self,
        own: ProcessId,
        node: NodeId,
        to: NodeId,
        message: &Message,
    ) {
        let effect = self.fault(own, &snaprig_scif::faults::MESSAGE);
        if effect == Effect::Ended {
            return;
        }
        let way = self.way(node, to);
        let record = self.link(way.card).ends[usize::from(!way.to_card)].seal(message);
        self.send_record(way, record, &effect);
    }

    fn send_record(&mut self, way: Way, mut record: Vec<u8>, effect: &Effect) {
        let link = self.link(way.card);
        if link.state != State::Up {
            return;
        }
        let card = self.process_of(way.card);
        let (from, to) = match way.to_card {
            true => (self.rig, card),
            false => (card, self.rig),
        };
        let lane = Lane::from(way.card) << 1 | Lane::from(way.to_card);
        let mut by_ns = 0;
        match effect {
            Effect::Late(late_ns) => by_ns = *late_ns,
            Effect::Corrupt(bit) => flip(&mut record, *bit),
            Effect::Dropped => {
                self.engine.after(
                    self.rig,
                    LOOK_NS,
                    Event::Link(way.card, Task::Look(way.life)),
                );
                return;
            }
            Effect::Early => {
                return self
                    .engine
                    .send_out_of_order(from, to, Event::Record(way, record));
            }
            Effect::Doubled => {
                let event = Event::Record(way, record.clone());
                self.engine.send(from, to, lane, event);
            }
            _ => {}
        }
        let event = Event::Record(way, record);
        self.engine.send_late(from, to, lane, by_ns, event);
    }

    /// A record has come.
    pub(super) fn record(&mut self, way: Way, record: &[u8]) {
        let believing = self.canary == Some(Canary::BelievingLink);
        let link = self.link(way.card);
        if link.life != way.life || link.state == State::Down {
            return;
        }
        let node = if way.to_card { way.card } else { HOST };
        let opened = match believing {
            true => Ok(peek(record)),
            false => link.ends[usize::from(way.to_card)].open(record),
        };
        match opened {
            Ok(Some(message)) => {
                self.nodes[usize::from(node)].handle(Input::Message(message));
                self.pump(node);
            }
            // A sign of life is answered with one.
            Ok(None) if way.to_card => {
                let way = Way {
                    to_card: false,
                    ..way
                };
                let record = self.link(way.card).ends[1].alive();
                self.send_record(way, record, &Effect::None);
            }
            Ok(None) => {}
            Err(_) => self.link_is_down(way.card),
        }
    }

    pub(super) fn link_task(&mut self, card: NodeId, task: Task) {
        let life = self.link(card).life;
        match task {
            Task::CardGone(of) if of == life => self.peer_is_gone(HOST, card),
            Task::HostGone(of) if of == life => self.peer_is_gone(card, HOST),
            Task::Look(of) if of == life => {
                let record = self.link(card).ends[0].alive();
                let way = self.way(HOST, card);
                self.send_record(way, record, &Effect::None);
            }
            Task::Silent(of) if of == life => {
                let hung = self.engine.is_hung(self.process_of(card));
                if hung || self.link(card).state == State::Partitioned {
                    self.link_is_down(card);
                }
            }
            Task::Boot => self.boot(card),
            Task::CardGone(_) | Task::HostGone(_) | Task::Look(_) | Task::Silent(_) => {}
        }
    }

    /// Whether a copy between these nodes does not end: the card hangs, or is out of reach.
    pub(super) fn is_held(&mut self, node: NodeId, peer: NodeId, job: u64) -> bool {
        let card = if node == HOST { peer } else { node };
        if card == HOST {
            return false;
        }
        let hung = self.engine.is_hung(self.process_of(card));
        let link = self.link(card);
        let held = hung && link.state != State::Down || link.state == State::Partitioned;
        if held {
            link.held.push((node, job));
        }
        held
    }

    fn peer_is_gone(&mut self, node: NodeId, peer: NodeId) {
        let card = if node == HOST { peer } else { node };
        for (asker, job) in std::mem::take(&mut self.link(card).held) {
            self.nodes[usize::from(asker)].copied(job, Err(libc::EIO));
        }
        self.nodes[usize::from(node)].handle(Input::PeerDown(peer));
        self.pump(node);
    }

    /// A card has died: the host notices.
    pub(super) fn card_is_gone(&mut self, card: NodeId) {
        let gone = Task::CardGone(self.link(card).life);
        self.engine
            .after(self.rig, NOTICE_NS, Event::Link(card, gone));
    }

    /// One end has given the link up; the other one notices that it is let go of.
    fn link_is_down(&mut self, card: NodeId) {
        let link = self.link(card);
        if link.state == State::Down {
            return;
        }
        link.state = State::Down;
        let life = link.life;
        self.card_is_gone(card);
        let event = Event::Link(card, Task::HostGone(life));
        self.engine.after(self.process_of(card), NOTICE_NS, event);
    }

    pub(super) fn cut_link(&mut self, process: ProcessId) {
        if let Some(card) = self.node_of(process) {
            self.link_is_down(card);
        }
    }

    pub(super) fn partition(&mut self, process: ProcessId) {
        if let Some(card) = self.node_of(process) {
            let link = self.link(card);
            if link.state == State::Up {
                link.state = State::Partitioned;
            }
            self.watch_for_silence(process);
        }
    }

    /// If it is a card: the host's node will give it up.
    pub(super) fn watch_for_silence(&mut self, process: ProcessId) {
        if let Some(card) = self.node_of(process) {
            let silent = Task::Silent(self.link(card).life);
            let after = SILENCE_MAX.as_nanos() as u64;
            self.engine
                .after(self.rig, after, Event::Link(card, silent));
        }
    }

    /// If it is a card: somebody starts it again.
    pub(super) fn boot_later(&mut self, process: ProcessId) {
        if let Some(card) = self.node_of(process) {
            self.engine
                .after(self.rig, BOOT_NS, Event::Link(card, Task::Boot));
        }
    }

    fn boot(&mut self, card: NodeId) {
        let process = self.process_of(card);
        if self.engine.is_alive(process) || self.engine.is_hung(process) {
            return;
        }
        self.peer_is_gone(HOST, card);
        self.engine.restart(process);
        let life = self.link(card).life + 1;
        *self.link(card) = CardLink {
            life,
            ..CardLink::default()
        };
        self.nodes[usize::from(card)] = Sockets::new(card);
        self.nodes[usize::from(HOST)].handle(Input::PeerUp(card));
        self.nodes[usize::from(card)].handle(Input::PeerUp(HOST));
        self.start_card(card);
        self.pump(HOST);
    }
}
