//! A round, from its order to its end. The only place that decides whether it is one.
//!
//! What must stay true: the coordinator has the round's directory renamed when every member has written and synced, and
//! not before. Any death before the rename undoes the round, and none after it does. The same is true of a move, which is
//! written down when everybody is connected with the tree where it is to go on.

use std::collections::BTreeMap;

use super::{
    Answer, CallError, CallId, ConnectionId, HISTORY, LOST_MAX, Machine, Output, Refusal, Summary,
    ToMember, cut, later,
    peers::LEFT,
    round::{At, Round, Seat},
};
use crate::{
    message::{NOT_NOW, NOTE_MAX, Outcome, REPORT_MAX, is_name},
    phase::{Kind, Moves, Order, Phase, Step},
};

impl Machine {
    /// An answer, unless the round begins.
    pub(super) fn order(&mut self, at: CallId, order: Order) -> Option<Result<Answer, CallError>> {
        let error = match &self.round {
            Some(Round { number, .. }) => CallError::Busy { round: *number },
            None if order.note.len() > NOTE_MAX => {
                super::invalid(format!("a note of more than {NOTE_MAX} bytes"))
            }
            None if self.members.is_empty() => CallError::Nobody,
            None => match self.check_move(&order) {
                Ok(()) => {
                    self.begin(at, order);
                    return None;
                }
                Err(error) => error,
            },
        };
        Some(Err(error))
    }

    fn check_move(&self, order: &Order) -> Result<(), CallError> {
        let Some(Moves { member, heir }) = &order.moves else {
            return match order.kind {
                Kind::Move => Err(super::invalid("a move of nobody")),
                _ => Ok(()),
            };
        };
        match () {
            () if order.kind != Kind::Move => Err(super::invalid("a move in another round")),
            () if !is_name(heir) => Err(super::invalid(format!("an heir named {heir:?}"))),
            () if self.members.contains_key(heir) => Err(super::invalid(format!(
                "there is a member {heir:?} already"
            ))),
            () if !self.full_members().any(|name| name == member) => {
                Err(super::invalid(format!("the job has no member {member:?}")))
            }
            () => Ok(()),
        }
    }

    fn begin(&mut self, at: CallId, order: Order) {
        let number = self.next_round;
        self.next_round += 1;
        self.round = Some(Round {
            number,
            deadline_ns: Some(later(self.now, order.gather_ms.max(1))),
            order,
            asked: Some(at),
            seats: BTreeMap::new(),
            at: At::Gather,
            since_ns: self.now,
            steps: Vec::new(),
            is_decided: false,
        });
    }

    /// Who has ordered the round does not wait for it any more; it goes on.
    pub(super) fn abandon_order(&mut self, connection: ConnectionId) {
        if let Some(round) = &mut self.round {
            round.asked = round.asked.filter(|call| call.connection != connection);
        }
    }

    /// Whether a member may do something in a round; 0 is none.
    pub(super) fn is_in_round(&self, member: &str, round: u64) -> Result<(), CallError> {
        let current = self.round.as_ref();
        let current = current.filter(|current| current.number == round);
        let seat = current.and_then(|current| current.seats.get(member));
        match (seat, current.map(|current| &current.at)) {
            _ if round == 0 => Ok(()),
            // It has crossed with what the member will hear: nobody comes to what it would wait for.
            (Some(_), Some(At::Undo(reason))) => Err(CallError::Undone {
                round,
                reason: reason.clone(),
            }),
            (Some(Seat { lost: None, .. }), _) => Ok(()),
            _ => Err(CallError::NotInRound { round }),
        }
    }

    /// A member has done a phase. What it says of another than the present one has crossed with what
    /// it will hear, and is not of interest any more.
    pub(super) fn done(
        &mut self,
        member: &str,
        number: u64,
        phase: Phase,
        result: Result<String, String>,
    ) -> Result<(), Refusal> {
        let Some(round) = self.round_at(number, phase) else {
            return Ok(());
        };
        let Some(seat) = round.seats.get_mut(member) else {
            return Ok(());
        };
        if !seat.is_at_it() {
            return Ok(());
        }
        match result {
            Ok(report) if report.len() > REPORT_MAX => {
                let what = format!("a report of more than {REPORT_MAX} bytes");
                return Err(Refusal::Nonsense { what });
            }
            Ok(report) => {
                seat.is_done = true;
                if phase == Phase::Write {
                    seat.report = report;
                }
            }
            Err(why) if round.is_decided || phase == Phase::Undo => seat.lost = Some(cut(why)),
            Err(why) => self.fail_round(number, format!("{member}: {why}")),
        }
        Ok(())
    }

    /// The round, if it is this one, and at this phase.
    fn round_at(&mut self, number: u64, phase: Phase) -> Option<&mut Round> {
        let round = self.round.as_mut();
        round.filter(|at| at.number == number && at.phase() == Some(phase))
    }

    /// A member gets on with the present phase, which may take as long again.
    pub(super) fn gets_on(&mut self, member: &str, number: u64, phase: Phase) {
        let now = self.now;
        let Some(round) = self.round_at(number, phase) else {
            return;
        };
        if round.seats.get(member).is_some_and(Seat::is_at_it) {
            round.takes_its_time(now);
        }
    }

    /// A member of the round is gone.
    pub(super) fn seat_lost(&mut self, member: &str, why: &str) {
        self.seat_gone(member, why, "");
    }

    /// A member of the round has left the job: the next round is one without it.
    pub(super) fn seat_left(&mut self, member: &str) {
        self.seat_gone(member, LEFT, NOT_NOW);
    }

    fn seat_gone(&mut self, member: &str, why: &str, mark: &str) {
        let Some(round) = &mut self.round else {
            return;
        };
        let (number, phase) = (round.number, round.phase());
        // That is what it was told to do.
        let ends = phase == Some(Phase::End) || round.is_decided && round.heir() == Some(member);
        let Some(seat) = round.seats.get_mut(member) else {
            return;
        };
        if seat.lost.is_some() {
            return;
        }
        if ends {
            seat.is_done = true;
            return;
        }
        seat.lost = Some(cut(why.into()));
        let step = round.step_name();
        self.fail_round(number, format!("{mark}{member} is gone in {step}: {why}"));
    }

    /// The round cannot succeed; unless it is being decided or has been, when nothing changes that.
    pub(super) fn fail_round(&mut self, number: u64, reason: String) {
        let Some(round) = &mut self.round else {
            return;
        };
        let can_fail = !round.is_decided && matches!(round.step(), Some(Step::Do(_)));
        if round.number == number && can_fail {
            self.undo(reason);
        }
    }

    fn undo(&mut self, reason: String) {
        let Some(round) = &mut self.round else {
            return;
        };
        let (number, reason) = (round.number, cut(reason));
        round.end_step(self.now);
        round.at = At::Undo(reason.clone());
        round.takes_its_time(self.now);
        let error = CallError::Undone {
            round: number,
            reason: reason.clone(),
        };
        let message = ToMember::Undo {
            round: number,
            reason,
        };
        self.end_calls(number, &error);
        self.tell_round(&message);
    }

    /// Calls that wait in the round wait no more.
    fn end_calls(&mut self, round: u64, error: &CallError) {
        let mut calls = self.barriers.of_round(round);
        calls.append(&mut self.counted.of_round(round));
        calls.append(&mut self.board.of_round(round));
        for call in calls {
            self.answer(call, Err(error.clone()));
        }
    }

    fn tell_round(&mut self, message: &ToMember) {
        let present = self.round.iter().flat_map(Round::present);
        let present: Vec<_> = present.map(str::to_owned).collect();
        for member in present {
            self.tell(&member, message.clone());
        }
    }

    /// Goes on as far as it can.
    pub(super) fn advance(&mut self) {
        while let Some(round) = &mut self.round {
            match (&round.at, round.step()) {
                (At::Gather, _) if self.members.is_empty() => {
                    let reason = "all members have left".into();
                    return self.finish(Outcome::Undone { reason });
                }
                (At::Gather, _) => {
                    if self.missing().next().is_some() {
                        return;
                    }
                    self.seat_all();
                    self.enter(0);
                }
                (_, Some(Step::Commit)) => return,
                (At::Step(_), None) => return self.finish(Outcome::Complete),
                _ if !round.waiting().is_empty() => return,
                (At::Undo(reason), _) => {
                    let reason = reason.clone();
                    return self.finish(Outcome::Undone { reason });
                }
                (At::Step(index), Some(Step::Do(_))) => {
                    let next = index + 1;
                    self.enter(next);
                }
            }
        }
    }

    fn seat_all(&mut self) {
        let all = self.full_members();
        let seats = all.map(|name| (name.clone(), Seat::default())).collect();
        if let Some(round) = &mut self.round {
            round.seats = seats;
        }
    }

    /// Whoever goes on with the tree of another takes part from now on.
    fn seat_heir(&mut self) {
        let Some(round) = &mut self.round else {
            return;
        };
        let Some(heir) = round.heir().map(str::to_owned) else {
            return;
        };
        round.seats.insert(heir.clone(), Seat::default());
        let entry = self.members.get(&heir);
        if entry.and_then(super::Entry::connection).is_none() {
            self.seat_lost(&heir, "it has not come");
        }
    }

    /// A move is decided: the heir has the member's name, and the member, until it is gone, has that of the heir.
    fn take_over(&mut self) {
        let Some(round) = &mut self.round else {
            return;
        };
        let Some(Moves { member, heir }) = round.order.moves.clone() else {
            return;
        };
        let seats = (round.seats.remove(&member), round.seats.remove(&heir));
        round.seats.extend(seats.0.map(|seat| (heir.clone(), seat)));
        round
            .seats
            .extend(seats.1.map(|seat| (member.clone(), seat)));
        self.exchange_names(&member, &heir);
    }

    fn enter(&mut self, index: usize) {
        let Some(round) = &mut self.round else {
            return;
        };
        round.end_step(self.now);
        round.at = At::Step(index);
        if round.phase() == Some(Phase::Connect) {
            self.seat_heir();
        }
        let Some(round) = &mut self.round else {
            return;
        };
        match round.step() {
            Some(Step::Do(phase)) => {
                round.takes_its_time(self.now);
                round.is_decided |= round.order.kind.is_decided_in(phase);
                let message = ToMember::Begin {
                    round: round.number,
                    phase,
                    order: round.order.clone(),
                };
                self.tell_round(&message);
            }
            Some(Step::Commit) => {
                let reports = round.seats.iter();
                let reports = reports.map(|(name, seat)| (name.clone(), seat.report.clone()));
                let commit = Output::Commit {
                    round: round.number,
                    order: round.order.clone(),
                    reports: reports.collect(),
                };
                self.out.push(commit);
            }
            None => {}
        }
    }

    /// The disk has answered: this is where a checkpoint is decided.
    pub(super) fn committed(&mut self, number: u64, result: Result<(), String>) {
        let current = self.round.as_mut();
        let Some(round) = current.filter(|round| round.number == number) else {
            return;
        };
        let (At::Step(index), Some(Step::Commit)) = (&round.at, round.step()) else {
            return;
        };
        let next = index + 1;
        match result {
            Ok(()) => {
                round.is_decided = true;
                self.take_over();
                self.enter(next);
            }
            Err(why) => self.undo(format!("it could not be written down: {why}")),
        }
    }

    pub(super) fn expire_round(&mut self) {
        let Some(round) = &mut self.round else {
            return;
        };
        if round.deadline_ns.is_none_or(|deadline| deadline > self.now) {
            return;
        }
        round.deadline_ns = None;
        let (number, waiting) = (round.number, round.waiting());
        match round.at {
            At::Gather => self.expire_gather(),
            At::Undo(_) => self.give_up(&waiting),
            At::Step(_) if round.is_decided => {
                let why = format!("{} took too long", round.step_name());
                for name in &waiting {
                    if let Some(seat) = round.seats.get_mut(name) {
                        seat.lost = Some(why.clone());
                    }
                }
            }
            At::Step(_) if waiting.is_empty() => {}
            At::Step(_) => {
                let step = round.step_name();
                let late = waiting.join(", ");
                self.fail_round(number, format!("{step} took too long: {late}"));
            }
        }
    }

    fn expire_gather(&mut self) {
        let missing = self.missing().map(|(name, why)| format!("{name}: {why}"));
        let missing: Vec<_> = missing.collect();
        if !missing.is_empty() {
            let reason = format!("members are missing: {}", missing.join("; "));
            self.finish(Outcome::Undone {
                reason: cut(reason),
            });
        }
    }

    /// Who cannot even undo a round is taken to be out of reach; it undoes it when it notices.
    fn give_up(&mut self, waiting: &[String]) {
        for name in waiting {
            let entry = self.members.get(name);
            if let Some(connection) = entry.and_then(super::Entry::connection) {
                let what = "that it has undone a round".into();
                self.disconnect(connection, Refusal::Silent { what });
            }
        }
    }

    fn finish(&mut self, outcome: Outcome) {
        let finished = |round: u64| ToMember::Finished {
            round,
            outcome: outcome.clone(),
        };
        if let Some(round) = &mut self.round {
            // Ends with its last step: of a round that is complete, that step has been noted.
            if !matches!(round.at, At::Step(_)) {
                round.end_step(self.now);
            }
            let number = round.number;
            let all: Vec<_> = round.seats.keys().cloned().collect();
            for member in all {
                self.tell(&member, finished(number));
            }
            self.end_calls(number, &CallError::NotInRound { round: number });
            self.board.forget_round(number);
        }
        let Some(round) = self.round.take() else {
            return;
        };
        let members = round.seats.len() as u32;
        let lost = round.seats.into_iter();
        let lost = lost.filter_map(|(name, seat)| Some((name, seat.lost?)));
        let mut lost: Vec<_> = lost.collect();
        if let Some(more) = lost.len().checked_sub(LOST_MAX).filter(|more| *more > 0) {
            lost.truncate(LOST_MAX);
            lost.push((format!("{more} more"), String::new()));
        }
        let summary = Summary {
            round: round.number,
            kind: round.order.kind,
            members,
            outcome,
            lost,
            steps: round.steps,
        };
        if self.rounds.len() == HISTORY {
            self.rounds.pop_front();
        }
        self.rounds.push_back(summary.clone());
        if let Some(call) = round.asked {
            self.answer(call, Ok(Answer::Round(summary)));
        }
    }
}
