//! The plugins of a tree, as its supervisor takes them through the phases of a round: who is told to do something next,
//! and what becomes of those that refuse, are late, or die.
//!
//! ```text
//! plugin:  Idle --Do Quiesce--> Busy --Done--> Passed(Quiesce) --Do Drain--> ... Passed(Save) --Do Resume--> Busy --> Idle
//!           ^                    | | |           ^                               |
//!           |                    | | '--Done---> Leaving: what it publishes      |
//!           |                    | |             with that is not there yet      |
//!           '------refuses-------' '--> Late --Done--> Passed, then Resume       | in a restarted process
//!                                                                                '--Do Rebuild, Exchange, Refill, Go--> Idle
//! round:   None --towards(phase)--> Towards --all have passed it--> done; the next phase, or release
//!                                      '--refused, late, gone--> failed;            release
//!          None <--all are Idle-- Releasing <--release(Resume or Go)--'
//!                                   | towards(phase): begins when all are Idle
//! ```
//! The supervisor calls [`Machine::towards`] for one phase after another; in a job it waits for all other members
//! before the next. Within a phase, plugins of the same order value work at the same time. Who registers while a round
//! is under way is taken through the phases that the others have passed before the round goes on.
//!
//! What plugins ask each other goes to a board: that of the tree ([`Board`]), or that of the coordinator.
//!
//! Where a tree goes on when it is saved ([`Machine::save_in`]), a plugin may say in Save that it finishes later. It has when it
//! has resumed; until all have ([`Machine::finished`]), what was saved is no checkpoint.
//!
//! In a move, the plugins of a tree that stays pass the phases of a restart where they are, if they follow moves, and are
//! told to go when it is decided; all others of it, and all of it if it is undone, resume.
//!
//! A process may end at any time. Where others may wait for something of it, the round fails at once, and may be tried
//! again without it: once it has quiesced or published something; or when others of its name wait at the board, for
//! whom nobody knows. Who ends before that is not missed, nor is who ends when all have saved.
//!
//! What must stay true: whoever has been told to quiesce is told to resume sooner or later, also after its own lateness
//! and after any failure, unless its process ends; a phase is passed only when everybody who is connected has passed it;
//! no plugin waits for an answer in a round that has failed, nor for one whose process has ended; when a round is over,
//! nobody who could resume waits for others that are still at work, unless their order values are higher.

mod board;
pub mod faults;
mod participant;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};

use snaprig_ckpt_plugin::{
    message::{
        Answer, BATCH_BYTES, ENTRY_BYTES, Entry, KEY_MAX, NAME_MAX, OWNS_MAX, Question, REASON_MAX,
        Registered, ToPlugin, ToSupervisor, VALUE_MAX, VERSION,
    },
    phase::{Part, Phase, Span},
};

use self::participant::{Participant, State};
pub use self::{
    board::{Answers, Board, fits},
    participant::{Owned, Refusal},
};
use crate::{MS, Ns, SECOND};

/// Plugins of a tree, and what one may own of each kind.
pub const PLUGINS_MAX: usize = 1 << 16;
const OWNED_MAX: usize = 64 * OWNS_MAX;
/// How long who has connected may take to say what it is.
const INTRODUCTION_NS: Ns = 30 * SECOND;
/// The longest patience that a plugin may ask for: a day.
const PATIENCE_MAX_MS: u64 = 24 * 60 * 60 * 1000;

/// Number of a connection, each of which is a plugin: the older, the lower.
pub type Connection = u64;
/// Number of a question.
pub type QuestionId = u64;

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Say this.
    Send(Connection, ToPlugin),
    /// Hang up: what it says makes no sense.
    Close(Connection),
    /// A question for the board, whose answer is for [`Machine::answer`]; not later than that.
    Ask {
        /// Its number.
        id: QuestionId,
        /// With the keys and names that the board has them under.
        question: Question,
        /// When there must be an answer.
        deadline_ns: Ns,
    },
    /// What is this variable of the environment? The answer is for [`Machine::answer`].
    Variable {
        /// The question's number.
        id: QuestionId,
        /// Its name.
        name: Vec<u8>,
    },
}

/// How far a round is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Somebody has to answer.
    AtWork,
    /// There is nothing left to do.
    Done,
    /// It is not to be.
    Failed(Refusal),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Round {
    None,
    Towards { phase: Phase, directory: Vec<u8> },
    Releasing(Phase),
}

/// A question that has no answer yet.
#[derive(Clone, Copy, Debug)]
struct Asked {
    whose: Connection,
    /// Its answer comes when others have done something.
    waits: bool,
}

/// The machine: tell it what happens, then [`Machine::poll_output`].
#[derive(Debug)]
pub struct Machine {
    plugins: BTreeMap<Connection, Participant>,
    round: Round,
    /// A phase that begins when those of the last round have resumed, and its directory.
    next: Option<(Phase, Vec<u8>)>,
    failure: Option<Refusal>,
    serial: u64,
    questions: BTreeMap<QuestionId, Asked>,
    last_question: QuestionId,
    /// Who has published what in this round.
    published: BTreeMap<Vec<u8>, Connection>,
    /// In all of a job, by name; none: those of this tree are all.
    counted: Option<BTreeMap<String, u32>>,
    part: Part,
    span: Span,
    /// Who was to finish later, and has not.
    unfinished: Option<Refusal>,
    outputs: VecDeque<Output>,
}

impl Default for Machine {
    fn default() -> Self {
        Self {
            plugins: BTreeMap::new(),
            round: Round::None,
            next: None,
            failure: None,
            serial: 0,
            questions: BTreeMap::new(),
            last_question: 0,
            published: BTreeMap::new(),
            counted: None,
            part: Part::All,
            span: Span::Save,
            unfinished: None,
            outputs: VecDeque::new(),
        }
    }
}

impl Machine {
    /// The next thing to do.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// When [`Machine::tick`] is due.
    pub fn deadline(&self) -> Option<Ns> {
        self.plugins.values().filter_map(Participant::due_ns).min()
    }

    /// How far the round is.
    pub fn progress(&self) -> Progress {
        if let Some(failure) = &self.failure {
            return Progress::Failed(failure.clone());
        }
        let is_done = match self.round {
            _ if self.next.is_some() => false,
            Round::None => true,
            Round::Towards { phase, .. } => self.have_passed(phase),
            // Those that are late are told when they are not any more.
            Round::Releasing(_) => !self.plugins.values().any(Participant::is_busy),
        };
        match is_done {
            true => Progress::Done,
            false => Progress::AtWork,
        }
    }

    /// Whether everybody who is connected has passed this phase.
    pub fn have_passed(&self, phase: Phase) -> bool {
        self.plugins.values().all(|plugin| plugin.has_passed(phase))
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.plugins.is_empty()
    }

    /// How many there are, by name.
    pub fn counts(&self) -> BTreeMap<String, u32> {
        let mut counts = BTreeMap::new();
        for plugin in self.plugins.values() {
            if let Some(registered) = &plugin.registered {
                *counts.entry(registered.name.clone()).or_insert(0) += 1;
            }
        }
        counts
    }

    /// How many there are in all trees of a job, by name, for this round.
    pub fn count_all(&mut self, counted: BTreeMap<String, u32>) {
        self.counted = Some(counted);
    }

    /// What the round is for this tree.
    pub fn take_part(&mut self, part: Part) {
        self.part = part;
    }

    /// When plugins may be at work on what they save, from now on.
    pub fn save_in(&mut self, span: Span) {
        self.span = span;
    }

    /// Since the round is over: whether those have finished that were to do so later. Who has ended since all were last taken
    /// [towards](Machine::towards) a phase has not.
    pub fn finished(&self) -> Progress {
        match &self.unfinished {
            Some(refusal) => Progress::Failed(refusal.clone()),
            None if self.plugins.values().any(|one| one.finishes_later) => Progress::AtWork,
            None => Progress::Done,
        }
    }

    /// What belongs to plugins, process by process.
    pub fn owned(&self) -> impl Iterator<Item = (i32, Owned)> {
        let plugins = self.plugins.values();
        plugins.map(|plugin| (plugin.pid, plugin.owned()))
    }

    /// Takes everybody through the phases up to this one, as soon as all have resumed after an earlier round. Files of
    /// the checkpoint are in this directory.
    pub fn towards(&mut self, phase: Phase, directory: &[u8], now: Ns) {
        let directory = directory.to_vec();
        match self.round {
            Round::Releasing(_) => self.next = Some((phase, directory)),
            Round::None | Round::Towards { .. } => {
                self.round = Round::Towards { phase, directory };
                self.unfinished = None;
            }
        }
        self.step(now);
    }

    /// The round is over for plugins: those that have passed a phase are told to resume, or to go.
    pub fn release(&mut self, phase: Phase, now: Ns) {
        self.end_questions("the round is over");
        (self.round, self.failure) = (Round::Releasing(phase), None);
        self.next = None;
        self.published.clear();
        self.counted = None;
        self.step(now);
    }

    /// The processes of all connections have been restarted; who starts now finds the supervisor at this socket.
    pub fn restarted(&mut self, socket: &[u8], now: Ns) {
        for (connection, plugin) in &mut self.plugins {
            plugin.registered = None;
            plugin.is_restarted = true;
            plugin.state = State::New {
                due_ns: now.saturating_add(INTRODUCTION_NS),
            };
            let socket = socket.to_vec();
            let message = ToPlugin::Restarted { socket };
            self.outputs.push_back(Output::Send(*connection, message));
        }
    }

    /// A plugin of a process has connected.
    pub fn connected(&mut self, connection: Connection, pid: i32, now: Ns) {
        if self.plugins.len() >= PLUGINS_MAX {
            return self.outputs.push_back(Output::Close(connection));
        }
        let due_ns = now.saturating_add(INTRODUCTION_NS);
        self.plugins
            .insert(connection, Participant::new(pid, due_ns));
    }

    /// A plugin has gone. Afterwards: [`Machine::tick`].
    pub fn gone(&mut self, connection: Connection) {
        let Some(plugin) = self.plugins.remove(&connection) else {
            return;
        };
        self.questions.retain(|_, asked| asked.whose != connection);
        if plugin.finishes_later {
            self.unfinished.get_or_insert(plugin.end());
        }
        let Round::Towards { phase, .. } = self.round else {
            return;
        };
        let fails = match phase.is_ascending() {
            true => self.depends_on(connection, &plugin),
            false => self.part != Part::Stays,
        };
        if fails {
            self.fail(plugin.end());
        }
    }

    /// Whether others may wait for something of one that has gone, in the phases of a checkpoint.
    fn depends_on(&self, connection: Connection, gone: &Participant) -> bool {
        // When all have saved, nobody waits for anybody.
        if gone.has_passed(Phase::Save) && self.have_passed(Phase::Save) {
            return false;
        }
        let has_published = self.published.values().any(|whose| *whose == connection);
        let mut waiting = self.questions.values().filter(|asked| asked.waits);
        let is_awaited = waiting.any(|asked| {
            let by = self.plugins.get(&asked.whose);
            by.is_some_and(|by| gone.is_awaited(by))
        });
        gone.is_relied_on() || has_published || is_awaited
    }

    /// A plugin says something. When all that it has said has been told: [`Machine::tick`].
    pub fn received(&mut self, connection: Connection, message: ToSupervisor, now: Ns) {
        if self.take(connection, message, now).is_none() {
            self.gone(connection);
            self.outputs.push_back(Output::Close(connection));
        }
    }

    /// A question has an answer. Afterwards: [`Machine::tick`].
    pub fn answer(&mut self, id: QuestionId, result: Result<Answer, String>) {
        // The round may have failed meanwhile: then it is answered already.
        let Some(asked) = self.questions.remove(&id) else {
            return;
        };
        let connection = asked.whose;
        if let Some(plugin) = self.plugins.get_mut(&connection)
            && let State::Leaving { phase, .. } = plugin.state
        {
            plugin.state = State::after(phase);
            let refusal = result.map_err(|why| plugin.refusal(&cut(why)));
            if let (Err(refusal), Round::Towards { .. }) = (refusal, &self.round) {
                self.fail(refusal);
            }
            return;
        }
        let message = ToPlugin::Answer(result.map_err(cut));
        self.outputs.push_back(Output::Send(connection, message));
    }

    /// Something has happened, or time has passed.
    pub fn tick(&mut self, now: Ns) {
        let mut late = None;
        for (connection, plugin) in &mut self.plugins {
            if plugin.due_ns().is_none_or(|due| due > now) {
                continue;
            }
            late = late.or_else(|| Some(plugin.lateness()));
            if std::mem::take(&mut plugin.finishes_later) {
                self.unfinished.get_or_insert(plugin.lateness());
            }
            match plugin.state {
                State::Busy { phase, serial, .. } => plugin.state = State::Late { phase, serial },
                State::Leaving { phase, .. } => {
                    self.questions.retain(|_, asked| asked.whose != *connection);
                    plugin.state = State::after(phase);
                }
                _ => self.outputs.push_back(Output::Close(*connection)),
            }
        }
        self.plugins
            .retain(|_, plugin| !matches!(plugin.state, State::New { due_ns } if due_ns <= now));
        if let (Some(late), Round::Towards { .. }) = (late, &self.round) {
            self.fail(late);
        }
        self.step(now);
    }

    fn fail(&mut self, refusal: Refusal) {
        if self.failure.is_none() {
            self.failure = Some(refusal.clone());
        }
        self.end_questions(&format!(
            "the round has failed: process {}, {}",
            refusal.pid, refusal.what
        ));
    }

    /// Nobody waits for an answer any more.
    fn end_questions(&mut self, why: &str) {
        let waiting: Vec<_> = self.questions.keys().copied().collect();
        for id in waiting {
            self.answer(id, Err(why.into()));
        }
    }

    /// Takes note of a message; none: it makes no sense.
    fn take(&mut self, connection: Connection, message: ToSupervisor, now: Ns) -> Option<()> {
        let plugin = self.plugins.get_mut(&connection)?;
        match message {
            ToSupervisor::Hello {
                version,
                descriptor,
                plugin: registered,
            } => {
                let is_sound = version == VERSION
                    && registered.name.len() <= NAME_MAX
                    && registered.patience_ms <= PATIENCE_MAX_MS
                    && registered.passed.is_none_or(Phase::is_ascending)
                    && matches!(plugin.state, State::New { .. });
                // Whatever it had to do before: it was saved, and waits for what follows.
                let saved = plugin.is_restarted.then_some(Phase::Save);
                plugin.state = match registered.passed.max(saved) {
                    Some(phase) => State::Passed(phase),
                    None => State::Idle,
                };
                plugin.is_restarted = false;
                plugin.channel = Some(descriptor);
                plugin.registered = Some(registered);
                is_sound.then_some(())
            }
            ToSupervisor::Owns {
                descriptors,
                regions,
            } => {
                plugin.is_at(Phase::Save).then_some(())?;
                plugin.descriptors.extend(descriptors);
                plugin
                    .regions
                    .extend(regions.iter().map(|(start, end)| *start..*end));
                let most = plugin.descriptors.len().max(plugin.regions.len());
                (most <= OWNED_MAX).then_some(())
            }
            ToSupervisor::Ask(question) => self.ask(connection, question),
            ToSupervisor::Done {
                serial,
                refusal,
                finishes_later,
                published,
            } => {
                let may = self.span >= Span::SaveToResume
                    && plugin.is_at(Phase::Save)
                    && refusal.is_none();
                (may || !finishes_later).then_some(())?;
                match refusal.is_none() && !published.is_empty() {
                    true => self.leaves(connection, serial, published, now)?,
                    false => self.done(connection, serial, refusal, now)?,
                }
                if let Some(plugin) = self.plugins.get_mut(&connection) {
                    plugin.finishes_later |= finishes_later;
                }
                Some(())
            }
        }
    }

    /// A plugin has answered, and publishes something with that.
    fn leaves(
        &mut self,
        connection: Connection,
        serial: u64,
        published: Vec<Entry>,
        now: Ns,
    ) -> Option<()> {
        let plugin = self.plugins.get(&connection)?;
        let (State::Busy { phase, due_ns, .. }, Some(registered), Round::Towards { .. }, None) =
            (plugin.state, &plugin.registered, &self.round, &self.failure)
        else {
            // Nobody is there to read it.
            return self.done(connection, serial, None, now);
        };
        let deadline_ns = answered_by(registered, due_ns);
        let question = scoped(&registered.name, Question::Publish(published))?;
        let id = self.new_question(connection, false)?;
        let taken = self.publishes(connection, &question);
        self.done(connection, serial, None, now)?;
        let plugin = self.plugins.get_mut(&connection)?;
        plugin.state = State::Leaving { phase, due_ns };
        match taken {
            Some(error) => self.answer(id, Err(error)),
            None => self.outputs.push_back(Output::Ask {
                id,
                question,
                deadline_ns,
            }),
        }
        Some(())
    }

    /// Of a plugin, which has one at a time.
    fn new_question(&mut self, whose: Connection, waits: bool) -> Option<QuestionId> {
        let is_alone = self.questions.values().all(|asked| asked.whose != whose);
        is_alone.then_some(())?;
        self.last_question += 1;
        let asked = Asked { whose, waits };
        self.questions.insert(self.last_question, asked);
        Some(self.last_question)
    }

    /// A plugin that is at work asks something.
    fn ask(&mut self, connection: Connection, question: Question) -> Option<()> {
        let waits = matches!(question, Question::Lookup(_) | Question::Barrier { .. });
        let id = self.new_question(connection, waits)?;
        let plugin = self.plugins.get(&connection)?;
        let (deadline_ns, name) = match (plugin.state, &plugin.registered) {
            (State::Busy { due_ns, .. }, Some(registered)) => {
                (answered_by(registered, due_ns), registered.name.clone())
            }
            (State::Late { .. }, _) => {
                self.answer(id, Err("it comes too late".into()));
                return Some(());
            }
            _ => return None,
        };
        if let Question::Variable(name) = question {
            self.outputs.push_back(Output::Variable { id, name });
            return Some(());
        }
        let question = scoped(&name, question)?;
        if let Some(error) = self.publishes(connection, &question) {
            self.answer(id, Err(error));
        } else if let Some(failure) = &self.failure {
            let error = format!("the round has failed: {}", failure.what);
            self.answer(id, Err(error));
        } else if !matches!(self.round, Round::Towards { .. }) {
            self.answer(id, Err("nobody else is in a round any more".into()));
        } else {
            self.outputs.push_back(Output::Ask {
                id,
                question,
                deadline_ns,
            });
        }
        Some(())
    }

    /// Takes note of what is published; an error, if somebody else has.
    fn publishes(&mut self, connection: Connection, question: &Question) -> Option<String> {
        let Question::Publish(entries) = question else {
            return None;
        };
        for (key, _) in entries {
            let owner = *self.published.entry(key.clone()).or_insert(connection);
            if owner != connection {
                let pid = self.plugins.get(&owner).map_or(0, |plugin| plugin.pid);
                let key = key.escape_ascii();
                return Some(format!("{key}: process {pid} has published it"));
            }
        }
        None
    }

    /// A plugin has answered.
    fn done(
        &mut self,
        connection: Connection,
        serial: u64,
        refusal: Option<String>,
        now: Ns,
    ) -> Option<()> {
        let plugin = self.plugins.get_mut(&connection)?;
        let (phase, is_late) = match plugin.state {
            State::Busy {
                phase, serial: its, ..
            } if its == serial => (phase, false),
            State::Late { phase, serial: its } if its == serial => (phase, true),
            _ => return None,
        };
        if phase == Phase::Resume
            && std::mem::take(&mut plugin.finishes_later)
            && let Some(reason) = &refusal
        {
            let unfinished = plugin.refusal(&cut(reason.clone()));
            self.unfinished.get_or_insert(unfinished);
        }
        let refusal = refusal.filter(|_| phase.may_fail());
        plugin.state = match &refusal {
            None => State::after(phase),
            Some(_) => plugin.before(phase),
        };
        if plugin.state == State::Idle {
            (plugin.descriptors, plugin.regions) = (Vec::new(), Vec::new());
        }
        if let Some(reason) = refusal.filter(|_| !is_late) {
            let refusal = plugin.refusal(&cut(reason));
            if matches!(self.round, Round::Towards { .. }) {
                self.fail(refusal);
            }
        }
        // Nobody waits for it any more: it is told at once.
        if is_late && self.round == Round::None {
            self.release(Phase::Resume, now);
        }
        Some(())
    }

    /// Has those begin whose turn it is.
    fn step(&mut self, now: Ns) {
        let round = self.round.clone();
        match round {
            Round::None => {}
            Round::Towards { phase, directory } => {
                self.check_late();
                if self.failure.is_none() {
                    self.start(now, &directory, |plugin| plugin.next_towards(phase));
                }
            }
            Round::Releasing(phase) => {
                let part = self.part;
                self.start(now, &[], |plugin| plugin.next_released(phase, part));
                let is_over = |plugin: &Participant| {
                    !plugin.is_busy() && plugin.next_released(phase, part).is_none()
                };
                if !self.plugins.values().all(is_over) {
                    return;
                }
                (self.round, self.part) = (Round::None, Part::All);
                if let Some((phase, directory)) = self.next.take() {
                    self.towards(phase, &directory, now);
                }
            }
        }
    }

    /// Whoever has still not answered what an earlier round has told it: then there is none.
    fn check_late(&mut self) {
        let late = self.plugins.values().find_map(|plugin| {
            let is_late = matches!(plugin.state, State::Late { .. });
            is_late.then(|| plugin.refusal("it is still at work on an earlier checkpoint"))
        });
        if let (Some(late), None) = (late, &self.failure) {
            self.fail(late);
        }
    }

    /// Tells all of the group whose turn it is: the earliest phase that anybody has not passed, and its first order
    /// value; or, if some of a group are at work, those that have joined it. When the round is over, whoever may resume
    /// before those that are still at work in an earlier phase does so.
    fn start(&mut self, now: Ns, directory: &[u8], next: impl Fn(&Participant) -> Option<Phase>) {
        for plugin in self.plugins.values_mut() {
            while let Some(phase) = next(plugin)
                && plugin.passes_over(phase, self.part)
            {
                plugin.state = State::after(phase);
            }
        }
        let all = || self.plugins.values();
        let waiting = |plugin: &Participant| Some(plugin.group_in(next(plugin)?));
        let first = all().filter_map(waiting).min();
        let group = match self.round {
            Round::Releasing(_) => {
                let busy = all().filter_map(Participant::group_released);
                busy.chain(first).min()
            }
            _ => all().filter_map(Participant::group).min().or(first),
        };
        let is_its_turn = |plugin: &Participant| group.is_some() && waiting(plugin) == group;
        if !all().any(is_its_turn) {
            return;
        }
        let counts = match &self.counted {
            Some(counted) => counted.clone(),
            None => self.counts(),
        };
        for (connection, plugin) in &mut self.plugins {
            let (true, Some(phase)) = (is_its_turn(plugin), next(plugin)) else {
                continue;
            };
            let Some(registered) = &plugin.registered else {
                continue;
            };
            self.serial += 1;
            let message = ToPlugin::Do {
                serial: self.serial,
                phase,
                directory: directory.to_vec(),
                participants: counts.get(&registered.name).copied().unwrap_or(1),
                part: self.part,
                span: self.span,
            };
            plugin.state = State::Busy {
                phase,
                serial: self.serial,
                due_ns: now.saturating_add(registered.patience_ms.saturating_mul(MS)),
            };
            self.outputs.push_back(Output::Send(*connection, message));
        }
    }
}

/// When a plugin must have its answer that must be done by then: it is to say who has not come before it is late itself.
fn answered_by(registered: &Registered, due_ns: Ns) -> Ns {
    let spare = registered.patience_ms.saturating_mul(MS) / 8;
    due_ns.saturating_sub(spare)
}

/// A question with keys as the board has them: plugins of another name have others. None: it is too large.
fn scoped(name: &str, question: Question) -> Option<Question> {
    let scope = |key: Vec<u8>| {
        let fits = key.len() <= KEY_MAX;
        fits.then(|| [name.as_bytes(), &[0], &key].concat())
    };
    Some(match question {
        Question::Publish(entries) => {
            let bytes = |(key, value): &Entry| key.len() + value.len() + ENTRY_BYTES;
            let fits = entries.iter().all(|(_, value)| value.len() <= VALUE_MAX)
                && entries.iter().map(bytes).sum::<usize>() <= BATCH_BYTES;
            fits.then_some(())?;
            let entries = entries
                .into_iter()
                .map(|(key, value)| Some((scope(key)?, value)));
            Question::Publish(entries.collect::<Option<_>>()?)
        }
        Question::Lookup(keys) => {
            Question::Lookup(keys.into_iter().map(scope).collect::<Option<_>>()?)
        }
        Question::Collect { prefix, after } => Question::Collect {
            prefix: scope(prefix)?,
            after: match after.is_empty() {
                true => after,
                false => scope(after)?,
            },
        },
        Question::Barrier { name: of, count } => Question::Barrier {
            name: scope(of)?,
            count,
        },
        Question::Variable(name) => Question::Variable(name),
    })
}

/// The key as a plugin knows it.
pub fn unscoped(key: &[u8]) -> &[u8] {
    let at = key.iter().position(|byte| *byte == 0);
    at.map_or(key, |at| &key[at + 1..])
}

/// A reason as it may be said to people.
fn cut(mut reason: String) -> String {
    reason.retain(|character| !character.is_control());
    reason.chars().take(REASON_MAX).collect()
}
