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
//!
//! So does what the queue below has no room for: the HCA of a restart may have shorter ones. There, room is made by completions
//! that nobody but this log has asked for: of every so many requests one has one, and the program does not see it.

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
    /// How many fit below.
    room: usize,
    /// Where there is less room than the program has: all before this number have left the queue below. What is known to be done
    /// by other ways than its completion has not.
    left: u64,
    /// The number of the first in the log.
    first: u64,
}

impl<S> Default for Sends<S> {
    fn default() -> Self {
        Self {
            log: Ring::default(),
            held: 0,
            room: usize::MAX,
            left: 0,
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

    /// Whether what is posted next is to be held: others are, or there is no room for it.
    #[inline]
    pub fn is_holding(&self) -> bool {
        self.held > 0 || self.is_full()
    }

    #[inline]
    fn is_full(&self) -> bool {
        self.is_short() && self.next_number() - self.left >= self.room as u64
    }

    /// Whether any is held.
    pub fn has_held(&self) -> bool {
        self.held > 0
    }

    /// Whether the queue below is shorter than the program's.
    #[inline]
    pub fn is_short(&self) -> bool {
        self.room != usize::MAX
    }

    /// The queue below takes so many at once, or as many as the program's. How many that were below are held now.
    pub(crate) fn limit(&mut self, room: Option<usize>) -> usize {
        self.room = room.map_or(usize::MAX, |room| room.max(1));
        self.left = self.first;
        let over = self.below().saturating_sub(self.room);
        self.held += over;
        over
    }

    /// Whether a request is to complete with an entry below, whatever the program wants: it makes room.
    #[inline]
    pub fn asks(&self, number: u64) -> bool {
        self.is_short() && number.is_multiple_of((self.room as u64 / 2).max(1))
    }

    /// The next one that was held is to go below, with this number; none if there is no room.
    pub fn release(&mut self) -> Option<(u64, &Posted<S>)> {
        if self.is_full() {
            return None;
        }
        let at = self.below();
        let posted = self.log.get(at)?;
        self.held -= 1;
        Some((self.first + at as u64, posted))
    }

    /// How many there are, those that are held too.
    pub fn len(&self) -> usize {
        self.log.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Those that are held, in order.
    pub(crate) fn held(&self) -> impl Iterator<Item = &Posted<S>> {
        (self.below()..self.log.len()).filter_map(|place| self.log.get(place))
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

    /// A completion has come: that request, and all before it, are done. The program's name for it; none if it is not in the log,
    /// a mark, or one that the program has not asked for, unless it has `failed`: of that, everybody hears.
    #[inline]
    pub fn completed(&mut self, number: u64, failed: bool) -> Option<u64> {
        if self.is_short() {
            self.left = self.left.max(number + 1).min(self.next_number());
        }
        let count = number.checked_sub(self.first)?;
        if count >= self.below() as u64 {
            return None;
        }
        let posted = self.log.get(count as usize)?;
        let wr_id = posted.wr_id.filter(|_| posted.signaled || failed);
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
        self.left = self.first;
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
        assert_eq!(sends.completed(second, false), Some(7));
        assert!(sends.completed(first, false).is_none(), "once");
        assert!(!sends.awaits_completion());
        assert_eq!(sends.to_mark().and_then(|posted| posted.wr_id), Some(9));
        assert!(sends.completed(third + 1, false).is_none(), "there is none");
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
        assert!(
            sends.completed(first + 1, false).is_none(),
            "it is not below"
        );
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
        assert!(sends.awaits_completion() && sends.completed(first + 2, false).is_some());
        assert_eq!(sends.release().map(|(number, _)| number), Some(first + 3));
        assert!(sends.release().is_none());
    }

    #[test]
    fn what_a_shorter_queue_has_no_room_for_is_held() {
        let mut sends = Sends::default();
        for wr_id in 0..6 {
            sends.post(posted(wr_id, Kind::Message, false));
        }
        assert_eq!(sends.limit(Some(4)), 2);
        assert_eq!(sends.held().count(), 2);
        assert!(sends.is_holding() && sends.release().is_none());
        let asked: Vec<u64> = (0..8).filter(|number| sends.asks(*number)).collect();
        assert_eq!(asked, [0, 2, 4, 6]);
        assert_eq!(sends.completed(2, false), None, "nobody wants to know");
        let mut released = || Some(sends.release()?.0);
        assert_eq!(
            [released(), released(), released()],
            [Some(4), Some(5), None]
        );
        assert_eq!(sends.completed(3, true), Some(3), "it has failed");
        sends.settle();
        for wr_id in 6..8 {
            sends.post(posted(wr_id, Kind::Message, false));
        }
        assert!(sends.is_holding(), "those that are done are below still");
        assert_eq!(sends.completed(4, false), None, "that is known");
        assert!(!sends.is_holding());
        assert_eq!(sends.limit(None), 0);
        assert!(!sends.is_holding() && !sends.asks(4));
    }
}
