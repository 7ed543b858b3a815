//! The log of a send queue (principle 2): what was posted and is not known to be done.
//!
//! ```text
//!   post      unsignaled  unsignaled  signaled  unsignaled
//!   completes      '-----------'----------+          '-- known by a mark that is posted behind it,
//!                                                        or, if it is a message, by its receiver
//! ```
//!
//! A completion says that everything before it is done, too (InfiniBand Architecture 1, 10.8.2).

use std::collections::VecDeque;

/// What a request does at the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Takes a receive there: the receiver's count tells that it has come.
    Message,
    /// Leaves no trace that the peer's library could see: RDMA, atomics.
    Silent,
    /// Does nothing there: binds a window, invalidates a key.
    Local,
}

/// A request that was posted.
#[derive(Clone, Debug)]
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
    log: VecDeque<Posted<S>>,
    /// The number of the first in the log.
    first: u64,
}

impl<S> Default for Sends<S> {
    fn default() -> Self {
        Self {
            log: VecDeque::new(),
            first: 0,
        }
    }
}

impl<S> Sends<S> {
    /// A request is posted; its number.
    #[inline]
    pub fn post(&mut self, posted: Posted<S>) -> u64 {
        self.log.push_back(posted);
        self.first + self.log.len() as u64 - 1
    }

    /// The last one was not taken after all.
    pub fn take_back(&mut self) {
        self.log.pop_back();
    }

    /// A completion has come: that request, and all before it, are done. None if it is not in the log.
    #[inline]
    pub fn completed(&mut self, number: u64) -> Option<Posted<S>> {
        let count = number.checked_sub(self.first)?;
        if count >= self.log.len() as u64 {
            return None;
        }
        self.first = number + 1;
        self.log.drain(..count as usize);
        self.log.pop_front()
    }

    /// All is known to be done, or is forgotten with the queue pair's state.
    pub fn clear(&mut self) {
        self.first += self.log.len() as u64;
        self.log.clear();
    }

    /// What is not known to be done, with numbers, in order.
    pub fn outstanding(&self) -> impl Iterator<Item = (u64, &Posted<S>)> {
        (self.first..).zip(&self.log)
    }

    /// Whether all is known to be done.
    pub fn is_empty(&self) -> bool {
        self.log.is_empty()
    }

    /// Whether a completion is to come.
    pub fn awaits_completion(&self) -> bool {
        self.log.iter().any(|posted| posted.signaled)
    }

    /// The last request of which nobody will ever tell that it is done, unless a mark does.
    pub fn to_mark(&self) -> Option<&Posted<S>> {
        let mut last = self.log.iter().rev();
        last.find(|posted| posted.kind == Kind::Silent)
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
        let done = sends.completed(second).and_then(|done| done.wr_id);
        assert_eq!(done, Some(7));
        assert!(sends.completed(first).is_none(), "once");
        assert!(!sends.awaits_completion());
        assert_eq!(sends.to_mark().and_then(|posted| posted.wr_id), Some(9));
        assert!(sends.completed(third + 1).is_none(), "there is none");
        sends.clear();
        assert!(sends.is_empty());
        assert_eq!(sends.post(posted(1, Kind::Local, true)), third + 1);
    }
}
