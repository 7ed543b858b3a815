//! Planted bugs of this system: what a node with them would say, or not.

use snaprig_scif::node::{Input, Op};
use snaprig_wire::scif::{Body, HOST, Message, NodeId, PortId};

use super::run::World;
use crate::links::Network as _;

crate::canaries! {
    /// A bug that a run can be told to have.
    pub enum Canary {
        /// A SCIF node says that it uses a window no more, and copies with it.
        EarlyAnswer = "early-answer",
        /// A SCIF node does not say that its program has read.
        LostCredit = "lost-credit",
        /// A card's bell is not heard.
        LostBell = "lost-bell",
        /// A SCIF node's fence does not wait for RMA that no call waits for.
        EarlyFence = "early-fence",
        /// A SCIF node keeps memory of windows whose peer it has lost.
        LeakedWindow = "leaked-window",
        /// A SCIF node takes messages of an earlier connection of the same ports.
        StaleConnection = "stale-connection",
        /// A card does not hear that another one is gone.
        LostNews = "lost-news",
    }
}

impl World {
    /// Whether a node with the bug of this run sends this message.
    pub fn may_send(&mut self, message: &Message) -> bool {
        if let Body::Connect(_) = message.body {
            let ends = (message.from, message.to);
            self.latest.insert(ends, message.connection);
        }
        match message.body {
            Body::Credit(_) => self.canary != Some(Canary::LostCredit),
            Body::Ring(_) => self.canary != Some(Canary::LostBell),
            _ => true,
        }
    }

    /// What a node with the bug of this run hears, if anything.
    pub fn misheard(&mut self, node: NodeId, input: Input) -> Option<Input> {
        if let (Input::Request(request, endpoint, Op::FenceWait(_)), Some(Canary::EarlyFence)) =
            (&input, self.canary)
        {
            // A mark that is before all RMA.
            return Some(Input::Request(*request, *endpoint, Op::FenceWait(0)));
        }
        let (Input::Message(mut message), Some(canary)) = (input.clone(), self.canary) else {
            return Some(input);
        };
        match (canary, &message.body) {
            (Canary::EarlyAnswer, Body::Unwindow { offset, len }) if message.to.node == node => {
                let body = Body::Unwindowed {
                    offset: *offset,
                    len: *len,
                    held: false,
                };
                let answer = Message {
                    from: message.to,
                    to: message.from,
                    connection: message.connection,
                    body,
                };
                let next = if node == HOST {
                    message.from.node
                } else {
                    HOST
                };
                let own = self.process_of(node);
                self.send_message(own, node, next, &answer);
            }
            (Canary::StaleConnection, body) if !matches!(body, Body::Connect(_)) => {
                if let Some(latest) = self.latest_of(message.from, message.to) {
                    message.connection = latest;
                }
            }
            (Canary::LostNews, Body::Lost(_)) => return None,
            _ => {}
        }
        Some(Input::Message(message))
    }

    /// The last connection between these ports, whoever connected.
    fn latest_of(&self, from: PortId, to: PortId) -> Option<u32> {
        let found = self.latest.get(&(from, to));
        found.or_else(|| self.latest.get(&(to, from))).copied()
    }
}
