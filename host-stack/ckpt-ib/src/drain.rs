//! From quiesce to save (principles 3 and 5): until nothing is under way, and everybody knows it.
//!
//! ```text
//!   sender                       board                      receiver
//!   has quiesced:  "7 messages to you, the longest of those    has had 4, and 2 receives are below:
//!                   without a completion of 64 KiB"  ------->  when those are taken, lends 1 of 64 KiB
//!   its last requests asked for no completion:                 puts completions by until 7 have come
//!   posts a mark behind them
//!   puts completions by until the mark's
//!        '------------------- phase ends for all -----------------'
//!   forgets the messages that only their receiver told of
//!
//!   until all have quiesced, receives are lent to what would be lost without one
//!
//!   states:  working --all have come, all marks too--> drained
//!               '------ patience is over, or a peer is not of this job --> refused, with its name
//! ```
//!
//! What must stay true: at the end nothing can be posted again that was carried out at the peer. Where a queue pair has
//! failed at either end, that is for the program to sort out, as ever: its requests have failed.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{
    Below, Canary, Name, Process,
    behind::Behind,
    cookie::{Cookie, Queue},
    names::{Aliases, Receiver},
    queue_pair::{QueuePair, Service, Stage},
    receives::Receives,
    sends::{Kind, Posted},
    serve::settle,
};

/// What a process that has quiesced says of a queue pair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Said {
    /// Which one.
    pub name: Name,
    /// Messages can come to it.
    pub receives: bool,
    /// It sends, or has sent, to these.
    pub to: Vec<Outgoing>,
}

/// Messages of one queue pair to one receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outgoing {
    /// The receiver.
    pub to: Receiver,
    /// How many were ever posted since the connection was made.
    pub messages: u64,
    /// The longest of those that are not known to have come, in bytes.
    pub longest: u64,
}

/// Why a process cannot be drained.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    /// A connection leaves the job.
    #[error(
        "{0} is connected to {1}, which is no process's of this job, nor was at an earlier checkpoint: launch the other end with --verbs in the same job, or have {0} closed if that has ended"
    )]
    Stranger(Name, Name),
    /// Messages do not come.
    #[error("{0} has had {1} of {2} messages from {3}, and no more come")]
    Missing(Name, u64, u64, Name),
    /// Requests do not complete.
    #[error("{0} has {1} requests to {2} that do not complete")]
    Stuck(Name, u64, Name),
    /// The libibverbs below does not do what it must.
    #[error("{0}: {1}")]
    Below(Name, String),
}

/// A queue pair has failed while others drain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failed {
    /// Which one.
    pub name: Name,
    /// How many of its messages have come for certain, by receiver.
    pub delivered: Vec<(Receiver, u64)>,
}

/// Messages to a receiver of this process, of one queue pair.
#[derive(Clone, Debug)]
struct Incoming {
    from: Name,
    outgoing: Outgoing,
}

impl Incoming {
    /// What is searched for.
    fn key(&self) -> (Receiver, Name) {
        (self.outgoing.to, self.from)
    }

    fn add(&mut self, more: &Outgoing) {
        let Outgoing {
            messages, longest, ..
        } = &mut self.outgoing;
        *messages = messages.saturating_add(more.messages);
        *longest = more.longest.max(*longest);
    }
}

/// A drain.
#[derive(Clone, Debug)]
pub struct Drain {
    /// What was sent to receivers of this process, in their order.
    incoming: Vec<Incoming>,
    /// Queue pairs at the other ends of this process's that messages can come to, in order.
    receiving: Vec<Name>,
    marked: BTreeSet<u32>,
    looked: bool,
    /// How senders of datagrams may be called otherwise.
    aliases: Aliases,
}

/// What a process says once its program cannot post any more.
pub fn said<S, R>(process: &Process<S, R>) -> Vec<Said> {
    let all = process.each_qp().map(|(_, qp)| {
        let longest = qp.sends.outstanding().map(|(_, posted)| posted.length);
        let longest = longest.max().unwrap_or(0);
        let to = qp.sent.iter().map(|(to, messages)| Outgoing {
            to,
            messages,
            longest,
        });
        Said {
            name: qp.name,
            receives: qp.receives_messages(),
            to: to.collect(),
        }
    });
    all.collect()
}

/// What it says of queue pairs that it has destroyed: who is connected to them talks to no stranger.
pub fn said_of_gone<S, R>(process: &Process<S, R>) -> Vec<Said> {
    let all = process.gone.iter().map(|name| Said {
        name: *name,
        receives: false,
        to: Vec::new(),
    });
    all.collect()
}

/// Puts by what has completed. Queue pairs that have failed are new in `failed`.
pub fn look<S, R>(
    process: &mut Process<S, R>,
    below: &mut impl Below<S, R>,
    failed: &mut Vec<Failed>,
) {
    for cq in 0..process.cqs.len() as u32 {
        if process.cq(cq).is_none() {
            continue;
        }
        while let Some((came, completion)) = below.poll(cq) {
            let place = came.qp;
            let stage = |process: &mut Process<S, R>| Some(process.qp(place?)?.stage);
            let before = stage(process);
            settle(process, below, cq, (came, completion));
            let Some(qp) = place.and_then(|place| process.qp(place)) else {
                continue;
            };
            if before != Some(Stage::Failed) && qp.stage == Stage::Failed {
                failed.push(Failed {
                    name: qp.name,
                    delivered: qp.sent.iter().collect(),
                });
            }
        }
    }
}

/// Where messages can come that are lost without a receive, sees to it that there are `count`: who sends them may not have
/// quiesced yet, and the program does not post any more. `longest` is how long one may be. Whether there is any such queue pair.
pub fn lend_ahead<S, R>(
    process: &mut Process<S, R>,
    below: &mut impl Below<S, R>,
    count: u64,
    longest: impl Fn(u32) -> u64,
) -> Result<bool, Refusal> {
    let all = process
        .each_qp()
        .filter(|(_, qp)| qp.service != Service::Reliable && qp.receives_messages());
    let all = all.map(|(place, qp)| (place, qp.name, qp.receive_queue(place)));
    let all: Vec<_> = all.collect();
    for (place, name, queue) in all.iter().copied() {
        let Some(receives) = process.receives(queue) else {
            continue;
        };
        let missing = count.saturating_sub(receives.below());
        lend_some(receives, below, (queue, longest(place)), missing)
            .map_err(|why| Refusal::Below(name, why))?;
    }
    Ok(!all.is_empty())
}

/// Lends so many receives of so many bytes, or as many as there is room for: the rest, when those are taken.
fn lend_some<S, R>(
    receives: &mut Receives<R>,
    below: &mut impl Below<S, R>,
    (queue, bytes): (Queue, u64),
    count: u64,
) -> Result<(), String> {
    for _ in 0..count {
        let cookie = Cookie {
            queue,
            own: true,
            number: receives.lend(),
        };
        let lent = below.lend(queue, bytes, cookie);
        if lent != Ok(true) {
            receives.unlend();
        }
        if !lent? {
            break;
        }
    }
    Ok(())
}

/// In order, to be searched.
fn sorted(names: impl Iterator<Item = Name>) -> Vec<Name> {
    let mut all: Vec<_> = names.collect();
    all.sort_unstable();
    all
}

impl Drain {
    /// Begins, when all have quiesced: `all` is what all processes have said. Others are called as all call them
    /// ([`Process::rename`]).
    pub fn new<S, R>(
        process: &Process<S, R>,
        all: &[Said],
        aliases: Aliases,
    ) -> Result<Self, Refusal> {
        // Of most of what others say nothing is about this process: that is to be passed over quickly.
        let own = sorted(process.each_qp().map(|(_, qp)| qp.name));
        let near = sorted(process.each_qp().map(|(_, qp)| qp.peer.unwrap_or(qp.name)));
        let behind = sorted(process.behind.values().map(|behind| behind.name));
        let is_mine = |to: &Receiver| match to.shared_name() {
            None => own.binary_search(&to.qp).is_ok(),
            Some(name) => behind.binary_search(&name).is_ok(),
        };
        let mut incoming = Vec::new();
        let (mut known, mut receiving) = (Vec::new(), Vec::new());
        for said in all {
            if near.binary_search(&said.name).is_ok() {
                known.push(said.name);
                if said.receives {
                    receiving.push(said.name);
                }
            }
            let to_me = said.to.iter().filter(|outgoing| is_mine(&outgoing.to));
            incoming.extend(to_me.map(|outgoing| Incoming {
                from: said.name,
                outgoing: *outgoing,
            }));
        }
        incoming.sort_unstable_by_key(Incoming::key);
        // Its sender may have called it by several names of its port.
        incoming.dedup_by(|again, one| {
            let is_same = again.key() == one.key();
            if is_same {
                one.add(&again.outgoing);
            }
            is_same
        });
        let known = sorted(known.into_iter());
        for (_, qp) in process.each_qp() {
            // One that is of this job and is not there has ended: nothing comes of it.
            if let (Some(peer), true) = (qp.peer, qp.receives_messages())
                && !qp.has_met
                && known.binary_search(&peer).is_err()
            {
                return Err(Refusal::Stranger(qp.name, peer));
            }
        }
        Ok(Self {
            incoming,
            receiving: sorted(receiving.into_iter()),
            marked: BTreeSet::new(),
            looked: false,
            aliases,
        })
    }

    /// A queue pair has failed meanwhile, at its own process or another: nobody waits for more of it.
    pub fn failed(&mut self, failed: &Failed) {
        self.receiving.retain(|name| *name != failed.name);
        for (to, delivered) in &failed.delivered {
            let key = (*to, failed.name);
            if let Ok(at) = self.incoming.binary_search_by_key(&key, Incoming::key) {
                let messages = &mut self.incoming[at].outgoing.messages;
                *messages = (*messages).min(*delivered);
            }
        }
    }

    /// Whether messages can come to a queue pair at the other end of one of this process's.
    fn hears(&self, peer: Name) -> bool {
        self.receiving.binary_search(&peer).is_ok()
    }

    /// Lends receives to messages that would wait for ever: where all of the program's are taken, and messages are still to
    /// come. So none of them is left over, unless its message fails.
    fn lend<S, R>(
        &self,
        process: &mut Process<S, R>,
        below: &mut impl Below<S, R>,
    ) -> Result<(), Refusal> {
        // Of each receive queue: messages that are to come, the longest, and one whose it is.
        let mut due: BTreeMap<Queue, (u64, u64, Name)> = BTreeMap::new();
        for (place, qp) in process.each_qp() {
            // What is unreliable waits for no receive.
            if qp.service != Service::Reliable || !qp.receives_messages() {
                continue;
            }
            let queue = qp.receive_queue(place);
            let (mut messages, mut longest) = (0, 0);
            for (from, outgoing) in self.to(qp.name) {
                messages += outgoing.messages.saturating_sub(qp.accounted(from));
                longest = longest.max(outgoing.longest);
            }
            if messages == 0 {
                continue;
            }
            let sum = due.entry(queue).or_insert((0, 0, qp.name));
            *sum = (sum.0 + messages, sum.1.max(longest), sum.2);
        }
        for (place, behind) in &process.behind {
            let (mut messages, mut longest) = (0, 0);
            for (_, outgoing) in self.behind(behind) {
                let taken = behind.taken_by(outgoing.to.qp);
                messages += outgoing.messages.saturating_sub(taken);
                longest = longest.max(outgoing.longest);
            }
            due.insert(Queue::Shared(*place), (messages, longest, behind.name));
        }
        for (queue, (messages, longest, name)) in due {
            let Some(receives) = process.receives(queue) else {
                continue;
            };
            if receives.below() > 0 {
                continue;
            }
            lend_some(receives, below, (queue, longest), messages)
                .map_err(|why| Refusal::Below(name, why))?;
        }
        Ok(())
    }

    /// What was sent to a queue pair, by sender.
    fn to(&self, name: Name) -> impl Iterator<Item = (Name, &Outgoing)> {
        let to = Receiver::from(name);
        let first = self.incoming.partition_point(|one| one.outgoing.to < to);
        let all = self.incoming[first..].iter();
        let all = all.take_while(move |one| one.outgoing.to == to);
        all.map(|one| (one.from, &one.outgoing))
    }

    /// What was sent to a shared receive queue of XRC, by sender.
    fn behind(&self, behind: &Behind) -> impl Iterator<Item = (Name, &Outgoing)> {
        let is_its = |one: &&Incoming| one.outgoing.to.shared_name() == Some(behind.name);
        let all = self.incoming.iter().filter(is_its);
        all.map(|one| (one.from, &one.outgoing))
    }

    /// Looks once more; whether all has come. Those that failed are new in `failed`: the others are to be told.
    pub fn step<S, R>(
        &mut self,
        process: &mut Process<S, R>,
        below: &mut impl Below<S, R>,
        failed: &mut Vec<Failed>,
    ) -> Result<bool, Refusal> {
        self.look(process, below, failed);
        if process.canary == Some(Canary::DrainsOnce) {
            self.looked = true;
        }
        self.lend(process, below)?;
        self.mark(process, below)?;
        Ok(self.looked || self.missing(process).is_none())
    }

    /// Puts by what has completed.
    pub fn look<S, R>(
        &mut self,
        process: &mut Process<S, R>,
        below: &mut impl Below<S, R>,
        failed: &mut Vec<Failed>,
    ) {
        let known = failed.len();
        look(process, below, failed);
        for qp in process.qps.iter_mut().flatten() {
            if qp.service == Service::Datagram {
                qp.rename(&self.aliases);
            }
        }
        for new in &failed[known..] {
            self.failed(new);
        }
    }

    fn mark<S, R>(
        &mut self,
        process: &mut Process<S, R>,
        below: &mut impl Below<S, R>,
    ) -> Result<(), Refusal> {
        let forgets = process.canary == Some(Canary::ForgetsUnsignaled);
        for (place, qp) in (0..).zip(&mut process.qps) {
            let Some(qp) = qp.as_mut().filter(|qp| qp.sends_messages()) else {
                continue;
            };
            if qp.stage == Stage::Holds && !qp.sends.is_settled() {
                let went_on = below.go_on(place);
                went_on.map_err(|why| Refusal::Below(qp.name, why))?;
            }
            let is_heard = qp.peer.is_some_and(|peer| self.hears(peer));
            if qp.service != Service::Reliable
                || !is_heard
                || forgets
                || qp.sends.awaits_completion()
                || self.marked.contains(&place)
            {
                continue;
            }
            let Some(like) = qp.sends.to_mark() else {
                continue;
            };
            let number = qp
                .sends
                .outstanding()
                .last()
                .map_or(0, |(last, _)| last + 1);
            let cookie = Cookie {
                queue: Queue::Sends(place),
                own: true,
                number,
            };
            let mark = below.mark(place, &like.request, cookie);
            let request = mark.map_err(|why| Refusal::Below(qp.name, why))?;
            self.marked.insert(place);
            qp.sends.post(Posted {
                wr_id: None,
                kind: Kind::Local,
                signaled: true,
                length: 0,
                request,
            });
        }
        Ok(())
    }

    /// What is still missing, if anything is.
    pub fn missing<S, R>(&self, process: &Process<S, R>) -> Option<Refusal> {
        let forgets = process.canary == Some(Canary::ForgetsUnsignaled);
        let mut pairs = process.each_qp().map(|(_, qp)| {
            self.missing_incoming(qp)
                .or_else(|| self.missing_outgoing(qp, forgets))
        });
        let mut behind = process.behind.values().map(|one| self.missing_behind(one));
        pairs
            .find_map(|missing| missing)
            .or_else(|| behind.find_map(|missing| missing))
    }

    fn missing_behind(&self, behind: &Behind) -> Option<Refusal> {
        self.behind(behind).find_map(|(from, outgoing)| {
            let by = outgoing.to.qp;
            let (had, of) = (behind.taken_by(by), outgoing.messages);
            (had < of).then_some(Refusal::Missing(by, had, of, from))
        })
    }

    fn missing_incoming<S, R>(&self, qp: &QueuePair<S, R>) -> Option<Refusal> {
        if !qp.receives_messages() {
            return None;
        }
        self.to(qp.name).find_map(|(from, outgoing)| {
            let (had, of) = (qp.accounted(from), outgoing.messages);
            (had < of).then_some(Refusal::Missing(qp.name, had, of, from))
        })
    }

    fn missing_outgoing<S, R>(&self, qp: &QueuePair<S, R>, forgets: bool) -> Option<Refusal> {
        if !qp.sends_messages() {
            return None;
        }
        let peer = qp.peer.unwrap_or(qp.name);
        let is_heard = qp.service != Service::Reliable || self.hears(peer);
        let is_stuck = qp.sends.awaits_completion()
            || qp.service == Service::Reliable && !forgets && qp.sends.to_mark().is_some();
        let count = qp.sends.outstanding().count() as u64;
        (is_heard && is_stuck).then_some(Refusal::Stuck(qp.name, count, peer))
    }

    /// What is unreliable was waited for long enough: what has not come is lost. Whether that was all.
    pub fn give_up<S, R>(&self, process: &mut Process<S, R>) -> bool {
        for qp in process.qps.iter_mut().flatten() {
            if qp.service == Service::Reliable || !qp.receives_messages() {
                continue;
            }
            for (from, outgoing) in self.to(qp.name) {
                let lost = outgoing.messages.saturating_sub(qp.accounted(from));
                qp.lost.add(from, lost);
            }
        }
        self.missing(process).is_none()
    }

    /// All have drained: what nobody else told of is done, too. What is left in the logs is to be posted again.
    pub fn finish<S, R>(&self, process: &mut Process<S, R>) {
        let forgets = process.canary == Some(Canary::ForgetsUnsignaled);
        for qp in process.qps.iter_mut().flatten() {
            let is_heard = qp.peer.is_some_and(|peer| self.hears(peer));
            let is_done = match qp.service {
                Service::Reliable => is_heard || forgets,
                Service::Unreliable | Service::Datagram => true,
            };
            if qp.sends_messages() && is_done {
                qp.sends.settle();
            }
            qp.has_met |= is_heard;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: Name = Name { port: 1, number: 5 };
    const PEER: Name = Name { port: 2, number: 7 };

    /// A process with one queue pair, which is connected.
    fn process(name: Name, peer: Name) -> Process<(), ()> {
        let mut qp = QueuePair::new(name, Service::Reliable, None);
        (qp.peer, qp.stage) = (Some(peer), Stage::Sends);
        Process {
            qps: vec![Some(qp)],
            ..Process::default()
        }
    }

    #[test]
    fn a_peer_that_nobody_knows_is_a_stranger() {
        let own = process(OWN, PEER);
        let drain = Drain::new(&own, &said(&own), Aliases::default());
        assert_eq!(drain.err(), Some(Refusal::Stranger(OWN, PEER)));
    }

    #[test]
    fn a_peer_that_was_destroyed_is_none_and_nobody_waits_for_it() {
        let (own, mut other) = (process(OWN, PEER), process(PEER, OWN));
        other.destroyed(0);
        assert!(other.qps[0].is_none());
        let told = [said(&own), said(&other), said_of_gone(&other)].concat();
        let drain = Drain::new(&own, &told, Aliases::default()).expect("it is of the job");
        assert_eq!(drain.missing(&own), None);
    }

    #[test]
    fn a_peer_of_an_earlier_checkpoint_may_have_ended() {
        let (mut own, other) = (process(OWN, PEER), process(PEER, OWN));
        let both = [said(&own), said(&other)].concat();
        Drain::new(&own, &both, Aliases::default())
            .expect("it is there")
            .finish(&mut own);
        let drain = Drain::new(&own, &said(&own), Aliases::default()).expect("it was of the job");
        assert_eq!(drain.missing(&own), None);
        own.fail_alone(&crate::Names::default());
        assert_eq!(own.qps[0].as_ref().map(|qp| qp.stage), Some(Stage::Failed));
    }

    #[test]
    fn those_that_were_destroyed_long_ago_are_forgotten() {
        let mut own = Process::<(), ()>::default();
        for number in 0..10_000 {
            let name = Name { number, ..OWN };
            own.qps = vec![Some(QueuePair::new(name, Service::Reliable, None))];
            own.destroyed(0);
        }
        let gone = said_of_gone(&own);
        assert!(gone.len() < 10_000 && gone.last().map(|last| last.name.number) == Some(9_999));
    }
}
