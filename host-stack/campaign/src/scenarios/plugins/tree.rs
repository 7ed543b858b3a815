//! A supervisor: the machine of its tree's plugins, and its part in the phases of the job.

use snaprig_ckpt_plugin::{
    message::{Answer, ToSupervisor},
    phase::{Phase, Span},
};
use snaprig_coord::plugins::{Machine, Output, Progress, QuestionId, faults};
use snaprig_sim::ProcessId;

use super::{
    Canary,
    run::{Event, World},
};
use crate::stage::{Effect, System as _};

/// Lanes: of supervisors to plugins, and of supervisors to the job.
const DOWN: u64 = 3 << 32;
const TO_JOB: u64 = 4 << 32;

/// A supervisor.
#[derive(Debug)]
pub struct Tree {
    pub process: ProcessId,
    pub machine: Machine,
    /// The phase that its plugins are taken through, until they have passed it.
    pub phase: Option<Phase>,
    /// They have, and nobody has said how it goes on.
    has_passed: bool,
    /// The job waits for those that are to finish later.
    is_awaited: bool,
    /// The job's round that it was told of last.
    round: u64,
    /// When it wants to be woken.
    tick_ns: Option<u64>,
}

impl Tree {
    pub fn new(process: ProcessId) -> Self {
        Self {
            process,
            machine: Machine::default(),
            phase: None,
            has_passed: false,
            is_awaited: false,
            round: 0,
            tick_ns: None,
        }
    }
}

impl World {
    /// The programs of a tree.
    pub fn programs_of(&self, tree: usize) -> Vec<usize> {
        let all = self.programs.iter().enumerate();
        let own = all.filter(|(_, program)| program.tree == tree);
        own.map(|(number, _)| number).collect()
    }

    /// The job has a phase begin.
    pub fn tree_begins(&mut self, tree: usize, round: u64, phase: Phase) {
        let now = self.stage.engine.now_ns();
        let of = &mut self.trees[tree];
        (of.round, of.phase, of.has_passed) = (round, Some(phase), false);
        of.is_awaited = false;
        of.machine.save_in(Span::QuiesceToResume);
        of.machine.towards(phase, b"/there", now);
        self.tree_goes_on(tree);
    }

    /// The job's round is over; it has come to a checkpoint, if that `is_awaited`.
    pub fn tree_releases(&mut self, tree: usize, phase: Phase, is_awaited: bool) {
        let now = self.stage.engine.now_ns();
        let of = &mut self.trees[tree];
        (of.phase, of.has_passed, of.is_awaited) = (None, false, is_awaited);
        of.machine.release(phase, now);
        self.tree_goes_on(tree);
    }

    pub fn tree_hears(&mut self, program: usize, message: ToSupervisor) {
        let (tree, now) = (self.programs[program].tree, self.stage.engine.now_ns());
        let machine = &mut self.trees[tree].machine;
        machine.received(program as u64, message, now);
        machine.tick(now);
        self.tree_goes_on(tree);
    }

    pub fn tree_loses(&mut self, tree: usize, program: usize) {
        if self.canary == Some(Canary::UnheardEnd) {
            return;
        }
        let now = self.stage.engine.now_ns();
        let machine = &mut self.trees[tree].machine;
        machine.gone(program as u64);
        machine.tick(now);
        self.tree_goes_on(tree);
    }

    pub fn tree_tick(&mut self, tree: usize, due: u64) {
        if self.trees[tree].tick_ns == Some(due) {
            self.trees[tree].tick_ns = None;
            let now = self.stage.engine.now_ns();
            self.trees[tree].machine.tick(now);
            self.tree_goes_on(tree);
        }
    }

    pub fn tree_is_answered(
        &mut self,
        tree: usize,
        id: QuestionId,
        answer: Result<Answer, String>,
    ) {
        let now = self.stage.engine.now_ns();
        let machine = &mut self.trees[tree].machine;
        machine.answer(id, answer);
        machine.tick(now);
        self.tree_goes_on(tree);
    }

    /// Does what the machine says, and tells the job how far its plugins are.
    pub fn tree_goes_on(&mut self, tree: usize) {
        let own = self.trees[tree].process;
        while let Some(output) = self.trees[tree].machine.poll_output() {
            match output {
                Output::Send(program, message) => {
                    let to = self.programs[program as usize].process;
                    let event = Event::Down(program as usize, self.trees[tree].round, message);
                    let lane = self.lane(DOWN, program as usize);
                    self.stage.engine.send(own, to, lane, event);
                }
                Output::Ask {
                    id,
                    question,
                    deadline_ns,
                } => {
                    let event = Event::Ask(tree, id, question, deadline_ns);
                    self.send_to_job(tree, 0, event);
                }
                Output::Close(_) | Output::Variable { .. } => {}
            }
        }
        let of = &mut self.trees[tree];
        if let Some(due) = of.machine.deadline()
            && of.tick_ns.is_none_or(|tick| tick > due)
        {
            of.tick_ns = Some(due);
            self.stage.engine.at(own, due, Event::Tick(tree, due));
        }
        self.tree_finishes(tree);
        let Some(phase) = self.trees[tree].phase else {
            return self.tree_fails_late(tree);
        };
        let round = self.trees[tree].round;
        let said = match self.trees[tree].machine.progress() {
            Progress::AtWork => return,
            Progress::Done => Event::Passed(tree, round, phase),
            Progress::Failed(refusal) => Event::Failed(round, refusal),
        };
        self.trees[tree].phase = None;
        self.trees[tree].has_passed = matches!(said, Event::Passed(..));
        match self.fault(own, &faults::PASSED) {
            Effect::Ended => {}
            Effect::Late(by_ns) => self.send_to_job(tree, by_ns, said),
            _ => self.send_to_job(tree, 0, said),
        }
    }

    /// Those of its plugins that were to finish later have, or cannot.
    fn tree_finishes(&mut self, tree: usize) {
        let of = &mut self.trees[tree];
        let refusal = match of.machine.finished() {
            _ if !of.is_awaited => return,
            Progress::AtWork => return,
            Progress::Done => None,
            Progress::Failed(refusal) => Some(refusal),
        };
        of.is_awaited = false;
        let finished = Event::Finished(tree, of.round, refusal);
        self.send_to_job(tree, 0, finished);
    }

    /// Its plugins had passed a phase, and one has ended that those of others may wait for.
    fn tree_fails_late(&mut self, tree: usize) {
        let of = &mut self.trees[tree];
        if let (true, Progress::Failed(refusal)) = (of.has_passed, of.machine.progress()) {
            of.has_passed = false;
            let failed = Event::Failed(of.round, refusal);
            self.send_to_job(tree, 0, failed);
        }
    }

    fn send_to_job(&mut self, tree: usize, late_ns: u64, event: Event) {
        let (own, job) = (self.trees[tree].process, self.job.process);
        let lane = self.lane(TO_JOB, tree);
        self.stage.engine.send_late(own, job, lane, late_ns, event);
    }
}
