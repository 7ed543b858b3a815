//! What a process has, and where its completions belong.

use std::collections::{BTreeMap, VecDeque};

use crate::{
    Canary, Name, Names,
    behind::Behind,
    completions::{Completions, SUCCESS},
    cookie::{Cookie, Queue},
    names::Aliases,
    queue_pair::QueuePair,
    receives::Receives,
};

/// Most names of queue pairs that are gone: those that peers have not noticed yet are the last ones.
const GONE_MAX: usize = 4096;

/// What the logs must know of a completion from below.
#[derive(Clone, Copy, Debug)]
pub struct Came {
    /// Its request.
    pub cookie: Cookie,
    /// How that ended.
    pub status: u32,
    /// The place of its queue pair; none of a message that came to a shared receive queue of XRC.
    pub qp: Option<u32>,
    /// Who sent a datagram, if it is one that came; the queue pair by which a message came to a shared receive queue of XRC.
    pub from: Option<Name>,
}

/// Whose a completion is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// The program's, which calls its request so.
    Program(u64),
    /// It is of a receive that was lent: a message is in it, or it is gone if it was flushed.
    Lent,
    /// Nobody's: a mark is done, or its request is no more.
    Nobody,
}

/// What a process has, by place. A place is free once its thing is destroyed.
#[derive(Clone, Debug)]
pub struct Process<S, R> {
    /// Queue pairs.
    pub qps: Vec<Option<QueuePair<S, R>>>,
    /// Shared receive queues.
    pub shared: Vec<Option<Receives<R>>>,
    /// Those of them that are of XRC, by place.
    pub behind: BTreeMap<u32, Behind>,
    /// Completion queues.
    pub cqs: Vec<Option<Completions>>,
    /// Names of queue pairs that were destroyed, the last of them last: at their other ends there may still be one.
    pub gone: VecDeque<Name>,
    /// In simulations, a bug on purpose.
    pub canary: Option<Canary>,
}

impl<S, R> Default for Process<S, R> {
    fn default() -> Self {
        Self {
            qps: Vec::new(),
            shared: Vec::new(),
            behind: BTreeMap::new(),
            cqs: Vec::new(),
            gone: VecDeque::new(),
            canary: None,
        }
    }
}

/// Puts a new thing into a table; its place.
pub fn put<T>(table: &mut Vec<Option<T>>, thing: T) -> u32 {
    let free = table.iter().position(Option::is_none);
    let place = free.unwrap_or_else(|| {
        table.push(None);
        table.len() - 1
    });
    table[place] = Some(thing);
    place as u32
}

impl<S, R> Process<S, R> {
    /// The queue pair at a place.
    #[inline]
    pub fn qp(&mut self, place: u32) -> Option<&mut QueuePair<S, R>> {
        self.qps.get_mut(place as usize)?.as_mut()
    }

    /// Queue pairs with their places.
    pub fn each_qp(&self) -> impl Iterator<Item = (u32, &QueuePair<S, R>)> {
        let placed = (0..).zip(&self.qps);
        placed.filter_map(|(place, qp)| Some((place, qp.as_ref()?)))
    }

    /// Others are called as all call them.
    pub fn rename(&mut self, aliases: &Aliases) {
        for qp in self.qps.iter_mut().flatten() {
            qp.rename(aliases);
        }
    }

    /// A queue pair is destroyed.
    pub fn destroyed(&mut self, place: u32) {
        let slot = self.qps.get_mut(place as usize);
        if let Some(qp) = slot.and_then(Option::take) {
            if self.gone.len() == GONE_MAX {
                self.gone.pop_front();
            }
            self.gone.push_back(qp.name);
        }
    }

    /// What is connected to a queue pair that nobody has made again has failed: its number may be another one's now.
    pub fn fail_alone(&mut self, names: &Names) {
        for qp in self.qps.iter_mut().flatten() {
            if qp.peer.is_some_and(|peer| !names.has(peer)) {
                qp.fail(None);
            }
        }
    }

    /// The log of a receive queue.
    #[inline]
    pub fn receives(&mut self, queue: Queue) -> Option<&mut Receives<R>> {
        match queue {
            Queue::Sends(_) => None,
            Queue::Receives(place) => Some(&mut self.qp(place)?.receives),
            Queue::Shared(place) => self.shared.get_mut(place as usize)?.as_mut(),
        }
    }

    /// The completion queue at a place.
    #[inline]
    pub fn cq(&mut self, place: u32) -> Option<&mut Completions> {
        self.cqs.get_mut(place as usize)?.as_mut()
    }

    /// A queue pair that receives for XRC is reset or gone: another one's messages are counted from none.
    pub fn forget_taken_by(&mut self, by: Name) {
        for behind in self.behind.values_mut() {
            behind.taken.remove(by);
        }
    }

    /// A completion has come: the log has it, and whose it is.
    #[inline]
    pub fn completed(&mut self, came: Came) -> Whose {
        let number = came.cookie.number;
        let wr_id = match came.cookie.queue {
            Queue::Sends(place) => {
                let tells = self.canary == Some(Canary::RoomTold);
                self.qp(place).and_then(|pair| {
                    let has_failed = came.status != SUCCESS;
                    if has_failed {
                        pair.fail(Some(number));
                    }
                    pair.sends.completed(number, has_failed || tells)
                })
            }
            Queue::Receives(place) => {
                let Some(pair) = self.qp(place) else {
                    return Whose::Nobody;
                };
                pair.took(&came);
                if came.cookie.own {
                    return pair.receives.lent_completed(came.status);
                }
                pair.receives.completed(number)
            }
            Queue::Shared(place) => {
                self.took_of_shared(place, &came);
                let Some(Some(receives)) = self.shared.get_mut(place as usize) else {
                    return Whose::Nobody;
                };
                if came.cookie.own {
                    return receives.lent_completed(came.status);
                }
                receives.completed(number)
            }
        };
        wr_id.map_or(Whose::Nobody, Whose::Program)
    }

    /// A completion has come of a receive of a shared queue: whose message it was is counted.
    #[inline]
    fn took_of_shared(&mut self, place: u32, came: &Came) {
        if let Some(behind) = self.behind.get_mut(&place) {
            if let (SUCCESS, Some(by)) = (came.status, came.from) {
                behind.taken.add(by, 1);
            }
        } else if let Some(pair) = came.qp.and_then(|qp| self.qp(qp)) {
            pair.took(came);
        }
    }
}
