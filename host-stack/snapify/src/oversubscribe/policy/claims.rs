//! Claims, in their order: who gets room, and who has to make it.

use std::{collections::BTreeSet, time::Duration};

use snaprig_wire::scif::NodeId;

use super::{
    FAILURES_MAX, Output, Policy, RequestId, Who,
    process::{Place, Process},
};

/// Who claims room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Claim {
    Request(RequestId),
    Process(Who),
}

/// A resident process that could make room for a claim.
struct Victim {
    who: Who,
    bytes: u64,
    /// From when on it may leave for it.
    from: Duration,
    /// Those come first that nobody wants, then those that were served most.
    order: (bool, Duration),
}

/// What a card can do for a claim.
enum Prospect {
    /// There is room.
    Fits,
    /// There will be then, if these leave.
    From(Duration, Vec<Victim>),
    /// Something is on its way that may make room.
    Busy,
    /// There will never be.
    Never,
}

impl Policy {
    /// Does what can be done now, and sees when there will be more to do.
    pub(super) fn decide(&mut self) {
        self.wake = None;
        self.refuse_the_impossible();
        self.evacuate();
        let mut held = BTreeSet::new();
        for claim in self.claims() {
            match claim {
                Claim::Request(id) => self.serve_request(id, &mut held),
                Claim::Process(who) => self.serve_process(who, &mut held),
            }
        }
    }

    /// The room that a process has been granted on its way in is there.
    pub(super) fn grant_what_came_along(&mut self, who: Who) {
        let Some(Place::In(node)) = self.processes.get(&who).map(|one| one.place) else {
            return;
        };
        let asked: Vec<_> = self.asked_by(who).collect();
        for id in asked {
            let fits = self
                .requests
                .get(&id)
                .is_some_and(|request| request.bytes <= self.room(node));
            if fits {
                self.grant(id);
            }
        }
    }

    /// All claims, the first first.
    fn claims(&self) -> Vec<Claim> {
        let mut claims: Vec<(Duration, Duration, Claim)> = Vec::new();
        for (id, request) in &self.requests {
            let asks = match request.who.and_then(|who| self.processes.get(&who)) {
                Some(process) => matches!(process.place, Place::In(_)),
                None => true,
            };
            if asks && !request.is_granted {
                claims.push((request.turn, request.since, Claim::Request(*id)));
            }
        }
        for (who, process) in &self.processes {
            let is_wanted = process.is_wanted || self.asked_by(*who).next().is_some();
            if process.place == Place::Out && is_wanted {
                claims.push((process.turn, process.changed, Claim::Process(*who)));
            }
        }
        claims.sort_unstable();
        claims.into_iter().map(|(.., claim)| claim).collect()
    }

    /// Requests of a process that are not granted.
    fn asked_by(&self, who: Who) -> impl Iterator<Item = RequestId> {
        let own = self.requests.iter();
        own.filter(move |(_, request)| request.who == Some(who) && !request.is_granted)
            .map(|(id, _)| *id)
    }

    /// What a process needs that is out: its memory, and the room that it asks for.
    fn needs(&self, who: Who) -> u64 {
        let own = self.processes.get(&who).map_or(0, |process| process.bytes);
        let asked = self.asked_by(who).filter_map(|id| self.requests.get(&id));
        asked.fold(own, |sum, request| sum.saturating_add(request.bytes))
    }

    /// Free memory of a card that nobody was promised.
    fn room(&self, node: NodeId) -> u64 {
        let free = self.cards.get(&node).map_or(0, |card| card.free_bytes);
        let coming = self.processes.values().map(|process| match process.place {
            Place::Coming(to, bytes) if to == node => bytes,
            _ => 0,
        });
        let granted = self.requests.values().map(|request| {
            let is_here = request.is_granted && request.node == node;
            if is_here { request.bytes } else { 0 }
        });
        coming.chain(granted).fold(free, u64::saturating_sub)
    }

    /// Whether a process is on its way from this card, or to it.
    fn is_busy(&self, node: NodeId) -> bool {
        let mut places = self.processes.values().map(|process| process.place);
        places.any(|place| match place {
            Place::Leaving(from) => from == node,
            Place::Coming(to, _) => to == node,
            Place::In(_) | Place::Out => false,
        })
    }

    /// Whether somebody has room there that was granted, and may not need all of it.
    fn has_grants(&self, node: NodeId) -> bool {
        let mut requests = self.requests.values();
        requests.any(|request| request.is_granted && request.node == node)
    }

    /// Those who can make room on a card for a claim with this turn.
    fn victims(&self, node: NodeId, turn: Duration, claimant: Option<Who>) -> Vec<Victim> {
        let uses_grant = |who: &Who| {
            let mut requests = self.requests.values();
            requests.any(|request| request.is_granted && request.who == Some(*who))
        };
        let can_leave = |(who, process): &(&Who, &Process)| {
            process.place == Place::In(node)
                && claimant != Some(**who)
                && !process.is_stuck(self.now)
                && !uses_grant(who)
        };
        let victim = |(who, process): (&Who, &Process)| {
            let from = process.leaves_from(self.settings);
            let (from, order) = match process.is_wanted {
                true => {
                    // It is served on until it has had as much.
                    let even = self.now + turn.saturating_sub(process.turn);
                    let most_first = Duration::MAX.saturating_sub(process.turn);
                    (from.max(even), (true, most_first))
                }
                false => (from, (false, process.changed)),
            };
            let (who, bytes) = (*who, process.bytes);
            Victim {
                who,
                bytes,
                from,
                order,
            }
        };
        let all = self.processes.iter().filter(can_leave);
        all.map(victim).collect()
    }

    /// What a card can do for a claim.
    fn prospect(
        &self,
        node: NodeId,
        bytes: u64,
        turn: Duration,
        claimant: Option<Who>,
    ) -> Prospect {
        let room = self.room(node);
        if room >= bytes {
            return Prospect::Fits;
        }
        if self.is_busy(node) {
            return Prospect::Busy;
        }
        let mut victims = self.victims(node, turn, claimant);
        if victims.is_empty() {
            return match self.has_grants(node) {
                true => Prospect::Busy,
                false => Prospect::Never,
            };
        }
        victims.sort_unstable_by_key(|victim| (victim.from, victim.order));
        // If all together seem to be too little, they may be more than is known of them.
        let mut sum = room;
        let enough = victims.iter().position(|victim| {
            sum = sum.saturating_add(victim.bytes);
            sum >= bytes
        });
        victims.truncate(enough.map_or(victims.len(), |last| last + 1));
        let from = victims.last().map_or(self.now, |last| last.from);
        Prospect::From(from, victims)
    }

    /// Notes whether nobody is known who could make room for a request; when it is refused if that stays so.
    fn hopeless(&mut self, id: RequestId, is: bool) -> Duration {
        let Some(request) = self.requests.get_mut(&id) else {
            return self.now;
        };
        let since = request.hopeless.filter(|_| is).unwrap_or(self.now);
        request.hopeless = is.then_some(since);
        since.saturating_add(self.settings.patience)
    }

    /// Grants a request, makes room for it, waits for room, or refuses it.
    fn serve_request(&mut self, id: RequestId, held: &mut BTreeSet<NodeId>) {
        let Some(request) = self.requests.get(&id) else {
            return;
        };
        let (who, bytes, turn) = (request.who, request.bytes, request.turn);
        let node = match who.and_then(|who| self.processes.get(&who)) {
            Some(Process {
                place: Place::In(node),
                ..
            }) => *node,
            _ => request.node,
        };
        // From one that is about to fail it leaves first.
        if held.contains(&node) || !self.takes_more(node) {
            return;
        }
        let prospect = self.prospect(node, bytes, turn, who);
        // Who could leave may be about to be known.
        let is_hopeless = matches!(prospect, Prospect::Never) && !self.has_unknown;
        let refused_from = self.hopeless(id, is_hopeless);
        match prospect {
            Prospect::Fits => self.grant(id),
            Prospect::Never if !is_hopeless => drop(held.insert(node)),
            Prospect::Never if refused_from <= self.now => self.refuse(id),
            Prospect::Never => self.wake_at(refused_from),
            Prospect::Busy => drop(held.insert(node)),
            Prospect::From(from, victims) => {
                held.insert(node);
                self.make_room(node, bytes, from, victims);
            }
        }
    }

    /// Has a process come in where that is possible first.
    fn serve_process(&mut self, who: Who, held: &mut BTreeSet<NodeId>) {
        let Some(process) = self.processes.get(&who) else {
            return;
        };
        if process.not_before > self.now {
            return self.wake_at(process.not_before);
        }
        let (turn, avoids) = (process.turn, process.avoids);
        let bytes = self.needs(who);
        let all = self.cards.iter();
        let large: Vec<_> = all
            .filter(|(_, card)| !card.is_failing && bytes <= card.memory_bytes)
            .map(|(node, _)| *node)
            .collect();
        let is_choice = large.iter().any(|node| avoids != Some(*node));
        let free = large
            .iter()
            .copied()
            .filter(|node| !(held.contains(node) || is_choice && avoids == Some(*node)));
        let mut is_held = large.iter().any(|node| held.contains(node));
        let mut prospects = Vec::new();
        for node in free {
            let prospect = self.prospect(node, bytes, turn, Some(who));
            let rank = match &prospect {
                Prospect::Fits if !self.is_busy(node) => (0, self.now),
                Prospect::From(from, _) if *from <= self.now => (1, *from),
                Prospect::Fits | Prospect::Busy => (2, self.now),
                Prospect::From(from, _) => (3, *from),
                Prospect::Never => continue,
            };
            is_held = true;
            let least_room = u64::MAX - self.room(node);
            prospects.push(((rank, least_room, node), prospect));
        }
        let best = prospects.into_iter().min_by_key(|(rank, _)| *rank);
        let Some((((rank, _), _, node), prospect)) = best else {
            if !is_held && !large.is_empty() {
                self.does_not_fit(who);
            }
            return;
        };
        match prospect {
            Prospect::Fits if rank == 0 => self.swap_in(who, node, bytes),
            Prospect::From(from, victims) => {
                held.insert(node);
                self.make_room(node, bytes, from, victims);
            }
            _ => drop(held.insert(node)),
        }
    }

    /// All have left that could, and there is no room for it: others have their turns before the next try.
    fn does_not_fit(&mut self, who: Who) {
        let settings = self.settings;
        if let Some(process) = self.processes.get_mut(&who) {
            process.wait(self.now, Duration::ZERO, settings);
            process.avoids = None;
            let not_before = process.not_before;
            self.wake_at(not_before);
        }
    }

    /// The first of those leaves whose room is needed, when all of them may.
    fn make_room(&mut self, node: NodeId, bytes: u64, from: Duration, mut victims: Vec<Victim>) {
        if from > self.now {
            return self.wake_at(from);
        }
        victims.sort_unstable_by_key(|victim| victim.order);
        let room = self.room(node);
        let mut sum = victims
            .iter()
            .fold(room, |sum, victim| sum.saturating_add(victim.bytes));
        // What the others free may be enough.
        let needed = victims.iter().find(|victim| {
            let others = sum.saturating_sub(victim.bytes);
            let can_stay = others >= bytes;
            if can_stay {
                sum = others;
            }
            !can_stay
        });
        if let Some(victim) = needed {
            self.swap_out(victim.who, node);
        }
    }

    fn swap_out(&mut self, who: Who, node: NodeId) {
        if let Some(process) = self.processes.get_mut(&who) {
            process.begin(Place::Leaving(node), self.now, self.settings.worth);
            self.outputs.push_back(Output::SwapOut(who));
        }
    }

    fn swap_in(&mut self, who: Who, node: NodeId, bytes: u64) {
        if let Some(process) = self.processes.get_mut(&who) {
            process.begin(Place::Coming(node, bytes), self.now, self.settings.worth);
            self.outputs.push_back(Output::SwapIn(who, node));
        }
    }

    fn grant(&mut self, id: RequestId) {
        let Some(request) = self.requests.get_mut(&id) else {
            return;
        };
        let process = request.who.and_then(|who| self.processes.get(&who));
        if let Some(Place::In(node)) = process.map(|process| process.place) {
            request.node = node;
        }
        request.is_granted = true;
        self.outputs.push_back(Output::Grant(id));
    }

    fn refuse(&mut self, id: RequestId) {
        self.requests.remove(&id);
        self.outputs.push_back(Output::Refuse(id));
    }

    fn wake_at(&mut self, at: Duration) {
        self.wake = Some(self.wake.map_or(at, |wake| wake.min(at)));
    }

    fn takes_more(&self, node: NodeId) -> bool {
        self.cards.get(&node).is_some_and(|card| !card.is_failing)
    }

    /// Requests that no swap can help; and, with patience, those of processes that do not come in.
    fn refuse_the_impossible(&mut self) {
        let (now, mut due) = (self.now, Vec::new());
        for (id, is_stuck) in self.asked_from_outside() {
            let refused_from = self.hopeless(id, is_stuck);
            match is_stuck {
                true if refused_from <= now => due.push(id),
                true => self.wake_at(refused_from),
                false => {}
            }
        }
        due.into_iter().for_each(|id| self.refuse(id));
        let waiting = self
            .requests
            .iter()
            .filter(|(_, request)| !request.is_granted);
        let impossible: Vec<_> = waiting
            .filter(|(_, request)| {
                let process = request.who.and_then(|who| self.processes.get(&who));
                let Some((who, process)) = request.who.zip(process) else {
                    let card = self.cards.get(&request.node);
                    return card
                        .is_none_or(|card| card.is_failing || request.bytes > card.memory_bytes);
                };
                let largest = match process.place {
                    Place::In(node) if self.takes_more(node) => {
                        self.cards.get(&node).map(|card| card.memory_bytes)
                    }
                    _ => self.largest(),
                };
                self.needs(who) > largest.unwrap_or(0)
            })
            .map(|(id, _)| *id)
            .collect();
        impossible.into_iter().for_each(|id| self.refuse(id));
    }

    /// Requests of processes that are out, and whether those have failed to come in so often that nobody counts on it.
    fn asked_from_outside(&self) -> Vec<(RequestId, bool)> {
        let waiting = self.requests.iter().filter(|(_, it)| !it.is_granted);
        let outside = waiting.filter_map(|(id, request)| {
            let process = self.processes.get(&request.who?)?;
            let is_out = process.place == Place::Out;
            is_out.then_some((*id, process.failures >= FAILURES_MAX))
        });
        outside.collect()
    }

    /// The memory of the largest card that takes more.
    fn largest(&self) -> Option<u64> {
        let cards = self.cards.values().filter(|card| !card.is_failing);
        cards.map(|card| card.memory_bytes).max()
    }

    /// Whatever is on a card that is about to fail leaves, all of it at once.
    fn evacuate(&mut self) {
        let now = self.now;
        let is_failing = |node| self.cards.get(&node).is_some_and(|card| card.is_failing);
        let on_them = self.processes.iter().filter_map(|(who, process)| {
            let Place::In(node) = process.place else {
                return None;
            };
            is_failing(node).then_some((*who, node, process.not_before))
        });
        let on_them: Vec<_> = on_them.collect();
        for (who, node, not_before) in on_them {
            match not_before > now {
                true => self.wake_at(not_before),
                false => self.swap_out(who, node),
            }
        }
    }
}
