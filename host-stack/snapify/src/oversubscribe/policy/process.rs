//! A process as the policy knows it: where it is, how long it has to stay, whose turn it is.

use std::time::Duration;

use snaprig_wire::scif::NodeId;

use super::{Account, FAILURES_MAX, Settings};

/// How often the pause after a failure is doubled, at most.
const DOUBLINGS_MAX: u32 = 6;

/// Where a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// On a card.
    In(NodeId),
    /// On its way from a card.
    Leaving(NodeId),
    /// On no card.
    Out,
    /// On its way to a card, which has so many bytes for it.
    Coming(NodeId, u64),
}

/// A process.
#[derive(Debug)]
pub(super) struct Process {
    pub place: Place,
    pub bytes: u64,
    pub is_wanted: bool,
    /// How long it was served, but for what it had no part in: of those that wait the one with the least comes next.
    pub turn: Duration,
    /// Since when it is there, or its swap has been under way.
    since: Duration,
    /// Since when it is wanted, or is not.
    pub changed: Duration,
    /// What the swaps have cost that its stay is to be worth.
    debt: Duration,
    /// Failures in a row, and when it may be tried again.
    pub failures: u32,
    pub not_before: Duration,
    /// The card where it failed to come in.
    pub avoids: Option<NodeId>,
    pub account: Account,
}

impl Process {
    /// One that is seen there.
    pub fn new(place: Place, now: Duration) -> Self {
        Self {
            place,
            bytes: 0,
            is_wanted: false,
            turn: Duration::ZERO,
            since: now,
            changed: now,
            debt: Duration::ZERO,
            failures: 0,
            not_before: Duration::ZERO,
            avoids: None,
            account: Account::default(),
        }
    }

    /// Time passes.
    pub fn pass(&mut self, time: Duration) {
        let account = &mut self.account;
        if self.is_wanted {
            account.wanted += time;
        }
        match self.place {
            Place::In(_) => {
                account.resident += time;
                if self.is_wanted {
                    account.served += time;
                    self.turn += time;
                }
            }
            Place::Leaving(_) | Place::Coming(..) => account.swapping += time,
            Place::Out => {}
        }
    }

    /// The shortest stay that is worth its swaps.
    pub fn least_stay(&self, settings: Settings) -> Duration {
        settings.quantum.max(self.debt * settings.worth)
    }

    /// From when on it may leave for others.
    pub fn leaves_from(&self, settings: Settings) -> Duration {
        (self.since + self.least_stay(settings)).max(self.not_before)
    }

    /// Whether it has failed to leave so often that for now nobody counts on it.
    pub fn is_stuck(&self, now: Duration) -> bool {
        self.failures >= FAILURES_MAX && now < self.not_before
    }

    /// A swap begins.
    pub fn begin(&mut self, place: Place, now: Duration, worth: u32) {
        if let Place::Leaving(_) = place {
            // What the stay was worth is paid: in a stay that was long enough, all of it.
            let stay = now.saturating_sub(self.since);
            self.debt = self.debt.saturating_sub(stay / worth.max(1));
        }
        self.place = place;
        self.since = now;
    }

    /// It is out.
    pub fn left(&mut self, now: Duration) {
        self.debt += now.saturating_sub(self.since);
        self.account.swaps_out += 1;
        self.place = Place::Out;
        self.since = now;
        self.failures = 0;
        self.not_before = now;
    }

    /// It is on a card.
    pub fn arrive(&mut self, node: NodeId, now: Duration) {
        if let Place::Coming(..) = self.place {
            self.debt += now.saturating_sub(self.since);
            self.account.swaps_in += 1;
        }
        self.place = Place::In(node);
        self.since = now;
        self.failures = 0;
        self.not_before = now;
        self.avoids = None;
    }

    /// Its swap has failed: it is where it was, and what that has cost is to be worth it, too.
    pub fn failed(&mut self, back: Place, now: Duration, settings: Settings) {
        let took = now.saturating_sub(self.since);
        self.debt += took;
        self.account.failed += 1;
        if let Place::Coming(node, _) = self.place {
            self.avoids = Some(node);
        }
        self.place = back;
        self.since = now;
        self.wait(now, took, settings);
    }

    /// It is not tried again before the time is worth it, which is longer each time.
    pub fn wait(&mut self, now: Duration, took: Duration, settings: Settings) {
        let pause = settings.quantum.max(took * settings.worth);
        let doubled = pause.saturating_mul(1 << self.failures.min(DOUBLINGS_MAX));
        self.failures += 1;
        self.not_before = now.saturating_add(doubled);
    }
}
