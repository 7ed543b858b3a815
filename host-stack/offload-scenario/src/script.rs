//! The script of a host process: it takes snapshots of an offload process while the application
//! works, has it swapped or moved, and brings it back, as the scenario says.

use snaprig_coi::machine as coi;
use snaprig_sim::Random;
use snaprig_snapify::{SnapifyError, machine::Call};
use snaprig_wire::scif::NodeId;

use super::{Event, HostId, Variant, World, canary::Canary, host::HostTask};
use crate::scenario::invariant;

/// After the first run function is asked for, at the latest: somewhere in the middle of the work.
const AFTER_NS: u64 = 150_000;
/// One script in so many begins already when pipelines and buffers are made.
const EARLY_ONE_IN: u64 = 4;

/// What the script does next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Next {
    Pause,
    Capture,
    Restore,
    Resume,
    #[default]
    Done,
}

/// Calls of Snapify, and how they went.
#[derive(Debug, Default)]
pub struct Script {
    next: Next,
    terminate: bool,
    is_early: bool,
    after_ns: u64,
    /// Cards that restore tries, in turn.
    targets: Vec<NodeId>,
    calling: Option<Next>,
    captured: bool,
    rounds: u32,
    /// Snapshots that were begun, and the last one whose capture was told to be complete.
    pub round: u64,
    pub safe_round: u64,
    /// Its snapshot was damaged on purpose.
    pub damaged: bool,
}

impl Script {
    /// For an offload process that is on the card `place` at first.
    pub fn new(seed: u64, variant: Variant, cards: u16, host: HostId, place: NodeId) -> Self {
        let others = (place + 1..=cards).chain(1..=place);
        let mut random = Random::new(seed, &format!("script {host}"));
        Self {
            next: Next::Pause,
            terminate: variant.ends,
            is_early: random.one_in(EARLY_ONE_IN),
            after_ns: random.below(AFTER_NS),
            targets: match variant.comes_back {
                true => others.collect(),
                false => Vec::new(),
            },
            rounds: variant.rounds,
            ..Self::default()
        }
    }

    /// Nothing more is done.
    pub fn stop(&mut self) {
        self.next = Next::Done;
    }

    /// The call under way.
    pub fn calling(&self) -> Option<Next> {
        self.calling
    }

    /// What comes after a call; `None` if nothing can help any more.
    fn after(&mut self, called: Next, well: bool) -> Option<Next> {
        Some(match called {
            Next::Pause if well => {
                self.captured = false;
                Next::Capture
            }
            // It goes on without a snapshot.
            Next::Pause => Next::Done,
            Next::Capture if well => {
                self.captured = true;
                self.safe_round = self.round;
                match self.targets.is_empty() {
                    true => Next::Resume,
                    false => Next::Restore,
                }
            }
            Next::Capture => Next::Resume,
            Next::Restore if well => Next::Resume,
            Next::Restore => {
                self.targets.remove(0);
                Next::Restore
            }
            Next::Resume if well && self.rounds > 1 => {
                self.rounds -= 1;
                Next::Pause
            }
            Next::Resume if well => Next::Done,
            Next::Resume if self.captured && !self.targets.is_empty() => {
                self.targets.remove(0);
                Next::Restore
            }
            Next::Resume | Next::Done => return None,
        })
    }
}

impl World {
    /// The work of a host process begins, or, if not `early`, its run functions do: its script will.
    pub(super) fn start_script(&mut self, host: HostId, early: bool) {
        if self.hosts[host].script.is_early != early {
            return;
        }
        let event = Event::Host(host, HostTask::Script);
        let after_ns = self.hosts[host].script.after_ns;
        self.net
            .stage
            .engine
            .after(self.host_processes[host], after_ns, event);
    }

    pub(super) fn script(&mut self, host: HostId) {
        let script = &mut self.hosts[host].script;
        if script.calling.is_some() {
            return;
        }
        let next = script.next;
        let call = match next {
            Next::Pause => {
                script.round += 1;
                Call::Pause
            }
            Next::Capture => Call::Capture(script.terminate),
            Next::Restore => match script.targets.first().copied() {
                Some(node) => Call::Restore(node),
                None => {
                    script.next = Next::Resume;
                    return self.script(host);
                }
            },
            Next::Resume => Call::Resume,
            Next::Done => return,
        };
        script.calling = Some(next);
        self.call(host, call);
    }

    pub(super) fn returned(&mut self, host: HostId, result: Result<u64, SnapifyError>) {
        let one = &mut self.hosts[host];
        let Some(called) = one.script.calling.take() else {
            return self.violation(invariant::CONTRADICTION, "a call returned twice");
        };
        let well = result.is_ok();
        one.errors
            .extend(result.err().map(|error| error.to_string()));
        let next = one.script.after(called, well);
        one.script.next = next.unwrap_or(Next::Done);
        if next.is_none() && self.canary != Some(Canary::SilentLoss) {
            // Nothing brings it back. The application ends.
            self.hosts[host].lost = true;
            self.coi(host, coi::Input::RigGone);
        }
        let event = Event::Host(host, HostTask::Script);
        self.net
            .stage
            .engine
            .after(self.host_processes[host], 0, event);
    }
}
