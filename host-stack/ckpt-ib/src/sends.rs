//! The log of a send queue (principle 2): what was posted and is not known to be done.
//!
//! ```text
//!   post      unsignaled  unsignaled  signaled  unsignaled
//!   completes      '-----------'----------+          '-- known by a mark that is posted behind it,
//!                                                        or, if it is a message, by its receiver
//! ```
//!
//! A completion says that everything before it is done, too (InfiniBand Architecture 1, 10.8.2).
//!
//! What is posted while the program has its send queue drained (SQD) waits here until it has it go on. So a checkpoint can let
//! what is below come to its end, and carries out nothing that the program holds back.

use crate::{Name, names::Receiver, ring::Ring};

/// What a request does at the peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// Takes a receive there: the receiver's count tells that it has come.
    #[default]
    Message,
    /// The same, of the shared receive queue of XRC with this number.
    Behind(u32),
    /// Leaves no trace that the peer's library could see: RDMA, atomics.
    Silent,
    /// Does nothing there: binds a window, invalidates a key.
    Local,
}

impl Kind {
    /// Whom it goes to, of a queue pair with this peer, if it is a message.
    pub fn receiver(self, peer: Name) -> Option<Receiver> {
        let shared = match self {
            Self::Message => None,
            Self::Behind(number) => Some(number),
            Self::Silent | Self::Local => return None,
        };
        Some(Receiver { qp: peer, shared })
    }
}

/// A request that was posted.
#[derive(Clone, Debug, Default)]
pub struct Posted<S> {
    /// The program's name for it; none of a mark.
    pub wr_id: Option<u64>,
    /// What it does.
    pub kind: Kind,
    /// It completes with an entry.
    pub signaled: bool,
    /// Bytes of the message.
    pub length: u64,
    /// What it takes to post it again, with virtual names.
    pub request: S,
}

/// The log of a send queue.
#[derive(Clone, Debug)]
pub struct Sends<S> {
    log: Ring<Posted<S>>,
    /// The last ones of them, which are not below.
    held: usize,
    /// The number of the first in the log.
    first: u64,
}

impl<S> Default for Sends<S> {
    fn default() -> Self {
        Self {
            log: Ring::default(),
            held: 0,
            first: 0,
        }
    }
}

impl<S> Sends<S> {
    /// A request is posted below; its number. Those that are held come behind it.
    pub fn post(&mut self, posted: Posted<S>) -> u64 {
        *self.log.push() = Some(posted);
        self.last_is_below()
    }

    /// The same, without what a move costs: what the request is put into may have been another one's, whose memory is used again.
    #[inline]
    pub fn post_into(&mut self) -> (u64, &mut Posted<S>)
    where
        S: Default,
    {
        self.log.push().get_or_insert_default();
        let number = self.last_is_below();
        let place = (number - self.first) as usize;
        (number, self.log.get_mut(place).expect("it was put there"))
    }

    /// The last one is before those that are held; its number.
    #[inline]
    fn last_is_below(&mut self) -> u64 {
        let last = self.log.len() - 1;
        let place = last - self.held;
        for after in (place..last).rev() {
            self.log.swap(after, after + 1);
        }
        self.first + place as u64
    }

    /// A request is posted that is not to go below yet.
    pub fn hold(&mut self, posted: Posted<S>) {
        *self.log.push() = Some(posted);
        self.held += 1;
    }

    /// Whether any is held: then what is posted next is to be held, too.
    pub fn is_holding(&self) -> bool {
        self.held > 0
    }

    /// The next one that was held is to go below, with this number.
    pub fn release(&mut self) -> Option<(u64, &Posted<S>)> {
        let at = self.log.len().checked_sub(self.held)?;
        let posted = self.log.get(at)?;
        self.held -= 1;
        Some((self.first + at as u64, posted))
    }

    /// The last one that was posted was not taken below after all.
    pub fn take_back(&mut self) {
        let Some(place) = self.below().checked_sub(1) else {
            return;
        };
        for after in place..self.log.len() - 1 {
            self.log.swap(after, after + 1);
        }
        self.log.pop();
    }

    /// A completion has come: that request, and all before it, are done. The program's name for it; none if it is not in the log, or
    /// a mark.
    #[inline]
    pub fn completed(&mut self, number: u64) -> Option<u64> {
        let count = number.checked_sub(self.first)?;
        if count >= self.below() as u64 {
            return None;
        }
        let wr_id = self.log.get(count as usize)?.wr_id;
        self.first = number + 1;
        self.log.skip(count as usize + 1);
        wr_id
    }

    /// How many are below.
    #[inline]
    fn below(&self) -> usize {
        self.log.len() - self.held
    }

    /// All that is below is known to be done.
    pub fn settle(&mut self) {
        let below = self.below();
        self.first += below as u64;
        self.log.skip(below);
    }

    /// All is forgotten, with the queue pair's state.
    pub fn clear(&mut self) {
        self.held = 0;
        self.settle();
    }

    /// What is below and not known to be done, with numbers, in order.
    pub fn outstanding(&self) -> impl DoubleEndedIterator<Item = (u64, &Posted<S>)> {
        let numbered = |place| Some((self.first + place as u64, self.log.get(place)?));
        (0..self.below()).filter_map(numbered)
    }

    /// The number of what is posted next.
    #[inline]
    pub fn next_number(&self) -> u64 {
        self.first + self.below() as u64
    }

    /// All before this number are known to be done.
    #[inline]
    pub fn done(&self) -> u64 {
        self.first
    }

    /// Whether all that is below is known to be done.
    pub fn is_settled(&self) -> bool {
        self.below() == 0
    }

    /// Whether a completion is to come of what is below.
    pub fn awaits_completion(&self) -> bool {
        self.outstanding().any(|(_, posted)| posted.signaled)
    }

    /// The last request of which nobody will ever tell that it is done, unless a mark does.
    pub fn to_mark(&self) -> Option<&Posted<S>> {
        let mut last = self.outstanding().rev();
        last.find_map(|(_, posted)| (posted.kind == Kind::Silent).then_some(posted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn posted(wr_id: u64, kind: Kind, signaled: bool) -> Posted<()> {
        Posted {
            wr_id: Some(wr_id),
            kind,
            signaled,
            length: 0,
            request: (),
        }
    }

    #[test]
    fn a_completion_tells_of_all_before_it() {
        let mut sends = Sends::default();
        let first = sends.post(posted(7, Kind::Silent, false));
        let second = sends.post(posted(7, Kind::Message, true));
        let third = sends.post(posted(9, Kind::Silent, false));
        assert!(sends.awaits_completion());
        assert_eq!(sends.completed(second), Some(7));
        assert!(sends.completed(first).is_none(), "once");
        assert!(!sends.awaits_completion());
        assert_eq!(sends.to_mark().and_then(|posted| posted.wr_id), Some(9));
        assert!(sends.completed(third + 1).is_none(), "there is none");
        sends.settle();
        assert!(sends.is_settled());
        assert_eq!(sends.post(posted(1, Kind::Local, true)), third + 1);
    }

    #[test]
    fn what_is_held_is_not_below() {
        let mut sends = Sends::default();
        let first = sends.post(posted(1, Kind::Silent, false));
        sends.hold(posted(2, Kind::Silent, true));
        sends.hold(posted(3, Kind::Message, true));
        assert!(!sends.awaits_completion());
        assert!(sends.completed(first + 1).is_none(), "it is not below");
        sends.settle();
        assert!(sends.is_settled());
        sends.post(posted(5, Kind::Local, true));
        sends.take_back();
        let (mark, place) = sends.post_into();
        *place = posted(4, Kind::Local, true);
        assert_eq!(mark, first + 1, "before what is held");
        sends.settle();
        let released = sends
            .release()
            .map(|(number, posted)| (number, posted.wr_id));
        assert_eq!(released, Some((first + 2, Some(2))));
        assert!(sends.awaits_completion() && sends.completed(first + 2).is_some());
        assert_eq!(sends.release().map(|(number, _)| number), Some(first + 3));
        assert!(sends.release().is_none());
    }
}
