//! When silence and standstill are failures, for one connection at one of its ends.

use crate::{Failure, Ns, Times};

/// What of a connection happened last when.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    times: Times,
    is_opened: bool,
    heard_ns: Ns,
    said_ns: Ns,
    moved_ns: Ns,
}

impl Clock {
    /// Of a connection that begins.
    pub fn new(times: Times, now: Ns) -> Self {
        Self {
            times,
            is_opened: false,
            heard_ns: now,
            said_ns: now,
            moved_ns: now,
        }
    }

    /// Source and target have agreed on what is to come.
    pub fn opened(&mut self) {
        self.is_opened = true;
    }

    /// Something came.
    pub fn heard(&mut self, now: Ns) {
        self.heard_ns = now;
    }

    /// Something leaves.
    pub fn said(&mut self, now: Ns) {
        self.said_ns = now;
    }

    /// One of the streams is further than it was.
    pub fn moved(&mut self, now: Ns) {
        self.moved_ns = now;
    }

    /// Why the connection has failed by now, if it has.
    pub fn failure(&self, now: Ns) -> Option<Failure> {
        match () {
            () if now >= self.silent_ns() => Some(Failure::Silent),
            () if now >= self.peer_stalled_ns() => Some(Failure::PeerStalled),
            () => None,
        }
    }

    /// Whether the other side is to be told that this one is there.
    pub fn is_quiet(&self, now: Ns) -> bool {
        self.is_opened && now >= self.quiet_ns()
    }

    /// Whether who writes or reads at this side has had its time.
    pub fn is_stalled(&self, now: Ns) -> bool {
        now >= self.stalled_ns()
    }

    /// When it is time for something again.
    pub fn deadline(&self, now: Ns) -> Ns {
        let stalled_ns = match self.is_stalled(now) {
            true => self.peer_stalled_ns(),
            false => self.stalled_ns(),
        };
        let due_ns = self.silent_ns().min(stalled_ns);
        match self.is_opened {
            true => due_ns.min(self.quiet_ns()),
            false => due_ns,
        }
    }

    fn silent_ns(&self) -> Ns {
        let for_ns = match self.is_opened {
            true => self.times.silence_ns,
            false => self.times.open_ns,
        };
        self.heard_ns.saturating_add(for_ns)
    }

    fn quiet_ns(&self) -> Ns {
        self.said_ns.saturating_add(self.times.alive_ns)
    }

    fn stalled_ns(&self) -> Ns {
        self.moved_ns.saturating_add(self.times.stall_ns)
    }

    fn peer_stalled_ns(&self) -> Ns {
        self.stalled_ns().saturating_add(self.times.silence_ns)
    }
}
