//! One end of the link between two nodes: messages to records and back.
//!
//! ```text
//!  Up --damaged, out of turn, or no message--> Broken (it says why, once, and opens nothing more)
//! ```
//!
//! The host's end sends a sign of life from time to time, which a card answers with one: so a loss is
//! noticed even when nothing else follows it.
//!
//! What must stay true: a message comes out at most once, in the order in which it was sealed, and
//! as it was; after anything else nothing comes out any more.

use std::time::Duration;

use snaprig_wire::{
    frame,
    link::{LinkError, Opener, Sealer},
    scif::Message,
};

/// Why a link is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// A record is not the one that is due.
    #[error("the link is broken: {0}")]
    Record(#[from] LinkError),
    /// The record is whole, but what it holds is no message.
    #[error(
        "the link is broken: a record is whole and makes no sense; do both sides' versions match?"
    )]
    Nonsense,
    /// The ring itself.
    #[error("the link is broken: the ring's indices make no sense")]
    Ring,
    /// It is broken already.
    #[error("the link is broken")]
    Already,
}

/// One end of a link.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Link {
    sealer: Sealer,
    opener: Opener,
    broken: bool,
}

impl Link {
    /// The record for a message.
    pub fn seal(&mut self, message: &Message) -> Vec<u8> {
        self.sealer.seal(&frame::encode(message))
    }

    /// The record that says nothing but that this end lives.
    pub fn alive(&mut self) -> Vec<u8> {
        self.sealer.seal(&[])
    }

    /// The message of a record; `None` if its sender only says that it lives.
    pub fn open(&mut self, record: &[u8]) -> Result<Option<Message>, Broken> {
        if self.broken {
            return Err(Broken::Already);
        }
        let opened = self.try_open(record);
        self.broken = opened.is_err();
        opened
    }

    fn try_open(&mut self, record: &[u8]) -> Result<Option<Message>, Broken> {
        match self.opener.open(record)? {
            [] => Ok(None),
            bytes => frame::decode(bytes).map(Some).map_err(|_| Broken::Nonsense),
        }
    }
}

/// Notices a peer that takes nothing out of its ring any more: it hangs, or the link loses
/// everything. Whoever watches puts a record in from time to time ([`Link::alive`]), so that there
/// is always something to take.
#[derive(Clone, Debug, Default)]
pub struct Watch {
    taken: u64,
    since: Duration,
}

impl Watch {
    /// A look at the ring at `now`: how much was ever taken out, and whether nothing is left. How
    /// long something has been waiting there.
    pub fn look(&mut self, taken: u64, is_empty: bool, now: Duration) -> Duration {
        if is_empty || taken != self.taken {
            (self.taken, self.since) = (taken, now);
        }
        now.saturating_sub(self.since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use snaprig_wire::scif::{Body, HOST, PortId};

    fn message(credit: u32) -> Message {
        let [from, to] = [(HOST, 1), (1, 2)].map(|(node, port)| PortId { node, port });
        let body = Body::Credit(credit);
        Message {
            from,
            to,
            connection: 1,
            body,
        }
    }

    #[test]
    fn nothing_comes_out_of_a_broken_link() {
        let (mut one, mut other) = (Link::default(), Link::default());
        let records = [1, 2, 3].map(|credit| one.seal(&message(credit)));
        assert_eq!(other.open(&records[0]), Ok(Some(message(1))));
        let early = LinkError::OutOfTurn { due: 1, came: 2 };
        assert_eq!(other.open(&records[2]), Err(Broken::Record(early)));
        assert_eq!(other.open(&records[1]), Err(Broken::Already));
    }

    #[test]
    fn signs_of_life_are_no_messages_and_nonsense_is_named() {
        let (mut one, mut other) = (Link::default(), Link::default());
        assert_eq!(other.open(&one.alive()), Ok(None));
        let nonsense = one.sealer.seal(&[0xff; 40]);
        assert_eq!(other.open(&nonsense), Err(Broken::Nonsense));
    }

    #[test]
    fn only_what_waits_and_waits_is_silence() {
        let at = Duration::from_secs;
        let mut watch = Watch::default();
        assert_eq!(watch.look(0, true, at(100)), at(0));
        assert_eq!(watch.look(0, false, at(110)), at(10));
        assert_eq!(watch.look(8, false, at(120)), at(0), "something was taken");
        assert_eq!(watch.look(8, false, at(150)), at(30));
        assert_eq!(watch.look(16, true, at(160)), at(0));
    }
}
