//! Who is asked next, and what becomes of a round when somebody refuses, is late, or dies.
//!
//! ```text
//! plugin:  Idle --Do PreCheckpoint--> Asked --Done--> Ready --Do Resume, Restart--> Told --Done--> Idle
//!            ^                         | | too late                                  | too late
//!            '----Done, refuses--------' '--> Late --Done--> Ready                   '--> Late --Done--> Idle
//! round:   none --gather--> Gathering --release--> Releasing --all Idle--> none
//!                            | refused, late: failed      restart: Listing --> Restarting --> none, or failed
//! ```
//! One plugin at a time is asked or told; none of a process one of whose plugins is late. The order is that of [`Key`].
//!
//! What must stay true: whoever is Ready is told sooner or later, also after its own lateness and after any failure; a
//! round is gathered only when every plugin of everybody who is connected is Ready.

mod process;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, VecDeque},
    time::{Duration, Instant},
};

use libc::pid_t;
use snaprig_ckpt::owned::OwnedByProcess;
use snaprig_ckpt_plugin::{
    PATIENCE_MAX,
    message::{Event, NAME_MAX, OWNS_MAX, REASON_MAX, ToProcess, ToSupervisor, VERSION},
};

pub use self::process::Refusal;
use self::process::{Doing, Plugin, Process, State};

/// Plugins of a process, and what one may own of each kind.
const PLUGINS_MAX: usize = 256;
const OWNED_MAX: usize = 64 * OWNS_MAX;
/// How long a restarted process may take to say what plugins it has.
const LISTING: Duration = Duration::from_secs(30);

/// Number of a connection: the older, the lower.
pub type Connection = u64;
/// Order of plugins: as they say; then the older processes first.
type Key = (i32, Connection, u32);

/// What to do.
#[derive(Debug, PartialEq, Eq)]
pub enum Output {
    /// Say this.
    Send(Connection, ToProcess),
    /// Answer what this variable is.
    Answer(Connection, Vec<u8>),
    /// Hang up: what it says makes no sense.
    Close(Connection),
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

#[derive(Debug)]
enum Round {
    None,
    Gathering(Vec<u8>),
    Releasing,
    Restarting {
        directory: Vec<u8>,
        listed_by: Instant,
    },
}

/// The machine: tell it what happens, then [`Machine::poll_output`].
#[derive(Debug)]
pub struct Machine {
    processes: BTreeMap<Connection, Process>,
    round: Round,
    failure: Option<Refusal>,
    serial: u64,
    outputs: VecDeque<Output>,
}

impl Default for Machine {
    fn default() -> Self {
        Self {
            processes: BTreeMap::new(),
            round: Round::None,
            failure: None,
            serial: 0,
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
    pub fn deadline(&self) -> Option<Instant> {
        let busy = self.plugins().filter_map(|(_, plugin)| match plugin.state {
            State::Busy(_, _, due) => Some(due),
            _ => None,
        });
        let listing = match &self.round {
            Round::Restarting { listed_by, .. } if !self.is_listed() => Some(*listed_by),
            _ => None,
        };
        busy.chain(listing).min()
    }

    /// How far the round is.
    pub fn progress(&self) -> Progress {
        if let Some(failure) = &self.failure {
            return Progress::Failed(failure.clone());
        }
        let is_done = match self.round {
            Round::None => true,
            Round::Gathering(_) => self.is_gathered(),
            // Those whose processes are late are told when they are not any more.
            Round::Releasing => !self.is_busy(),
            Round::Restarting { .. } => false,
        };
        if is_done {
            Progress::Done
        } else {
            Progress::AtWork
        }
    }

    /// Whether everybody who is connected is ready for a checkpoint.
    pub fn is_gathered(&self) -> bool {
        self.is_listed()
            && self
                .plugins()
                .all(|(_, plugin)| plugin.state == State::Ready)
    }

    /// A plugin, if there is any: its process, and its name.
    pub fn first(&self) -> Option<(pid_t, &str)> {
        self.processes.values().find_map(|process| {
            let plugin = process.plugins.values().next()?;
            Some((process.pid, &*plugin.registered.name))
        })
    }

    /// What belongs to plugins, process by process.
    pub fn owned(&self) -> impl Iterator<Item = (pid_t, OwnedByProcess)> {
        let processes = self.processes.values();
        processes.map(|process| (process.pid, process.owned()))
    }

    /// There will be a checkpoint, in this directory; also: whoever has come since is asked, too.
    pub fn gather(&mut self, directory: &[u8], now: Instant) {
        self.round = Round::Gathering(directory.to_vec());
        self.step(now);
    }

    /// There was one, or none.
    pub fn release(&mut self, now: Instant) {
        (self.round, self.failure) = (Round::Releasing, None);
        self.step(now);
    }

    /// The processes that are connected have been restarted from a checkpoint in this directory.
    pub fn restart(&mut self, directory: &[u8], socket: &[u8], now: Instant) {
        self.round = Round::Restarting {
            directory: directory.to_vec(),
            listed_by: now + LISTING,
        };
        for connection in self.processes.keys() {
            let socket = socket.to_vec();
            let message = ToProcess::Restarted { socket };
            self.outputs.push_back(Output::Send(*connection, message));
        }
        self.step(now);
    }

    /// A process has connected.
    pub fn connected(&mut self, connection: Connection, pid: pid_t) {
        let process = Process {
            pid,
            channel: None,
            listed: false,
            plugins: BTreeMap::new(),
        };
        self.processes.insert(connection, process);
    }

    /// A process has gone, with its plugins. Afterwards: [`Machine::tick`].
    pub fn gone(&mut self, connection: Connection) {
        self.processes.remove(&connection);
    }

    /// A process says something. When all that it has said has been told: [`Machine::tick`].
    pub fn received(&mut self, connection: Connection, message: ToSupervisor, now: Instant) {
        if self.take(connection, message, now).is_none() {
            self.processes.remove(&connection);
            self.outputs.push_back(Output::Close(connection));
        }
    }

    /// Something has happened, or time has passed.
    pub fn tick(&mut self, now: Instant) {
        let is_due = |plugin: &Plugin| match plugin.state {
            State::Busy(doing, serial, due) if due <= now => Some((doing, serial)),
            _ => None,
        };
        let mut late = None;
        for process in self.processes.values_mut() {
            for plugin in process.plugins.values_mut() {
                if let Some((doing, serial)) = is_due(plugin) {
                    plugin.state = State::Late(doing, serial);
                    late = Some(plugin.refusal(process.pid, &plugin.lateness()));
                }
            }
        }
        if !matches!(self.round, Round::Releasing | Round::None) {
            self.failure = self.failure.take().or(late);
        }
        if let Round::Restarting { listed_by, .. } = &self.round
            && *listed_by <= now
            && let Some(silent) = self.processes.values().find(|process| !process.listed)
        {
            let seconds = LISTING.as_secs();
            self.failure.get_or_insert(Refusal {
                pid: silent.pid,
                what: format!("it has not said within {seconds} s what plugins it has"),
            });
        }
        self.step(now);
    }

    fn is_busy(&self) -> bool {
        let is_busy = |plugin: &Plugin| matches!(plugin.state, State::Busy(..));
        self.plugins().any(|(_, plugin)| is_busy(plugin))
    }

    fn is_listed(&self) -> bool {
        self.processes.values().all(|process| process.listed)
    }

    fn plugins(&self) -> impl DoubleEndedIterator<Item = (Key, &Plugin)> {
        let mut all: Vec<(Key, &Plugin)> = Vec::new();
        for (connection, process) in &self.processes {
            let plugins = process.plugins.iter();
            all.extend(
                plugins.map(|(id, plugin)| ((plugin.registered.order, *connection, *id), plugin)),
            );
        }
        all.sort_by_key(|(key, _)| *key);
        all.into_iter()
    }

    /// Takes note of a message; none: it makes no sense.
    fn take(&mut self, connection: Connection, message: ToSupervisor, now: Instant) -> Option<()> {
        let process = self.processes.get_mut(&connection)?;
        match message {
            ToSupervisor::Hello {
                version,
                descriptor,
            } => {
                process.channel = Some(descriptor);
                return (version == VERSION).then_some(());
            }
            ToSupervisor::Listed => process.listed = true,
            ToSupervisor::Registered(registered) => {
                let is_sound = process.plugins.len() < PLUGINS_MAX
                    && registered.name.len() <= NAME_MAX
                    && Duration::from_millis(registered.patience_ms) <= PATIENCE_MAX;
                let state = if registered.waits {
                    State::Ready
                } else {
                    State::Idle
                };
                let plugin = Plugin {
                    state,
                    descriptors: Vec::new(),
                    regions: Vec::new(),
                    registered,
                };
                process.plugins.insert(plugin.registered.id, plugin);
                return is_sound.then_some(());
            }
            ToSupervisor::Unregistered { id } => drop(process.plugins.remove(&id)),
            ToSupervisor::Owns {
                descriptors,
                regions,
            } => {
                // Of one that is late as well: it will be Ready.
                let mut plugins = process.plugins.values_mut();
                let plugin = plugins.find(|plugin| plugin.is_asked())?;
                plugin.descriptors.extend(descriptors);
                plugin
                    .regions
                    .extend(regions.iter().map(|(start, end)| *start..*end));
                let most = plugin.descriptors.len().max(plugin.regions.len());
                return (most <= OWNED_MAX).then_some(());
            }
            ToSupervisor::Variable { name } => {
                self.outputs.push_back(Output::Answer(connection, name));
            }
            ToSupervisor::Done { serial, refusal } => {
                self.done(connection, serial, refusal, now);
            }
        }
        Some(())
    }

    /// A plugin has answered; or it has been unregistered, and nobody cares.
    fn done(&mut self, connection: Connection, serial: u64, refusal: Option<String>, now: Instant) {
        let Some(process) = self.processes.get_mut(&connection) else {
            return;
        };
        let mut plugins = process.plugins.values_mut();
        let Some((plugin, doing)) = plugins.find_map(|plugin| match plugin.state {
            State::Busy(doing, its, _) | State::Late(doing, its) if its == serial => {
                Some((plugin, doing))
            }
            _ => None,
        }) else {
            return;
        };
        let is_late = matches!(plugin.state, State::Late(..));
        plugin.state = match (doing, &refusal) {
            (Doing::Asked, None) => State::Ready,
            _ => State::Idle,
        };
        if plugin.state == State::Idle {
            (plugin.descriptors, plugin.regions) = (Vec::new(), Vec::new());
        }
        if let Some(mut reason) = refusal.filter(|_| !is_late) {
            reason.retain(|character| !character.is_control());
            reason = reason.chars().take(REASON_MAX).collect();
            let refusal = plugin.refusal(process.pid, &reason);
            if !matches!(self.round, Round::Releasing) {
                self.failure.get_or_insert(refusal);
            }
        }
        // Nobody waits for it any more: it is told at once.
        if is_late && matches!(self.round, Round::None) {
            self.release(now);
        }
    }

    /// Asks or tells the next one.
    fn step(&mut self, now: Instant) {
        if self.failure.is_some() || self.is_busy() {
            return;
        }
        if matches!(self.round, Round::Gathering(_)) && self.is_late() {
            return;
        }
        let in_state = |state| move |(_, plugin): &(Key, &Plugin)| plugin.state == state;
        let idle = self.plugins().find(in_state(State::Idle));
        let idle = idle.map(|(key, _)| key);
        let ready: Vec<Key> = self
            .plugins()
            .rev()
            .filter(in_state(State::Ready))
            .map(|(key, _)| key)
            .collect();
        let left = !ready.is_empty();
        let is_late = |connection: &Connection| self.processes[connection].is_late();
        let ready = ready
            .into_iter()
            .find(|(_, connection, _)| !is_late(connection));
        let (event, key) = match &self.round {
            Round::Gathering(directory) => {
                let directory = directory.clone();
                (Event::PreCheckpoint { directory }, idle)
            }
            Round::Releasing => (Event::Resume, ready),
            Round::Restarting { directory, .. } if self.is_listed() => {
                let directory = directory.clone();
                (Event::Restart { directory }, ready)
            }
            Round::None | Round::Restarting { .. } => return,
        };
        match (key, &self.round) {
            (Some(key), _) => self.tell(key, event, now),
            (None, Round::Gathering(_)) => {}
            (None, _) if left => {}
            (None, _) => self.round = Round::None,
        }
    }

    /// Whether somebody has still not answered what an earlier round has asked: then there is none.
    fn is_late(&mut self) -> bool {
        let late = self.processes.values().find_map(|process| {
            let late = process.late()?;
            Some(late.refusal(process.pid, "it is still at work on an earlier checkpoint"))
        });
        self.failure = self.failure.take().or(late);
        self.failure.is_some()
    }

    fn tell(&mut self, (_, connection, id): Key, event: Event, now: Instant) {
        let doing = match event {
            Event::PreCheckpoint { .. } => Doing::Asked,
            Event::Resume | Event::Restart { .. } => Doing::Told,
        };
        self.serial += 1;
        let serial = self.serial;
        let process = self.processes.get_mut(&connection);
        if let Some(plugin) = process.and_then(|process| process.plugins.get_mut(&id)) {
            let due = now + Duration::from_millis(plugin.registered.patience_ms);
            plugin.state = State::Busy(doing, serial, due);
            let message = ToProcess::Do { serial, id, event };
            self.outputs.push_back(Output::Send(connection, message));
        }
    }
}
