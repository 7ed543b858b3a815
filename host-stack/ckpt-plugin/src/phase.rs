//! The phases that plugins go through together.
//!
//! ```text
//! checkpoint:  Quiesce --> Drain --> Save --> (the trees stand still, and are saved) --> Resume
//! restart:     Rebuild --> Exchange --> Refill --> Go
//! ```
//! move:        Quiesce --> Drain --> Save --> Rebuild --> Exchange --> (decided) --> Refill --> Go     or Resume instead
//!
//! In a move, one member's tree goes on elsewhere: its plugins are restarted there ([`Part::Moves`]), those of all others
//! pass these phases where they are ([`Part::Stays`]). Until it is decided it may be undone: those that stay resume.
//!
//! All plugins of all processes of all members of a job are in a phase before any is in the next. Within a phase,
//! plugins with the same order value work at the same time; lower ones go first in Quiesce, Drain and Save, higher ones
//! in all others, so that what is built up last is taken down first.

use serde::{Deserialize, Serialize};

/// What a round is for a plugin's process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Part {
    /// A checkpoint, or a restart: as for all others.
    #[default]
    All,
    /// It moves.
    Moves,
    /// Others move, and it stays where it is.
    Stays,
}

/// In which of the phases of a checkpoint plugins may be at work on what they save.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub enum Span {
    /// In Save alone: the program ends, or goes on elsewhere.
    #[default]
    Save,
    /// The program goes on where it is: what was begun in Save may end before Resume does.
    SaveToResume,
    /// The same, and who can copies ahead in Quiesce, for a short pause.
    QuiesceToResume,
}

/// A phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Phase {
    /// The program is kept from using what the plugin stands for.
    Quiesce,
    /// What is on its way arrives, or is taken out: everybody has quiesced.
    Drain,
    /// What cannot be saved from outside is taken down or put into files: everybody has drained.
    Save,
    /// The program runs on where it was, whether there is a checkpoint now or none.
    Resume,
    /// In a restarted process: what was taken down is built up again, and others are told how to reach it. In one that
    /// stays while others move: what leads to those is made again, beside what there is.
    Rebuild,
    /// It is connected with that of others: everybody has rebuilt.
    Exchange,
    /// What was taken out in Drain is put back: everybody has exchanged.
    Refill,
    /// The restarted program runs: everybody has refilled.
    Go,
}

impl Phase {
    /// All of them, in order.
    pub const ALL: [Self; 8] = [
        Self::Quiesce,
        Self::Drain,
        Self::Save,
        Self::Resume,
        Self::Rebuild,
        Self::Exchange,
        Self::Refill,
        Self::Go,
    ];
    /// Those before a checkpoint.
    pub const CHECKPOINT: [Self; 3] = [Self::Quiesce, Self::Drain, Self::Save];
    /// Those of a restart, before the program runs.
    pub const RESTART: [Self; 3] = [Self::Rebuild, Self::Exchange, Self::Refill];

    /// As people read it, and barriers are called.
    pub fn name(self) -> &'static str {
        match self {
            Self::Quiesce => "quiesce",
            Self::Drain => "drain",
            Self::Save => "save",
            Self::Resume => "resume",
            Self::Rebuild => "rebuild",
            Self::Exchange => "exchange",
            Self::Refill => "refill",
            Self::Go => "go",
        }
    }

    /// Whether plugins with lower order values go first.
    pub fn is_ascending(self) -> bool {
        Self::CHECKPOINT.contains(&self)
    }

    /// Whether a plugin may refuse in it.
    pub fn may_fail(self) -> bool {
        !matches!(self, Self::Resume | Self::Go)
    }

    fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// The phases in which a plugin has something to do: it is not asked in others, and passes them with everybody.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Phases(u8);

impl Phases {
    /// All of them.
    pub const ALL: Self = Self(u8::MAX);
    /// None of them.
    pub const NONE: Self = Self(0);

    /// These, and this one.
    #[must_use]
    pub fn with(self, phase: Phase) -> Self {
        Self(self.0 | phase.bit())
    }

    /// Whether this one is among them.
    pub fn has(self, phase: Phase) -> bool {
        self.0 & phase.bit() != 0
    }
}
