//! Who takes all trees through the phases, as the job's coordinator does, and has the board.

use std::collections::BTreeSet;

use snaprig_ckpt_plugin::{message::Question, phase::Phase};
use snaprig_coord::plugins::{Answers, Board, QuestionId, Refusal};
use snaprig_sim::ProcessId;

use super::{
    Canary,
    invariants::{DRAINED, FINISHED, MADE, PROMPT},
    program::{Program, Seen},
    run::{Event, World},
};

/// Lanes of the job to trees.
const TO_TREE: u64 = 5 << 32;
/// A phase takes no longer.
const PHASE_NS: u64 = 100_000_000;
/// Checkpoints are ordered about so long after each other.
const ORDER_NS: u64 = 300_000;
/// One that somebody's end has spoilt is tried again so much later.
const AGAIN_NS: u64 = 50_000;
/// Long after a program has ended nobody waits for it, unless messages were late.
const PROMPT_NS: u64 = 1_000_000;
/// The phases of a restart, of which the first is that all plugins say what they are.
const RESTART: [Phase; 4] = [Phase::Save, Phase::Rebuild, Phase::Exchange, Phase::Refill];

/// The job.
#[derive(Debug)]
pub struct Job {
    pub process: ProcessId,
    pub board: Board,
    /// Checkpoints that are still to be ordered.
    pub left: u16,
    pub round: Option<Round>,
    rounds: u64,
    unfinished: Option<Unfinished>,
    /// A checkpoint is ordered, and neither made nor refused yet.
    is_wanted: bool,
}

/// A round.
#[derive(Debug)]
pub struct Round {
    number: u64,
    pub is_restart: bool,
    at: usize,
    passed: BTreeSet<usize>,
}

/// A checkpoint in which all have saved, and some are to finish while they run on.
#[derive(Debug)]
struct Unfinished {
    number: u64,
    /// What is saved; none: not all live, and this one is not restarted.
    saved: Option<Vec<Seen>>,
    finished: BTreeSet<usize>,
}

impl Round {
    fn phases(&self) -> &'static [Phase] {
        match self.is_restart {
            true => &RESTART,
            false => &Phase::CHECKPOINT,
        }
    }
}

impl Job {
    pub fn new(process: ProcessId, left: u16) -> Self {
        Self {
            process,
            board: Board::default(),
            left,
            round: None,
            rounds: 0,
            unfinished: None,
            is_wanted: false,
        }
    }
}

impl World {
    pub fn order_later(&mut self) {
        let job = self.job.process;
        self.stage.engine.after(job, ORDER_NS, Event::Order);
    }

    /// A checkpoint is ordered, of all programs that live.
    pub fn order(&mut self) {
        if self.job.left == 0 || self.is_restarting {
            return;
        }
        if self.job.round.is_none() && self.job.unfinished.is_none() && !self.job.is_wanted {
            self.job.left -= 1;
            self.job.is_wanted = true;
            self.try_checkpoint();
        }
        self.order_later();
    }

    /// Without a supervisor there is none.
    pub fn try_checkpoint(&mut self) {
        self.job.is_wanted &= self.trees_live() && !self.is_restarting;
        if self.job.is_wanted && self.job.round.is_none() {
            self.begin_round(false);
        }
    }

    pub fn begin_round(&mut self, is_restart: bool) {
        self.job.rounds += 1;
        self.job.unfinished = None;
        self.job.board = Board::default();
        self.job.round = Some(Round {
            number: self.job.rounds,
            is_restart,
            at: 0,
            passed: BTreeSet::new(),
        });
        for program in &mut self.programs {
            program.saved = None;
        }
        self.begin_phase();
    }

    fn begin_phase(&mut self) {
        let Some(round) = &mut self.job.round else {
            return;
        };
        round.passed.clear();
        let (number, at, phase) = (round.number, round.at, round.phases()[round.at]);
        for tree in 0..self.trees.len() {
            self.tell_tree(tree, Event::Begin(tree, number, phase));
        }
        let job = self.job.process;
        let late = Event::PhaseIsLate(number, at);
        self.stage.engine.after(job, PHASE_NS, late);
    }

    fn tell_tree(&mut self, tree: usize, event: Event) {
        let (job, to) = (self.job.process, self.trees[tree].process);
        let lane = self.lane(TO_TREE, tree);
        self.stage.engine.send(job, to, lane, event);
    }

    /// The plugins of a tree have passed a phase.
    pub fn passed(&mut self, tree: usize, number: u64, phase: Phase) {
        let (trees, canary) = (self.trees.len(), self.canary);
        let Some(round) = &mut self.job.round else {
            return;
        };
        if (round.number, round.phases()[round.at]) != (number, phase) {
            return;
        }
        round.passed.insert(tree);
        let is_last = round.at + 1 == round.phases().len();
        let is_hasty = match round.is_restart {
            false => canary == Some(Canary::HastyPhase) && !is_last,
            true => canary == Some(Canary::EarlyGo) && is_last,
        };
        if round.passed.len() < trees && !is_hasty {
            return;
        }
        if !is_last {
            round.at += 1;
            return self.begin_phase();
        }
        match round.is_restart {
            true => self.release(Phase::Go),
            false => {
                let number = round.number;
                let saved = self.saved();
                self.job.unfinished = Some(Unfinished {
                    number,
                    saved,
                    finished: BTreeSet::new(),
                });
                let (job, late) = (self.job.process, Event::FinishIsLate(number));
                self.stage.engine.after(job, PHASE_NS, late);
                if self.canary == Some(Canary::EarlyCommit) {
                    self.commit();
                }
                self.release(Phase::Resume);
            }
        }
    }

    /// Those of a tree that were to finish later have.
    pub fn finished(&mut self, tree: usize, number: u64, refusal: Option<Refusal>) {
        let trees = self.trees.len();
        let unfinished = self.job.unfinished.as_mut();
        let Some(unfinished) = unfinished.filter(|it| it.number == number) else {
            return;
        };
        if let Some(refusal) = refusal {
            self.job.unfinished = None;
            return self.try_again(refusal.has_ended);
        }
        unfinished.finished.insert(tree);
        if unfinished.finished.len() == trees {
            self.commit();
        }
    }

    pub fn finish_is_late(&mut self, number: u64) {
        let unfinished = self.job.unfinished.as_ref();
        if unfinished.is_some_and(|it| it.number == number) {
            self.job.unfinished = None;
            self.try_again(false);
        }
    }

    /// What was saved is a checkpoint. Only one of all programs is restarted.
    fn commit(&mut self) {
        self.job.is_wanted = false;
        let unfinished = self.job.unfinished.take();
        let Some(saved) = unfinished.and_then(|it| it.saved) else {
            return;
        };
        if let Some(program) = self.programs.iter().position(|one| one.is_unfinished) {
            let what = format!("program{} has not finished", program + 1);
            self.stage.violation(self.job.process, FINISHED, what);
        }
        self.checkpoint = Some(saved);
    }

    /// All trees stand still: what their plugins have saved, if all live.
    fn saved(&mut self) -> Option<Vec<Seen>> {
        let saved_of = |one: &Program| one.saved.filter(|_| one.ended_ns.is_none());
        let all: Vec<_> = self.programs.iter().map(saved_of).collect();
        for program in 0..all.len() {
            let behind = (program + all.len() - 1) % all.len();
            // Who has ended is missed by nobody.
            let (Some(seen), Some(Seen { sent, .. })) = (all[program], all[behind]) else {
                continue;
            };
            if seen.received != sent {
                let what = format!(
                    "program{} has received {} of {sent} messages",
                    program + 1,
                    seen.received
                );
                self.stage.violation(self.job.process, DRAINED, what);
            }
        }
        let saved: Option<Vec<_>> = all.into_iter().collect();
        saved.filter(|_| self.all_live())
    }

    fn release(&mut self, phase: Phase) {
        self.job.round = None;
        let is_awaited = self.job.unfinished.is_some();
        for tree in 0..self.trees.len() {
            self.tell_tree(tree, Event::Release(tree, phase, is_awaited));
        }
    }

    /// The plugins of a tree do not come to the end of a round.
    pub fn failed(&mut self, number: u64, refusal: &Refusal) {
        let round = self.job.round.as_ref();
        if round.is_some_and(|round| round.number == number) {
            self.give_up(refusal.has_ended);
        }
    }

    /// A round cannot succeed: of a checkpoint, all run on; of a restart, all ends. If somebody has ended, another try at a
    /// checkpoint of the rest.
    pub fn give_up(&mut self, somebody_has_ended: bool) {
        let Some(round) = self.job.round.take() else {
            return;
        };
        if round.is_restart {
            return self.end_all();
        }
        if self.canary != Some(Canary::ForgottenResume) {
            self.release(Phase::Resume);
        }
        self.try_again(somebody_has_ended);
    }

    /// If somebody has ended, of the rest.
    fn try_again(&mut self, somebody_has_ended: bool) {
        self.job.is_wanted &= somebody_has_ended;
        if somebody_has_ended && self.canary != Some(Canary::NoSecondTry) {
            let job = self.job.process;
            self.stage.engine.after(job, AGAIN_NS, Event::Again);
        }
    }

    /// A supervisor has ended: there are no checkpoints without it.
    pub fn tree_is_gone(&mut self) {
        self.give_up(false);
        (self.job.unfinished, self.job.is_wanted) = (None, false);
    }

    pub fn phase_is_late(&mut self, number: u64, at: usize) {
        let round = self.job.round.as_ref();
        if round.is_some_and(|round| (round.number, round.at) == (number, at)) {
            self.give_up(false);
        }
    }

    /// A program has ended: its neighbour is not to wait for it for long.
    pub fn is_missed_later(&mut self, program: usize) {
        let (job, now) = (self.job.process, self.stage.engine.now_ns());
        let due = now.saturating_add(PROMPT_NS);
        self.stage
            .engine
            .at(job, due, Event::Missed(program, self.generation));
    }

    /// Whether its neighbour still waits for a program that has ended long ago.
    pub fn check_missed(&mut self, program: usize, generation: u64) {
        let Some(ended_ns) = self.programs[program].ended_ns else {
            return;
        };
        // Who hangs tells nobody.
        let engine = &self.stage.engine;
        let hangs = engine.all().any(|one| engine.is_hung(one));
        if generation != self.generation || self.is_restarting || hangs || !self.trees_live() {
            return;
        }
        let due = ended_ns
            .saturating_add(PROMPT_NS)
            .saturating_add(self.delayed_ns);
        if due > self.stage.engine.now_ns() {
            let job = self.job.process;
            let missed = Event::Missed(program, generation);
            return self.stage.engine.at(job, due, missed);
        }
        let neighbour = (program + 1) % self.programs.len();
        if self.waits_for_neighbour(neighbour) {
            let what = format!("program{} waits for program{}", neighbour + 1, program + 1);
            self.stage.violation(self.job.process, PROMPT, what);
        }
    }

    /// Nothing is to come any more: what was ordered is made, or was refused for what it was.
    pub fn check_made(&mut self) {
        if self.job.is_wanted {
            let what = "there is no checkpoint of those that have not ended";
            self.stage.violation(self.job.process, MADE, what);
        }
    }

    /// A plugin's question comes to the board.
    pub fn asked(&mut self, tree: usize, id: QuestionId, question: Question, deadline_ns: u64) {
        let id = (tree as u64) << 32 | id;
        let answers = self.job.board.ask(id, question, deadline_ns);
        self.answer(answers);
        if let Some(due) = self.job.board.deadline() {
            let job = self.job.process;
            self.stage.engine.at(job, due, Event::BoardTick);
        }
    }

    pub fn board_tick(&mut self) {
        let now = self.stage.engine.now_ns();
        let answers = self.job.board.expire(now);
        self.answer(answers);
    }

    fn answer(&mut self, answers: Answers) {
        for (id, answer) in answers {
            let (tree, id) = ((id >> 32) as usize, id & u64::from(u32::MAX));
            self.tell_tree(tree, Event::Answer(tree, id, answer));
        }
    }
}
