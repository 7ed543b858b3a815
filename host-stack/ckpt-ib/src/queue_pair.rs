//! A queue pair: its two logs, and how many messages it has sent to whom, and had from whom.

use crate::{
    Name,
    completions::SUCCESS,
    cookie::Queue,
    counts::Counts,
    names::{Aliases, Receiver},
    process::Came,
    receives::Receives,
    sends::Sends,
};

/// What a queue pair promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Messages arrive, once, in order; or the queue pair fails.
    Reliable,
    /// They may be lost.
    Unreliable,
    /// The same, and each goes where its request says.
    Datagram,
}

/// How far a queue pair is (ibv_modify_qp(3)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stage {
    /// Reset, or initialised: nothing comes or goes.
    #[default]
    Closed,
    /// Ready to receive.
    Receives,
    /// Ready to send, too.
    Sends,
    /// The program has its send queue drained: it is ready to send, and what is posted is held ([`crate::sends`]).
    Holds,
    /// Failed.
    Failed,
}

/// A queue pair, with virtual names.
#[derive(Clone, Debug)]
pub struct QueuePair<S, R> {
    /// What the job calls it.
    pub name: Name,
    /// What it promises.
    pub service: Service,
    /// The place of its shared receive queue.
    pub shared: Option<u32>,
    /// The other end of a connection.
    pub peer: Option<Name>,
    /// An earlier checkpoint had the other end: it is of this job.
    pub has_met: bool,
    /// How far it is.
    pub stage: Stage,
    /// Its send queue.
    pub sends: Sends<S>,
    /// Its receive queue, unless that is shared.
    pub receives: Receives<R>,
    /// Once it has failed: its first request that may not have been carried out.
    pub failed_at: Option<u64>,
    /// Messages ever sent since it was reset, by receiver; once it has failed, those that have come for certain. Datagrams are
    /// sent, whether it fails or not.
    pub sent: Counts<Receiver>,
    /// Messages that ever came since then, by sender.
    pub taken: Counts<Name>,
    /// Messages that were waited for in vain in earlier checkpoints, by sender.
    pub lost: Counts<Name>,
}

impl<S, R> QueuePair<S, R> {
    /// One that was just made.
    pub fn new(name: Name, service: Service, shared: Option<u32>) -> Self {
        Self {
            name,
            service,
            shared,
            peer: None,
            has_met: false,
            stage: Stage::Closed,
            failed_at: None,
            sends: Sends::default(),
            receives: Receives::default(),
            sent: Counts::default(),
            taken: Counts::default(),
            lost: Counts::default(),
        }
    }

    /// It is reset: nothing of what was is left.
    pub fn reset(&mut self) {
        self.stage = Stage::Closed;
        self.failed_at = None;
        self.peer = None;
        self.has_met = false;
        self.sends.clear();
        self.receives.clear();
        self.sent.clear();
        self.taken.clear();
        self.lost.clear();
    }

    /// Where receives for its messages are posted; `place` is its own.
    pub fn receive_queue(&self, place: u32) -> Queue {
        self.shared.map_or(Queue::Receives(place), Queue::Shared)
    }

    /// Whether messages can come.
    pub fn receives_messages(&self) -> bool {
        self.stage == Stage::Receives || self.sends_messages()
    }

    /// Whether messages can go, of those that are below.
    pub fn sends_messages(&self) -> bool {
        matches!(self.stage, Stage::Sends | Stage::Holds)
    }

    /// It has failed, at this request of its send queue, or for another reason.
    pub fn fail(&mut self, at: Option<u64>) {
        if self.stage == Stage::Failed {
            return;
        }
        self.stage = Stage::Failed;
        self.failed_at = Some(at.unwrap_or(self.sends.done()));
        let Some(peer) = self.peer else {
            return;
        };
        let outstanding = self.sends.outstanding();
        let undone = outstanding.filter(|(number, _)| at.is_none_or(|at| *number >= at));
        for (_, posted) in undone {
            if let Some(receiver) = posted.kind.receiver(peer) {
                self.sent.take_one(receiver);
            }
        }
    }

    /// A message is posted. Of one that has failed, none comes.
    #[inline]
    pub fn count_sent(&mut self, to: impl Into<Receiver>) {
        if self.stage != Stage::Failed {
            self.sent.add(to.into(), 1);
        }
    }

    /// It was not taken below after all.
    pub fn uncount_sent(&mut self, to: impl Into<Receiver>) {
        if self.stage != Stage::Failed {
            self.sent.take_one(to.into());
        }
    }

    /// There is another queue below, which takes so many requests at once, or as many as the program's. Those that it has no room
    /// for wait; nobody has carried them out.
    pub fn limit_sends(&mut self, room: Option<usize>) {
        let over = self.sends.limit(room);
        let Some(peer) = self.peer else { return };
        let withdrawn = self.sends.held().take(over);
        let receivers: Vec<_> = withdrawn
            .filter_map(|posted| posted.kind.receiver(peer))
            .collect();
        for receiver in receivers {
            self.uncount_sent(receiver);
        }
    }

    /// A receive has completed: with a message, or because the queue pair has failed.
    #[inline]
    pub(crate) fn took(&mut self, came: &Came) {
        if came.status != SUCCESS {
            return self.fail(None);
        }
        let from = match self.service {
            Service::Datagram => came.from,
            Service::Reliable | Service::Unreliable => self.peer,
        };
        if let Some(from) = from {
            self.taken.add(from, 1);
        }
    }

    /// Others are called as all call them.
    pub fn rename(&mut self, aliases: &Aliases) {
        self.peer = self.peer.map(|peer| aliases.canonical(peer));
        self.sent.rename(|to| Receiver {
            qp: aliases.canonical(to.qp),
            ..to
        });
        self.taken.rename(|from| aliases.canonical(from));
        self.lost.rename(|from| aliases.canonical(from));
    }

    /// How many messages from there are accounted for: they came, or nobody waits for them any more.
    pub fn accounted(&self, from: Name) -> u64 {
        self.taken.of(from) + self.lost.of(from)
    }
}
