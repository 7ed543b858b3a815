//! The round that is under way: where it is, and who has done what.

use std::collections::BTreeMap;

use super::{CallId, Ns, RoundStatus, later};
use crate::phase::{Order, Phase, Step};

#[derive(Debug)]
pub(super) struct Round {
    pub(super) number: u64,
    pub(super) order: Order,
    /// Who waits for its end.
    pub(super) asked: Option<CallId>,
    /// Its members.
    pub(super) seats: BTreeMap<String, Seat>,
    pub(super) at: At,
    pub(super) since_ns: Ns,
    pub(super) deadline_ns: Option<Ns>,
    /// How long each step took.
    pub(super) steps: Vec<(String, u64)>,
    /// Whatever happens now, it is complete.
    pub(super) is_decided: bool,
}

#[derive(Debug, Default)]
pub(super) struct Seat {
    /// It has done the present phase.
    pub(super) is_done: bool,
    /// Why it does nothing more in this round.
    pub(super) lost: Option<String>,
    /// What it said of what it has written.
    pub(super) report: String,
}

impl Seat {
    /// It has yet to do the present phase.
    pub(super) fn is_at_it(&self) -> bool {
        self.lost.is_none() && !self.is_done
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum At {
    /// Until nobody is missing.
    Gather,
    /// One of the steps of its kind.
    Step(usize),
    /// It has failed: why.
    Undo(String),
}

impl Round {
    /// Of a move that is not decided, who the heir is; later, whose tree it was.
    pub(super) fn heir(&self) -> Option<&str> {
        self.order.moves.as_ref().map(|moves| &*moves.heir)
    }

    /// Members that are part of it still.
    pub(super) fn present(&self) -> impl Iterator<Item = &str> {
        let seats = self.seats.iter().filter(|(_, seat)| seat.lost.is_none());
        seats.map(|(name, _)| name.as_str())
    }

    /// Those of them that have not done the present phase.
    pub(super) fn waiting(&self) -> Vec<String> {
        let waiting = self.seats.iter();
        let waiting = waiting.filter(|(_, seat)| seat.is_at_it());
        waiting.map(|(name, _)| name.clone()).collect()
    }

    /// What members are doing may take as long as a phase may, from now on.
    pub(super) fn takes_its_time(&mut self, now: Ns) {
        self.deadline_ns = Some(later(now, self.order.phase_ms.max(1)));
    }

    pub(super) fn deadline(&self) -> Option<Ns> {
        self.deadline_ns
    }

    pub(super) fn step(&self) -> Option<Step> {
        match self.at {
            At::Step(index) => self.order.kind.steps().get(index).copied(),
            At::Gather | At::Undo(_) => None,
        }
    }

    /// What members are doing.
    pub(super) fn phase(&self) -> Option<Phase> {
        match self.at {
            At::Undo(_) => Some(Phase::Undo),
            _ => self.step()?.phase(),
        }
    }

    pub(super) fn step_name(&self) -> &'static str {
        match (&self.at, self.phase()) {
            (At::Gather, _) => "gather",
            (_, Some(phase)) => phase.name(),
            (_, None) => "commit",
        }
    }

    /// What it was doing ends; how long that took.
    pub(super) fn end_step(&mut self, now: Ns) {
        let took = (self.step_name().to_owned(), now - self.since_ns);
        self.steps.push(took);
        self.since_ns = now;
        self.deadline_ns = None;
        for seat in self.seats.values_mut() {
            seat.is_done = false;
        }
    }

    pub(super) fn status(&self, missing: Vec<String>, now: Ns) -> RoundStatus {
        RoundStatus {
            round: self.number,
            kind: self.order.kind,
            step: self.step_name().into(),
            for_ns: now - self.since_ns,
            waiting_for: match self.at {
                At::Gather => missing,
                _ => self.waiting(),
            },
        }
    }
}
