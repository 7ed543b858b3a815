//! Calls of Snapify that a host process makes, and how they went.

use snaprig_sim::Random;
use snaprig_wire::scif::NodeId;

use super::HostId;
use crate::variants::Variant;

/// After the first run function is asked for, at the latest: somewhere in the middle of the work.
pub const AFTER_NS: u64 = 150_000;
/// One script in so many begins already when pipelines and buffers are made.
pub const EARLY_ONE_IN: u64 = 4;

/// What the script does next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Next {
    Copy,
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
    pub next: Next,
    pub terminate: bool,
    pub live: bool,
    pub moves: bool,
    /// Copies are made for the pause that is to follow.
    pub copied: bool,
    pub is_early: bool,
    pub after_ns: u64,
    /// Cards that restore tries, in turn.
    pub targets: Vec<NodeId>,
    pub calling: Option<Next>,
    pub captured: bool,
    pub rounds: u32,
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
            next: first(variant.live),
            live: variant.live,
            moves: variant.moves,
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

    /// A process that moves goes to a card where it is not.
    pub fn look_elsewhere(&mut self, place: NodeId) {
        if self.moves && self.targets.first() == Some(&place) {
            self.targets.rotate_left(1);
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
    pub fn after(&mut self, called: Next, well: bool) -> Option<Next> {
        Some(match called {
            Next::Copy => {
                self.copied = well;
                Next::Pause
            }
            Next::Pause if well => {
                self.captured = false;
                Next::Capture
            }
            // It goes on without a snapshot.
            Next::Pause => Next::Done,
            Next::Capture if well => {
                // What is for a move alone is no snapshot.
                if !self.moves {
                    self.captured = true;
                    self.safe_round = self.round;
                }
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
                first(self.live)
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

/// What a round begins with.
fn first(live: bool) -> Next {
    match live {
        true => Next::Copy,
        false => Next::Pause,
    }
}
