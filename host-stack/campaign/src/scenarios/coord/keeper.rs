//! The coordinator's process: its machine, and what it writes.

use std::collections::{BTreeMap, VecDeque};

use snaprig_coord::{
    coordinator::{Config, Input, Machine, Output},
    faults,
    message::{ToCoordinator, ToMember},
    phase::Phase,
};

use super::invariants::{DECIDED, HALF};
use super::run::{Event, JOB, World, token};
use crate::{
    scenarios::coord::Canary,
    stage::{Effect, System as _},
};

/// How long the disk takes for something.
const DISK_NS: u64 = 100_000;

/// The coordinator, while its process is there.
#[derive(Debug)]
pub struct Keeper {
    /// When it was started.
    pub since_ns: u64,
    machine: Machine,
    tick_ns: Option<u64>,
    /// Who the members are, as the disk is to know by and by.
    unkept: VecDeque<Vec<String>>,
}

/// A commit that the disk is working on.
#[derive(Debug)]
pub struct Commit {
    pub round: u64,
    pub reports: BTreeMap<String, String>,
}

/// Where a round's files are.
pub fn folder(round: u64) -> String {
    format!("round-{round:06}/")
}

/// The name that makes a round's files a checkpoint.
pub fn manifest_of(round: u64) -> String {
    folder(round) + "manifest"
}

impl World {
    /// A coordinator is started; the one before is dead.
    pub fn start_coordinator(&mut self) {
        if !self.stage.engine.is_alive(self.coordinator) {
            self.stage.engine.restart(self.coordinator);
        }
        let last = self.disk.names("round-").into_iter().filter_map(|name| {
            let number = name.strip_prefix("round-")?.split('/').next()?;
            number.parse::<u64>().ok()
        });
        let config = Config {
            job: JOB.into(),
            token: token(),
            members: self.roster.clone(),
            first_round: last.max().unwrap_or(0).max(self.last_round) + 1,
        };
        let since_ns = self.stage.engine.now_ns();
        self.keeper = Some(Keeper {
            machine: Machine::new(config, since_ns),
            since_ns,
            tick_ns: None,
            unkept: VecDeque::new(),
        });
        self.wake_coordinator();
    }

    pub fn coordinator_handles(&mut self, input: Input) {
        let now = self.stage.engine.now_ns();
        let Some(keeper) = &mut self.keeper else {
            return;
        };
        for output in keeper.machine.handle(input, now) {
            self.coordinator_acts(output);
            // It may have died of it.
            if !self.stage.engine.is_alive(self.coordinator) {
                return;
            }
        }
        self.wake_coordinator();
    }

    fn wake_coordinator(&mut self) {
        let Some(keeper) = &mut self.keeper else {
            return;
        };
        let due = keeper.machine.deadline();
        if let Some(due) = due.filter(|due| keeper.tick_ns.is_none_or(|tick| tick > *due)) {
            keeper.tick_ns = Some(due);
            let event = Event::CoordinatorTick(due);
            self.stage.engine.at(self.coordinator, due, event);
        }
    }

    pub fn coordinator_tick(&mut self, due: u64) {
        let keeper = self.keeper.as_mut();
        if let Some(keeper) = keeper.filter(|keeper| keeper.tick_ns == Some(due)) {
            keeper.tick_ns = None;
            self.coordinator_handles(Input::Tick);
        }
    }

    pub fn heard_by_coordinator(&mut self, connection: u64, mut message: ToCoordinator) {
        // A connection of an earlier coordinator.
        if !self.wires.contains_key(&connection) {
            return;
        }
        if let ToCoordinator::Done {
            round,
            phase: Phase::Write,
            result,
        } = &mut message
        {
            if self.canary == Some(Canary::BelievedWrite) {
                *result = Ok(result.clone().unwrap_or_default());
            }
            if self.canary == Some(Canary::HastyManifest) && result.is_ok() {
                let (round, reports) = (*round, BTreeMap::new());
                let _ = self.write_manifest(&Commit { round, reports });
            }
        }
        self.coordinator_handles(Input::Message {
            connection,
            message,
        });
    }

    fn coordinator_acts(&mut self, output: Output) {
        match output {
            Output::Send {
                connection,
                message,
            } => {
                self.watch_decision(&message);
                self.tell_peer(connection, message);
            }
            Output::Disconnect { connection, .. } => {
                if let Some(peer) = self.wires.remove(&connection) {
                    let number = connection;
                    self.close_later(super::net::Wire { number, peer }, false);
                }
            }
            Output::Members(members) => {
                if let Some(keeper) = &mut self.keeper {
                    keeper.unkept.push_back(members);
                }
                self.stage
                    .engine
                    .after(self.coordinator, DISK_NS, Event::Members);
                if self.canary == Some(Canary::EarlyWelcome) {
                    self.coordinator_handles(Input::Kept);
                }
            }
            Output::Commit { round, reports, .. } => {
                let commit = Commit { round, reports };
                let event = Event::Commit(commit);
                self.stage.engine.after(self.coordinator, DISK_NS, event);
            }
        }
    }

    /// What members are told of a round's end must be what the disk says.
    fn watch_decision(&mut self, message: &ToMember) {
        let (round, phase) = match message {
            ToMember::Begin { round, phase, .. } => (*round, *phase),
            ToMember::Undo { round, .. } => (*round, Phase::Undo),
            _ => return,
        };
        if phase == Phase::Look && self.last_round < round {
            self.last_round = round;
            self.begun_ns = self.stage.engine.now_ns();
            self.check_members(round);
        }
        let is_there = self.disk.read(&manifest_of(round)).is_some();
        let is_background = matches!(
            message,
            ToMember::Begin { order, .. } if order.kind == snaprig_coord::phase::Kind::Background
        );
        let expected = match phase {
            Phase::Undo => false,
            Phase::Resume | Phase::End if !is_background => true,
            _ => return,
        };
        if is_there != expected {
            let what = format!(
                "round {round} is told {}, manifest: {is_there}",
                phase.name()
            );
            self.violation(DECIDED, what);
        }
    }

    /// A round begins: of whoever has ever joined, and lives.
    fn check_members(&mut self, round: u64) {
        let Some(keeper) = &self.keeper else {
            return;
        };
        let members = keeper.machine.status().members;
        let is_member = |agent: usize| members.iter().any(|one| one.name == agent.to_string());
        let mut agents = 0..self.agents.len();
        let forgotten = agents.find(|agent| self.belongs(*agent) && !is_member(*agent));
        if let Some(agent) = forgotten {
            let what = format!(
                "round {round} begins without agent{}, which lives",
                agent + 1
            );
            self.violation(HALF, what);
        }
    }

    /// The disk comes to who the members are.
    pub fn keep_members(&mut self) {
        if self.fault(self.coordinator, &faults::MEMBERS) == Effect::Ended {
            return;
        }
        let Some(members) = self
            .keeper
            .as_mut()
            .and_then(|keeper| keeper.unkept.pop_front())
        else {
            return;
        };
        if self.canary != Some(Canary::ForgottenMembers) {
            self.roster = members;
        }
        if self.canary != Some(Canary::EarlyWelcome) {
            self.coordinator_handles(Input::Kept);
        }
    }

    /// The disk comes to a manifest.
    pub fn commit(&mut self, commit: &Commit) {
        let round = commit.round;
        let mut result = match self.fault(self.coordinator, &faults::COMMIT) {
            Effect::Ended => return,
            Effect::Late(by_ns) => {
                let late = Commit {
                    round,
                    reports: commit.reports.clone(),
                };
                let event = Event::LateCommit(late);
                return self.stage.engine.after(self.coordinator, by_ns, event);
            }
            Effect::Error(errno) => Err(format!("errno {errno}")),
            _ => self.write_manifest(commit),
        };
        if !self.stage.engine.is_alive(self.coordinator) {
            return;
        }
        if self.canary == Some(Canary::TwiceDecided) {
            result = Err("it is not known whether it is there".into());
        }
        self.committed(round, result);
    }

    pub fn late_commit(&mut self, commit: &Commit) {
        let result = self.write_manifest(commit);
        self.committed(commit.round, result);
    }

    fn committed(&mut self, round: u64, result: Result<(), String>) {
        let late_ns = match self.fault(self.coordinator, &faults::COMMITTED) {
            Effect::Ended => return,
            Effect::Late(by_ns) => by_ns,
            _ => 0,
        };
        let event = Event::Committed(round, result);
        self.stage.engine.after(self.coordinator, late_ns, event);
    }

    fn write_manifest(&mut self, commit: &Commit) -> Result<(), String> {
        let name = manifest_of(commit.round);
        let temporary = format!("{name}.new");
        let text: String = commit
            .reports
            .iter()
            .fold(String::new(), |text, (k, v)| format!("{text}{k} {v}\n"));
        let errno = |errno: i32| format!("errno {errno}");
        self.disk.create(&temporary).map_err(errno)?;
        let text = text.as_bytes();
        self.disk
            .append(&temporary, text, text.len())
            .map_err(errno)?;
        self.disk.sync(&temporary).map_err(errno)?;
        if self.disk.read(&name).is_some() {
            let what = format!("round {} is committed again", commit.round);
            self.violation(DECIDED, what);
        }
        self.disk.rename_one(&temporary, &name).map_err(errno)?;
        self.disk.sync_names();
        self.check_commit(commit.round);
        Ok(())
    }
}
