//! SCIF nodes joined by links, whatever programs they have: records between the host's node and a
//! card's, and what happens to them: they are lost, come twice, early or damaged, the link goes
//! down, or loses everything; the card is started again. What notices, and what is done about it, is
//! [`snaprig_scif::link`].

mod net;

use std::hash::{Hash, Hasher};

use snaprig_scif::{host::SILENCE_MAX, link::Link, node::Input};
use snaprig_sim::{Engine, ProcessId, engine::Lane};
use snaprig_wire::{
    frame,
    link::HEADER_BYTES,
    scif::{HOST, Message, NodeId},
};

pub use self::net::{Event, Net};
use crate::stage::{Effect, System};

/// How long the rig takes to notice that a card's process is gone.
pub const NOTICE_NS: u64 = 50_000;
/// How long a card takes to boot: longer than its death takes to be noticed.
const BOOT_NS: u64 = 10 * NOTICE_NS;
/// When the host's node next looks after a card, at the latest.
const LOOK_NS: u64 = 5_000_000_000;

/// A direction of a card's link, in one life of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Direction {
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
    /// Whether it goes nowhere any more.
    pub fn is_down(&self) -> bool {
        self.state == State::Down
    }

    /// Whether something has happened to it or its card since it was first there.
    pub fn was_disturbed(&self) -> bool {
        self.life > 0 || self.state != State::Up
    }

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

/// A system of nodes and links: what it has, and what is the same in all of them. Its [`System`] does with
/// links what [`Network`] has for that: [`Network::hang_card`] and so on.
pub trait Network: System<Event: From<Event>> {
    /// Its nodes.
    fn net(&self) -> &Net<Self::Event>;
    /// The same.
    fn net_mut(&mut self) -> &mut Net<Self::Event>;

    /// Something happens to a node; what it wants done is left to [`Network::pump`].
    fn node_hears(&mut self, node: NodeId, input: Input);
    /// Does what a node wants done.
    fn pump(&mut self, node: NodeId);
    /// A card has a node without a memory.
    fn forget_node(&mut self, card: NodeId);
    /// A card that was started again does what it does then.
    fn start_again(&mut self, card: NodeId);
    /// Whether links take records as they come: a planted bug.
    fn believes_links(&self) -> bool {
        false
    }
    /// Its engine.
    fn engine(&mut self) -> &mut Engine<Self::Event> {
        &mut self.stage().engine
    }

    /// The link of a card.
    fn link(&mut self, card: NodeId) -> &mut CardLink {
        self.net_mut().link_mut(card)
    }

    /// The process that runs a node.
    fn process_of(&self, node: NodeId) -> ProcessId {
        self.net().process_of(node)
    }

    /// The card that a process runs.
    fn card_of(&self, process: ProcessId) -> Option<NodeId> {
        let at = self.net().cards.iter().position(|one| *one == process)?;
        Some(at as NodeId + 1)
    }

    /// Something happens to a link.
    fn on_link(&mut self, event: Event) {
        match event {
            Event::Record(way, record) => self.record(way, &record),
            Event::Link(card, task) => self.link_task(card, task),
        }
    }

    /// Where what a node sends to another goes.
    fn way(&mut self, node: NodeId, to: NodeId) -> Direction {
        let card = if node == HOST { to } else { node };
        Direction {
            card,
            to_card: node == HOST,
            life: self.link(card).life,
        }
    }

    /// A node's message leaves over the link between them.
    fn send_message(&mut self, own: ProcessId, node: NodeId, to: NodeId, message: &Message) {
        let effect = self.fault(own, &snaprig_scif::faults::MESSAGE);
        if effect == Effect::Ended {
            return;
        }
        let way = self.way(node, to);
        let record = self.link(way.card).ends[usize::from(!way.to_card)].seal(message);
        self.send_record(way, record, &effect);
    }

    /// A record leaves, with what a fault does to it.
    fn send_record(&mut self, way: Direction, mut record: Vec<u8>, effect: &Effect) {
        let link = self.link(way.card);
        if link.state != State::Up {
            return;
        }
        let card = self.process_of(way.card);
        let (from, to) = match way.to_card {
            true => (self.process_of(HOST), card),
            false => (card, self.process_of(HOST)),
        };
        let lane = Lane::from(way.card) << 1 | Lane::from(way.to_card);
        let mut by_ns = 0;
        match effect {
            Effect::Late(late_ns) => {
                by_ns = *late_ns;
                let tally = &mut self.stage().tally;
                tally.late_ns = tally.late_ns.max(by_ns);
            }
            Effect::Corrupt(bit) => flip(&mut record, *bit),
            Effect::Dropped => {
                return self.link_later(HOST, LOOK_NS, way.card, Task::Look(way.life));
            }
            Effect::Early => {
                return self.engine().send_out_of_order(
                    from,
                    to,
                    Event::Record(way, record).into(),
                );
            }
            Effect::Doubled => {
                let event = Event::Record(way, record.clone()).into();
                self.engine().send(from, to, lane, event);
            }
            _ => {}
        }
        let event = Event::Record(way, record).into();
        self.engine().send_late(from, to, lane, by_ns, event);
    }

    /// A record has come.
    fn record(&mut self, way: Direction, record: &[u8]) {
        let believing = self.believes_links();
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
                self.node_hears(node, Input::Message(message));
                self.pump(node);
            }
            // A sign of life is answered with one.
            Ok(None) if way.to_card => {
                let way = Direction {
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

    /// A card's end of its link does what is due.
    fn link_task(&mut self, card: NodeId, task: Task) {
        let life = self.link(card).life;
        match task {
            Task::CardGone(of) if of == life => {
                // What the card has sent, and comes late, nobody takes any more.
                self.link(card).state = State::Down;
                self.peer_is_gone(HOST, card);
            }
            Task::HostGone(of) if of == life => self.peer_is_gone(card, HOST),
            Task::Look(of) if of == life => {
                let record = self.link(card).ends[0].alive();
                let way = self.way(HOST, card);
                self.send_record(way, record, &Effect::None);
            }
            Task::Silent(of) if of == life => {
                if self.hangs(card) || self.link(card).state == State::Partitioned {
                    self.link_is_down(card);
                }
            }
            Task::Boot => self.boot(card),
            Task::CardGone(_) | Task::HostGone(_) | Task::Look(_) | Task::Silent(_) => {}
        }
    }

    /// Whether a copy that a node has asked for does not end: this card hangs, or is out of reach.
    fn is_held(&mut self, node: NodeId, card: NodeId, job: u64) -> bool {
        if card == HOST {
            return false;
        }
        let hung = self.hangs(card);
        let link = self.link(card);
        let held = hung && link.state != State::Down || link.state == State::Partitioned;
        if held {
            link.held.push((node, job));
        }
        held
    }

    /// Whether a card's process exists, and does nothing any more.
    fn hangs(&mut self, card: NodeId) -> bool {
        let process = self.process_of(card);
        self.engine().is_hung(process)
    }

    /// Something happens to a card's link, at a node.
    fn link_later(&mut self, at: NodeId, delay_ns: u64, card: NodeId, task: Task) {
        let process = self.process_of(at);
        let event = Event::Link(card, task).into();
        self.engine().after(process, delay_ns, event);
    }

    /// A node learns that another one is gone.
    fn peer_is_gone(&mut self, node: NodeId, peer: NodeId) {
        let card = if node == HOST { peer } else { node };
        for (asker, job) in std::mem::take(&mut self.link(card).held) {
            self.node_hears(asker, Input::CopyDone(job, Err(libc::EIO)));
        }
        self.node_hears(node, Input::PeerDown(peer));
        self.pump(node);
    }

    /// A card has died: the host notices.
    fn card_is_gone(&mut self, card: NodeId) {
        let gone = Task::CardGone(self.link(card).life);
        self.link_later(HOST, NOTICE_NS, card, gone);
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
        self.link_later(card, NOTICE_NS, card, Task::HostGone(life));
    }

    /// The link of a process that is a card goes down.
    fn cut_card_link(&mut self, process: ProcessId) {
        if let Some(card) = self.card_of(process) {
            self.link_is_down(card);
        }
    }

    /// The link of a process that is a card loses everything.
    fn partition_card(&mut self, process: ProcessId) {
        if let Some(card) = self.card_of(process) {
            let link = self.link(card);
            if link.state == State::Up {
                link.state = State::Partitioned;
            }
            self.watch_for_silence(process);
        }
    }

    /// If it is a card: the host's node will give it up.
    fn watch_for_silence(&mut self, process: ProcessId) {
        if let Some(card) = self.card_of(process) {
            let silent = Task::Silent(self.link(card).life);
            let after = SILENCE_MAX.as_nanos() as u64;
            self.link_later(HOST, after, card, silent);
        }
    }

    /// A process stops for ever.
    fn hang_card(&mut self, process: ProcessId) {
        self.engine().hang(process);
        self.watch_for_silence(process);
    }

    /// A process dies; if it is a card, somebody starts it again.
    fn restart_card(&mut self, process: ProcessId) {
        self.crash(process);
        self.boot_later(process);
    }

    /// If it is a card: somebody starts it again.
    fn boot_later(&mut self, process: ProcessId) {
        if let Some(card) = self.card_of(process) {
            self.link_later(HOST, BOOT_NS, card, Task::Boot);
        }
    }

    /// A card's node starts.
    fn boot(&mut self, card: NodeId) {
        let process = self.process_of(card);
        if self.engine().is_alive(process) || self.engine().is_hung(process) {
            return;
        }
        self.peer_is_gone(HOST, card);
        self.engine().restart(process);
        let life = self.link(card).life + 1;
        *self.link(card) = CardLink {
            life,
            ..CardLink::default()
        };
        self.forget_node(card);
        self.node_hears(HOST, Input::PeerUp(card));
        self.node_hears(card, Input::PeerUp(HOST));
        self.start_again(card);
        self.pump(HOST);
    }
}
