//! Who takes all trees through the phases, as the job's coordinator does, and has the board.

use std::collections::BTreeSet;

use snaprig_ckpt_plugin::{message::Question, phase::Phase};
use snaprig_coord::plugins::{Answers, Board, QuestionId};
use snaprig_sim::ProcessId;

use super::{
    Canary,
    invariants::DRAINED,
    run::{Event, World},
};

/// Lanes of the job to trees.
const TO_TREE: u64 = 5 << 32;
/// A phase takes no longer.
const PHASE_NS: u64 = 100_000_000;
/// Checkpoints are ordered about so long after each other.
const ORDER_NS: u64 = 300_000;
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
}

/// A round.
#[derive(Debug)]
pub struct Round {
    number: u64,
    pub is_restart: bool,
    at: usize,
    passed: BTreeSet<usize>,
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
        }
    }
}

impl World {
    pub fn order_later(&mut self) {
        let job = self.job.process;
        self.stage.engine.after(job, ORDER_NS, Event::Order);
    }

    /// A checkpoint is ordered, if all live that are to be in it.
    pub fn order(&mut self) {
        if self.job.left == 0 || self.is_restarting {
            return;
        }
        if self.job.round.is_none() {
            self.job.left -= 1;
            if self.all_live() {
                self.begin_round(false);
            }
        }
        self.order_later();
    }

    pub fn begin_round(&mut self, is_restart: bool) {
        self.job.rounds += 1;
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
    pub fn passed(&mut self, tree: usize, phase: Phase) {
        let (trees, canary) = (self.trees.len(), self.canary);
        let Some(round) = &mut self.job.round else {
            return;
        };
        if round.phases()[round.at] != phase {
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
                self.commit();
                self.release(Phase::Resume);
            }
        }
    }

    /// All trees stand still: what their plugins have saved is a checkpoint.
    fn commit(&mut self) {
        let saved: Option<Vec<_>> = self.programs.iter().map(|one| one.saved).collect();
        let Some(saved) = saved.filter(|_| self.all_live()) else {
            // A program has ended meanwhile.
            return;
        };
        for (program, seen) in saved.iter().enumerate() {
            let behind = (program + saved.len() - 1) % saved.len();
            let sent = saved[behind].sent;
            if seen.received != sent {
                let what = format!(
                    "program{} has received {} of {sent} messages",
                    program + 1,
                    seen.received
                );
                self.stage.violation(self.job.process, DRAINED, what);
            }
        }
        self.checkpoint = Some(saved);
    }

    fn release(&mut self, phase: Phase) {
        self.job.round = None;
        for tree in 0..self.trees.len() {
            self.tell_tree(tree, Event::Release(tree, phase));
        }
    }

    /// A round cannot succeed: of a checkpoint, all run on; of a restart, all ends.
    pub fn give_up(&mut self) {
        let Some(round) = self.job.round.take() else {
            return;
        };
        if round.is_restart {
            return self.end_all();
        }
        if self.canary != Some(Canary::ForgottenResume) {
            self.release(Phase::Resume);
        }
    }

    pub fn phase_is_late(&mut self, number: u64, at: usize) {
        let round = self.job.round.as_ref();
        if round.is_some_and(|round| (round.number, round.at) == (number, at)) {
            self.give_up();
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
