//! Nodes, their processes and links, for every system that has them.

use snaprig_sim::ProcessId;
use snaprig_wire::scif::{Body, HOST, NodeId};

use super::{CardLink, Direction, Task, peek};
use crate::stage::Stage;

/// Something that links have happen.
#[derive(Debug)]
pub enum Event {
    /// To a node: a record of a neighbour's.
    Record(Direction, Vec<u8>),
    /// Something happens to the link of this card.
    Link(NodeId, Task),
}

impl Event {
    /// It, as a record shows it.
    pub fn label(&self) -> String {
        match self {
            Self::Record(_, record) => match peek(record).map(|message| message.body) {
                Some(Body::Data(bytes)) => format!("scif: Data, {} bytes", bytes.len()),
                Some(Body::Window { offset, .. }) => format!("scif: Window at {offset}"),
                Some(body) => format!("scif: {body:?}"),
                None => "a record without a message".into(),
            },
            Self::Link(node, task) => format!("link of card {node}: {task:?}"),
        }
    }
}

/// Nodes, their processes and links.
pub struct Net<E> {
    /// What every system has.
    pub stage: Stage<E>,
    /// The process of the host's node.
    pub rig: ProcessId,
    /// Those of cards, by node, from 1.
    pub cards: Vec<ProcessId>,
    links: Vec<CardLink>,
}

impl<E> Net<E> {
    /// The host's node is the rig's, the others have a process each.
    pub fn new(stage: Stage<E>, rig: ProcessId, cards: Vec<ProcessId>) -> Self {
        Self {
            links: cards.iter().map(|_| CardLink::default()).collect(),
            stage,
            rig,
            cards,
        }
    }

    /// The link of a card.
    pub fn link(&self, card: NodeId) -> &CardLink {
        &self.links[usize::from(card) - 1]
    }

    /// The same.
    pub fn link_mut(&mut self, card: NodeId) -> &mut CardLink {
        &mut self.links[usize::from(card) - 1]
    }

    /// The process that runs a node.
    pub fn process_of(&self, node: NodeId) -> ProcessId {
        match node {
            HOST => self.rig,
            card => self.cards[usize::from(card) - 1],
        }
    }
}
