//! One run of a plan: to the end of its last restart.

use snaprig_ckpt_plugin::{
    message::{Answer, Question, ToPlugin, ToSupervisor},
    phase::Phase,
};
use snaprig_coord::plugins::{QuestionId, Refusal, faults};
use snaprig_sim::{Plan, ProcessId};

use super::{
    Canary, Parameters,
    invariants::RESUMED,
    job::Job,
    program::{Program, Seen, Task},
    tree::Tree,
};
use crate::{
    scenario::{Outcome, Watch},
    stage::{Stage, System},
};

/// How long a plugin may take for a phase.
pub const PATIENCE_MS: u64 = 50;
/// How long a kernel takes to say that a process is gone.
const NOTICE_NS: u64 = 50_000;
/// Lanes of such news.
const NEWS: u64 = 6 << 32;

/// Something that happens to a process.
#[derive(Clone, Debug)]
pub enum Event {
    /// To a program: it goes on.
    Step(usize),
    /// To a program: a message of this generation of the ring.
    Data(usize, u64, u64),
    /// To a program: its supervisor says something; it begins late; it asks again; its supervisor is gone.
    Down(usize, u64, ToPlugin),
    Does(usize, Task),
    Asks(usize, Task),
    Left(usize),
    /// To a supervisor: a plugin says something, or is gone.
    Up(usize, ToSupervisor),
    Gone(usize),
    Tick(usize, u64),
    Begin(usize, u64, Phase),
    Release(usize, Phase, bool),
    Answer(usize, QuestionId, Result<Answer, String>),
    /// To the job.
    Order,
    Again,
    Passed(usize, u64, Phase),
    Failed(u64, Refusal),
    Finished(usize, u64, Option<Refusal>),
    TreeGone,
    Missed(usize, u64),
    PhaseIsLate(u64, usize),
    FinishIsLate(u64),
    Ask(usize, QuestionId, Question, u64),
    BoardTick,
}

/// How far a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Work,
    /// A restart while things go wrong.
    FirstRestart,
    LastRestart,
}

/// The system.
pub struct World {
    pub stage: Stage<Event>,
    pub parameters: Parameters,
    pub programs: Vec<Program>,
    pub trees: Vec<Tree>,
    pub job: Job,
    /// What the last complete checkpoint has of each program.
    pub checkpoint: Option<Vec<Seen>>,
    /// Messages and addresses of earlier restarts are not heard.
    pub generation: u64,
    pub is_restarting: bool,
    pub canary: Option<Canary>,
    /// How much later all has happened that was to be late.
    pub delayed_ns: u64,
    part: Part,
}

impl World {
    pub fn new(plan: &Plan, parameters: &Parameters, watch: Watch<Canary>) -> Self {
        let canary = watch.canary;
        let mut stage = Stage::new(plan, faults::ALL, watch);
        let engine = &mut stage.engine;
        let trees = (1..=parameters.trees).map(|number| {
            let process = engine.process(&format!("tree{number}"));
            Tree::new(process)
        });
        let trees: Vec<_> = trees.collect();
        let programs = (0..parameters.trees * parameters.programs).map(|number| {
            let process = engine.process(&format!("program{}", number + 1));
            Program::new(process, usize::from(number / parameters.programs))
        });
        let programs: Vec<_> = programs.collect();
        let job = engine.process("job");
        Self {
            stage,
            parameters: *parameters,
            programs,
            trees,
            job: Job::new(job, parameters.checkpoints),
            checkpoint: None,
            generation: 0,
            is_restarting: false,
            canary,
            delayed_ns: 0,
            part: Part::Work,
        }
    }

    /// Runs to the end, or to where it is to be looked at.
    pub fn finish(mut self) -> Outcome<()> {
        let ending = self.play();
        self.stage.into_outcome(ending, Vec::new(), ())
    }

    /// The lane of a connection. A restart makes new ones, which what is late on the old ones does not hold up.
    pub fn lane(&self, kind: u64, number: usize) -> u64 {
        kind + (self.generation << 16) + number as u64
    }

    fn lives(&self, process: ProcessId) -> bool {
        self.stage.engine.is_alive(process)
    }

    /// Whether all trees and programs live.
    pub fn all_live(&self) -> bool {
        let mut programs = self.programs.iter().map(|program| program.process);
        self.trees_live() && programs.all(|process| self.lives(process))
    }

    /// Whether all trees do.
    pub fn trees_live(&self) -> bool {
        let mut trees = self.trees.iter().map(|tree| tree.process);
        trees.all(|process| self.lives(process))
    }

    /// Whether every program has sent and received all.
    fn is_complete(&self) -> bool {
        let all = u64::from(self.parameters.messages);
        let has_all = |program: &Program| (program.seen.sent, program.seen.received) == (all, all);
        self.all_live() && self.programs.iter().all(has_all)
    }

    /// All processes of trees end.
    pub fn end_all(&mut self) {
        let programs = self.programs.iter().map(|program| program.process);
        let all: Vec<_> = programs
            .chain(self.trees.iter().map(|tree| tree.process))
            .collect();
        for process in all {
            self.stage.engine.crash(process);
        }
    }

    /// All is killed, and restarted from the last complete checkpoint; without one, from the beginning.
    fn restart_all(&mut self) {
        self.end_all();
        self.generation += 1;
        self.is_restarting = true;
        let first = vec![Seen::default(); self.programs.len()];
        let seen = self.checkpoint.clone().unwrap_or(first);
        for (program, seen) in self.programs.iter_mut().zip(seen) {
            self.stage.engine.restart(program.process);
            program.again(seen);
        }
        let now = self.stage.engine.now_ns();
        for number in 0..self.trees.len() {
            self.stage.engine.restart(self.trees[number].process);
            self.trees[number] = Tree::new(self.trees[number].process);
            self.connect_programs(number, now);
            self.trees[number].machine.restarted(b"/socket", now);
            self.tree_goes_on(number);
        }
        self.begin_round(true);
    }

    fn connect_programs(&mut self, tree: usize, now: u64) {
        for program in self.programs_of(tree) {
            let pid = program as i32 + 1;
            let machine = &mut self.trees[tree].machine;
            machine.connected(program as u64, pid, now);
        }
    }

    fn check_resumed(&mut self) {
        for number in 0..self.programs.len() {
            let program = &self.programs[number];
            if program.is_quiet && self.lives(program.process) {
                let (process, what) = (program.process, format!("program{}", number + 1));
                self.stage.violation(process, RESUMED, what);
            }
        }
    }
}

impl System for World {
    type Event = Event;

    fn stage(&mut self) -> &mut Stage<Event> {
        &mut self.stage
    }

    fn look(&self) -> &Stage<Event> {
        &self.stage
    }

    fn start(&mut self) {
        for tree in 0..self.trees.len() {
            self.connect_programs(tree, 0);
        }
        for program in 0..self.programs.len() {
            self.introduce(program);
            self.step_later(program);
        }
        self.order_later();
    }

    fn happen(&mut self, _: ProcessId, event: Event) {
        match event {
            Event::Step(program) => self.step(program),
            Event::Data(program, generation, number) => self.data(program, generation, number),
            Event::Down(program, round, message) => self.hears(program, round, message),
            Event::Does(program, task) => self.does_late(program, task),
            Event::Asks(program, task) => self.asks(program, task),
            Event::Left(program) => self.is_left(program),
            Event::Up(program, message) => self.tree_hears(program, message),
            Event::Gone(program) => self.tree_loses(self.programs[program].tree, program),
            Event::Tick(tree, due) => self.tree_tick(tree, due),
            Event::Begin(tree, round, phase) => self.tree_begins(tree, round, phase),
            Event::Release(tree, phase, is_awaited) => self.tree_releases(tree, phase, is_awaited),
            Event::Answer(tree, id, answer) => self.tree_is_answered(tree, id, answer),
            Event::Order => self.order(),
            Event::Again => self.try_checkpoint(),
            Event::Passed(tree, round, phase) => self.passed(tree, round, phase),
            Event::Failed(round, refusal) => self.failed(round, &refusal),
            Event::Finished(tree, round, refusal) => self.finished(tree, round, refusal),
            Event::TreeGone => self.tree_is_gone(),
            Event::Missed(program, generation) => self.check_missed(program, generation),
            Event::PhaseIsLate(number, at) => self.phase_is_late(number, at),
            Event::FinishIsLate(number) => self.finish_is_late(number),
            Event::Ask(tree, id, question, due) => self.asked(tree, id, question, due),
            Event::BoardTick => self.board_tick(),
        }
    }

    fn label(&self, event: &Event) -> String {
        format!("{event:?}")
    }

    /// What hangs is ended; then comes the next part.
    fn heal(&mut self) -> bool {
        if self.end_hung() {
            return true;
        }
        self.part = match self.part {
            Part::Work => {
                self.check_resumed();
                self.check_made();
                Part::FirstRestart
            }
            Part::FirstRestart if !self.is_complete() => Part::LastRestart,
            Part::FirstRestart | Part::LastRestart => return false,
        };
        self.restart_all();
        true
    }

    fn waits(&self) -> Option<String> {
        (!self.is_complete()).then(|| "the last restart has not come to its end".into())
    }

    fn delayed(&mut self, by_ns: u64) {
        self.delayed_ns = self.delayed_ns.saturating_add(by_ns);
    }

    fn has_faults(&self) -> bool {
        self.part != Part::LastRestart && self.stage.may_have_faults(2000)
    }

    fn crash(&mut self, process: ProcessId) {
        self.stage.engine.crash(process);
        if let Some(tree) = self.trees.iter().position(|one| one.process == process) {
            for program in self.programs_of(tree) {
                let own = self.programs[program].process;
                match self
                    .job
                    .round
                    .as_ref()
                    .is_some_and(|round| round.is_restart)
                {
                    // Until it is complete, a restarted tree ends with its supervisor.
                    true => self.stage.engine.crash(own),
                    false => {
                        let lane = NEWS + own.0 as u64;
                        let left = Event::Left(program);
                        self.stage.engine.send_late(own, own, lane, NOTICE_NS, left);
                    }
                }
            }
            let job = self.job.process;
            self.stage.engine.after(job, NOTICE_NS, Event::TreeGone);
        }
        if let Some(program) = self.programs.iter().position(|one| one.process == process) {
            self.programs[program].ended_ns = Some(self.stage.engine.now_ns());
            self.is_missed_later(program);
            let tree = self.trees[self.programs[program].tree].process;
            let lane = NEWS + tree.0 as u64;
            let gone = Event::Gone(program);
            self.stage
                .engine
                .send_late(tree, tree, lane, NOTICE_NS, gone);
        }
    }

    fn describe(&self) -> String {
        let programs = self.programs.iter().enumerate();
        let lines = programs.map(|(number, program)| {
            let (seen, quiet) = (program.seen, program.is_quiet);
            format!("program{}: {seen:?}, quiet: {quiet}\n", number + 1)
        });
        let all: String = lines.collect();
        format!("{:?}\n{all}{:?}\n", self.part, self.job.round)
    }
}
